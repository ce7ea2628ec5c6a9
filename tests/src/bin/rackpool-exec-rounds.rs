//! `rackpool-exec-rounds [COUNT] [KILL EVERY]`: clients of two service instances raise counters
//! with `WATCH` and `EXEC` while the instances are killed.

use std::process::ExitCode;

use anyhow::Context;
use rackpool_tests::execs;

fn main() -> anyhow::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut number = |unless_said| numbers.next().unwrap_or(Ok(unless_said));
    let count = number(100_000).context("COUNT is no number")?;
    let kill_every = number(1_000).context("KILL EVERY is no number")?;
    let report = execs::run(count, kill_every);
    println!("{report}");
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
