//! Runs one target without libFuzzer: `cargo x fuzz --builtin <target> [seconds] [seed]`, or on a
//! file: `cargo run -p rackpool-fuzz -- <target> fuzz/artifacts/<target>/<name>`.

use std::time::Duration;

use anyhow::{Context, Result};
use rackpool_fuzz::{TARGETS, campaign, target};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let usage =
        || format!("usage: rackpool-fuzz <{}> [seconds] [seed] | <target> <file>", names.join("|"));
    let name = arguments.first().with_context(usage)?;
    let target = target(name).with_context(usage)?;
    if let Some(path) = arguments.get(1).filter(|text| text.parse::<u64>().is_err()) {
        (target.run)(&std::fs::read(path).with_context(|| path.clone())?);
        println!("{name}: {path}, no finding");
        return Ok(());
    }
    let number = |at: usize, default: u64| match arguments.get(at) {
        Some(text) => text.parse().with_context(usage),
        None => Ok(default),
    };
    let (seconds, seed) = (number(1, 60)?, number(2, 0)?);
    let count = campaign::campaign(target, Duration::from_secs(seconds), seed)?;
    println!("{name}: {count} inputs in {seconds} s with seed {seed}, no finding");
    Ok(())
}
