//! `cargo x sim`: runs seeds and reports those that fail a check.

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rackpool_sim::Seen;

const USAGE: &str = "usage: cargo x sim [--seed N | --from N --count C] [--minutes M]
  --seed N              this one, or from this one on with --minutes
  --from N --count C    seeds N to N + C - 1; every one that fails is named
  --minutes M           new seeds for so long, or until one fails (1 if nothing is said)";

/// The number of seeds of a range between two lines of progress.
const REPORT: u64 = 10_000;

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    One(u64),
    For(Option<u64>, Duration),
    Range { from: u64, count: u64 },
}

fn main() -> ExitCode {
    match plan(&env::args().skip(1).collect::<Vec<_>>()).and_then(run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo x sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn plan(arguments: &[String]) -> Result<Plan> {
    let (mut seed, mut minutes, mut from, mut count) = (None, None, None, None);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { bail!("{USAGE}") };
        let number = value.parse::<u64>().with_context(|| format!("{value} is no number\n{USAGE}"));
        let place = match name.as_str() {
            "--seed" => &mut seed,
            "--minutes" => &mut minutes,
            "--from" => &mut from,
            "--count" => &mut count,
            _ => bail!("{USAGE}"),
        };
        *place = Some(number?);
    }
    Ok(match (seed, minutes, from, count) {
        (Some(seed), None, None, None) => Plan::One(seed),
        (None, None, Some(from), Some(count)) if from.checked_add(count).is_some() => {
            Plan::Range { from, count }
        }
        (seed, minutes, None, None) => {
            Plan::For(seed, Duration::from_secs(60).saturating_mul(minutes_of(minutes)?))
        }
        _ => bail!("{USAGE}"),
    })
}

fn minutes_of(minutes: Option<u64>) -> Result<u32> {
    u32::try_from(minutes.unwrap_or(1)).context("so many minutes are thousands of years")
}

/// Returns false if a seed failed.
fn run(plan: Plan) -> Result<bool> {
    Ok(match plan {
        Plan::One(seed) => run_one(seed),
        Plan::Range { from, count } => run_range(from, count),
        Plan::For(seed, time) => {
            let new = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() >> 16;
            run_for(seed.unwrap_or(u64::try_from(new)?), time)
        }
    })
}

fn run_one(seed: u64) -> bool {
    match rackpool_sim::run(seed) {
        Ok(seen) => println!("seed {seed} holds: {seen}"),
        Err(failure) => {
            println!("{failure}");
            return false;
        }
    }
    true
}

fn run_for(first: u64, time: Duration) -> bool {
    let start = Instant::now();
    let (mut count, mut sum) = (0, Seen::default());
    println!("seeds from {first} on");
    while start.elapsed() < time {
        match rackpool_sim::run(first.wrapping_add(count)) {
            Ok(seen) => sum += seen,
            Err(failure) => {
                println!("{failure}");
                return false;
            }
        }
        count += 1;
    }
    println!("{count} seeds hold: {sum}");
    true
}

fn run_range(from: u64, count: u64) -> bool {
    let start = Instant::now();
    let (mut failed, mut sum) = (0, Seen::default());
    for seed in from..from + count {
        match rackpool_sim::run(seed) {
            Ok(seen) => sum += seen,
            Err(failure) => {
                println!("{failure}");
                sum += failure.seen;
                failed += 1;
            }
        }
        let done = seed - from + 1;
        if done.is_multiple_of(REPORT) || done == count {
            let seconds = start.elapsed().as_secs_f64();
            println!("seeds {from} to {seed}: {failed} of {done} failed, {seconds:.0} s: {sum}");
        }
    }
    failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Plan> {
        plan(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_line_says_which_seeds_and_how_long() {
        let minute = Duration::from_secs(60);
        for (line, expected) in [
            ("", Plan::For(None, minute)),
            ("--minutes 3", Plan::For(None, minute * 3)),
            ("--seed 7", Plan::One(7)),
            ("--seed 7 --minutes 2", Plan::For(Some(7), minute * 2)),
            ("--from 10 --count 5", Plan::Range { from: 10, count: 5 }),
        ] {
            assert_eq!(of(line).unwrap(), expected, "{line}");
        }
        for line in ["--seed", "--seed x", "--from 3", "--from 3 --count 5 --seed 7", "--all 1"] {
            assert!(of(line).unwrap_err().to_string().contains("usage:"), "{line}");
        }
    }
}
