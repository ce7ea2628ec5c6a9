//! `rackpool-file-rules DIR [filter]`: tests the rules of a file system in a folder of any file
//! system.
//!
//! `rackpool-file-rules DIR random SEED SEEDS OTHER`: random operations in `DIR`, compared with a
//! model in memory and with the same operations in the folder `OTHER`.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rackpool_tests::files::{broken_rules, one_file, tree};

const USAGE: &str = "usage: rackpool-file-rules DIR [filter | random SEED SEEDS OTHER]";
const OPERATIONS: u32 = 1000;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Files get exactly the modes that the rules request.
    rustix::process::umask(rustix::fs::Mode::empty());
    match &arguments[..] {
        [root] => rules(Path::new(root), ""),
        [root, filter] => rules(Path::new(root), filter),
        [root, random, seed, seeds, other] if random == "random" => {
            let (first, count): (u64, u64) = (seed.parse()?, seeds.parse()?);
            for seed in first..first + count {
                try_seed(Path::new(root), Path::new(other), seed)?;
            }
            println!("{count} seeds from {first} on are fine in {root}");
            Ok(())
        }
        _ => anyhow::bail!(USAGE),
    }
}

fn rules(root: &Path, filter: &str) -> anyhow::Result<()> {
    std::panic::set_hook(Box::new(|_| {}));
    let broken = broken_rules(root, filter);
    for (name, message) in &broken {
        println!("{name}: {message}");
    }
    ensure!(broken.is_empty(), "{} rules do not hold in {}", broken.len(), root.display());
    println!("all rules hold in {}", root.display());
    Ok(())
}

fn try_seed(root: &Path, other: &Path, seed: u64) -> anyhow::Result<()> {
    let folders: [PathBuf; 2] =
        [root, other].map(|folder| folder.join(format!("random {}-{seed}", std::process::id())));
    for folder in &folders {
        std::fs::create_dir(folder).with_context(|| folder.display().to_string())?;
    }
    let tried = tree::exercise(&folders[0], &folders[1], seed, OPERATIONS)
        .and_then(|()| one_file::exercise(&folders[0], seed, OPERATIONS));
    for folder in &folders {
        std::fs::remove_dir_all(folder)?;
    }
    tried
}
