//! The load in the mounts: operations on a bounded set of files and folders.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Counts;
use crate::contents;

/// Names in a folder.
const NAMES: u32 = 24;
/// The longest file, in bytes.
const LONGEST: usize = 200_000;
/// Pause after a failed operation: the mount may be restarting.
const PAUSE: Duration = Duration::from_millis(5);

/// Works in a folder of a mount until the loads end. While nothing is mounted the folder is
/// missing.
pub(super) fn work(folder: &Path, seed: u64, counts: &Counts) {
    let mut random = SmallRng::seed_from_u64(seed);
    while !counts.has_ended() {
        match step(folder, &mut random) {
            Ok(()) => counts.done(),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn step(folder: &Path, random: &mut SmallRng) -> io::Result<()> {
    let [one, other] = [(); 2].map(|()| folder.join(random.random_range(0..NAMES).to_string()));
    let bytes = match random.random_range(0..4) {
        0 => random.random_range(0..LONGEST),
        _ => random.random_range(0..10_000),
    };
    match random.random_range(0..14) {
        0..5 => fs::write(&one, contents::of(1, bytes)),
        5 => File::options().append(true).open(&one)?.write_all(&contents::of(2, bytes % 20_000)),
        6 => File::options().write(true).open(&one)?.set_len(bytes as u64),
        7 | 8 => fs::remove_file(&one),
        9 => fs::rename(&one, &other),
        10 => symlink("nowhere", &one),
        11 => fs::hard_link(&one, &other),
        12 => {
            let deep = folder.join(format!("d{}", random.random_range(0..4)));
            fs::create_dir_all(deep.join("in"))?;
            for name in 0..30 {
                fs::write(deep.join(format!("in/{name}")), b"small")?;
            }
            fs::remove_dir_all(&deep)
        }
        _ => {
            // The file is written after its name was removed.
            let mut file = File::create(&one)?;
            fs::remove_file(&one)?;
            file.write_all(&contents::of(3, bytes))
        }
    }
}

/// Removes a folder of a mount with its contents.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
