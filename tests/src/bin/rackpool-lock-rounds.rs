//! `rackpool-lock-rounds [ROUNDS] [SEED]`: programs of two racks add under a lock while they and
//! the daemons are killed, and pages move.

use anyhow::Context;
use rackpool_tests::lock_rounds;
use rackpool_tests::pool::{PAGE, TestPool};

fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut number = |unless_said| numbers.next().unwrap_or(Ok(unless_said));
    let rounds = number(1_000).context("ROUNDS is no number")?;
    let seed = number(1).context("SEED is no number")?;
    lock_rounds::run(&mut TestPool::restless(16 << 20, PAGE), rounds, seed, true);
    println!("{rounds} rounds: no acknowledged update is lost, no half one unsaid");
    Ok(())
}
