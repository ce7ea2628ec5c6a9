//! `rackpool-kill-steps [ROUNDS] [SEED]`: kills clients and daemons at their instructions.

use anyhow::Context;
use rackpool_tests::steps::campaign::Campaign;
use rackpool_tests::steps::daemons;
use rackpool_tests::steps::tracer::may_trace;

fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut number = |unless_said| numbers.next().unwrap_or(Ok(unless_said));
    let rounds = usize::try_from(number(10_000).context("ROUNDS is no number")?)?;
    let seed = number(1).context("SEED is no number")?;
    let report = Campaign { rounds, least: 0, seed, means: may_trace() }.run();
    println!("{report}\n");
    let report = daemons::run(rounds.div_ceil(20), seed);
    println!("{report}");
    Ok(())
}
