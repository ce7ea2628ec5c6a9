//! `rackpool-kill-steps [ROUNDS] [SEED]`: kills clients and daemons at their instructions.

use anyhow::{Context, ensure};
use rackpool_tests::steps::campaign::Campaign;
use rackpool_tests::steps::daemons;
use rackpool_tests::steps::tracer::{Means, may_trace};

/// Clients that are killed for each daemon that is: the recovery of a daemon takes longer.
const DAEMONS: usize = 100;
/// Rounds after which each operation has been killed at some instructions.
const ONCE: usize = 300;

fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut number = |unless_said| numbers.next().unwrap_or(Ok(unless_said));
    let rounds = usize::try_from(number(10_000).context("ROUNDS is no number")?)?;
    let seed = number(1).context("SEED is no number")?;
    let (means, daemons) = (may_trace(), rounds.div_ceil(DAEMONS));
    // A short campaign has first to execute each operation once.
    let beside = (rounds / 4).max(rounds.min(ONCE));
    println!(
        "seed {seed}: {rounds} clients are killed, {beside} in a rack with two daemons, then \
         {daemons} daemons; {means:?}\n"
    );
    for (rounds, is_one_rack) in [(rounds, false), (beside, true)] {
        let report = Campaign { rounds, least: 0, seed, means, is_one_rack }.run();
        println!("{report}\n");
        let few = rounds.min(10_000) / 4;
        ensure!(
            means == Means::Times || report.distinct >= few,
            "killed at {} instructions; so many rounds should come to {few}",
            report.distinct
        );
    }
    let report = daemons::run(daemons, seed);
    ensure!(
        !report.traced || report.distinct >= daemons / 4,
        "daemons were killed at {} instructions only",
        report.distinct
    );
    println!("{report}");
    Ok(())
}
