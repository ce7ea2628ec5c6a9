//! Prints new rows of the table of planted bugs for bugs that are not found any more.
#![allow(dead_code, reason = "the tests use the rest of the module")]

#[path = "../tests/planted_bug/mod.rs"]
mod planted_bug;

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use planted_bug::Planted;
use planted_bug::table::PLANTED;
use rackpool_sim::{run, run_with};

/// The number of seeds tried for each bug.
const SEEDS: u64 = 100_000;

fn main() -> ExitCode {
    let is_found = |bug, seed| run_with(seed, Planted(bug)).is_err() && run(seed).is_ok();
    let (next, unfound) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let look = || {
        while let Some((bug, from, within)) = PLANTED.get(next.fetch_add(1, Ordering::Relaxed)) {
            if (*from..from + within).any(|seed| is_found(*bug, seed)) {
                continue;
            }
            match (0..SEEDS).find(|seed| is_found(*bug, *seed)) {
                Some(0..40) => println!("    (Bug::{bug:?}, 0, 40),"),
                Some(seed) => println!("    (Bug::{bug:?}, {}, 40),", seed / 10 * 10),
                None => {
                    println!("    {bug:?} is found by none of {SEEDS} seeds");
                    unfound.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(look);
        }
    });
    if unfound.into_inner() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
