//! `rackpool-swap-rounds [ROUNDS] [SEED]`: pages swap while anyone is killed or stopped.

use std::process::ExitCode;

use anyhow::Context;
use rackpool_tests::swaps::campaign;

/// After so many rounds the pool is made anew, with the next seed.
const PIECE: usize = 50;

fn main() -> anyhow::Result<ExitCode> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut number = |unless_said| numbers.next().unwrap_or(Ok(unless_said));
    let rounds = usize::try_from(number(1000).context("ROUNDS is no number")?)?;
    let first = number(1).context("SEED is no number")?;
    let mut left = rounds;
    for seed in first.. {
        let piece = left.min(PIECE);
        println!("seed {seed}:");
        let report = campaign::run(piece, seed);
        println!("{report}\n");
        if !report.problems.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
        left -= piece;
        if left == 0 {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}
