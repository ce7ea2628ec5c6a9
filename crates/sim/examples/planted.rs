//! Prints new rows of the table of planted bugs for bugs that are not found any more.
#![allow(dead_code, reason = "the tests use the rest of the module")]

#[path = "../tests/planted_bug/mod.rs"]
mod planted_bug;

use std::process::ExitCode;

use planted_bug::Planted;
use planted_bug::table::PLANTED;
use rackpool_sim::{run, run_with};

/// The number of seeds tried for each bug.
const SEEDS: u64 = 100_000;

fn main() -> ExitCode {
    let is_found = |bug, seed| run_with(seed, Planted(bug)).is_err() && run(seed).is_ok();
    let mut unfound = 0;
    for (bug, from, within) in PLANTED {
        if (from..from + within).any(|seed| is_found(bug, seed)) {
            continue;
        }
        match (0..SEEDS).find(|seed| is_found(bug, *seed)) {
            Some(0..40) => println!("    (Bug::{bug:?}, 0, 40),"),
            Some(seed) => println!("    (Bug::{bug:?}, {}, 40),", seed / 10 * 10),
            None => {
                println!("    {bug:?} is found by none of {SEEDS} seeds");
                unfound += 1;
            }
        }
    }
    if unfound == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
