//! `rackpool-swap-rounds [ROUNDS] [SEED]`: pages swap while processes are killed or stopped.

use std::process::ExitCode;

use anyhow::Context;
use rackpool_tests::swaps::campaign;
use rackpool_tests::swaps::report::Report;

/// Rounds in one pool; the next pool uses the next seed.
const PIECE: usize = 50;
/// The number of rounds from which every phase of a swap must be hit; fewer may miss one by chance.
const MANY: usize = 200;

fn main() -> anyhow::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut number = |unless_said| numbers.next().unwrap_or(Ok(unless_said));
    let rounds = usize::try_from(number(1000).context("ROUNDS is no number")?)?;
    let first = number(1).context("SEED is no number")?;
    let mut all = Report::default();
    for seed in first.. {
        let piece = campaign::run(PIECE.min(rounds - all.rounds), seed);
        println!("seed {seed}: {piece}\n");
        all.add(piece);
        if !all.problems.is_empty() || all.rounds == rounds {
            break;
        }
    }
    println!("all seeds: {all}");
    let missed = all.coverage.missed();
    if rounds >= MANY && all.problems.is_empty() && !missed.is_empty() {
        println!("no daemon was killed at a chosen moment in these phases of a swap: {missed:?}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if all.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
