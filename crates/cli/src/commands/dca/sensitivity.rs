//! `rackpool dca sensitivity`.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use rackpool_dca::hardware::{Held, Plan, State, leftover};
use rackpool_numa::{Direction, MAX_PAIRS, RatioInterval};
use rackpool_output::{UsageError, outln};

use super::super::signals::Interrupts;
use super::machine::{Machine, tell_left};

/// Up to this difference a program's sensitivity is low (Farshin et al., USENIX ATC 2020, table 2).
const LOW: f64 = 0.05;

/// What is compared.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: Machine,
    /// Ways for devices in every second run.
    #[arg(long)]
    ways: u32,
    /// Pairs of runs, from 2 to 1000.
    #[arg(long, default_value_t = 5)]
    pairs: u32,
    /// Change the machine's registers for each second run. Without this nothing is run.
    #[arg(long)]
    yes: bool,
    /// The command whose time is measured.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command with the ways as they are and with more, in pairs.
///
/// # Errors
/// If the change is refused, or the command fails; then nothing stays changed.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let (files, note) = (options.machine.files(), options.machine.note());
    if leftover(&note) {
        bail!(rackpool_dca::hardware::HardwareError::Leftover(note));
    }
    ensure!(
        (2..=MAX_PAIRS).contains(&options.pairs),
        UsageError::new(format!("--pairs {}: give 2 to {MAX_PAIRS}", options.pairs))
    );
    let mut registers = options.machine.registers();
    let plan = Plan::ways(&State::of(&files), &mut registers, options.ways)?;
    ensure!(!plan.is_empty(), "devices have {} ways already: there is no difference", options.ways);
    rackpool_output::print(format_args!("{plan}"))?;
    if !options.yes {
        bail!(UsageError::new("nothing was run: --yes changes the registers for each second run"));
    }
    // A signal ends the command, or the pairs after its end, and never leaves the change in force.
    let interrupts = Interrupts::catch()?;
    let mut with_more = || -> anyhow::Result<f64> {
        let held = Held::apply(&plan, &files, &mut registers, &note)?;
        let time = timed(&options.command);
        tell_left(&held.undo()?)?;
        time
    };
    let mut pairs = Vec::new();
    for pair in 0..options.pairs {
        // Each side is as often first.
        let (now, more) = if pair % 2 == 0 {
            let now = timed(&options.command)?;
            (now, with_more()?)
        } else {
            let more = with_more()?;
            (timed(&options.command)?, more)
        };
        ensure!(
            interrupts.wait(|| Some(()))?.is_some(),
            "interrupted: the registers are as before"
        );
        outln!("pair {}: {now:.3} s as it is, {more:.3} s with {} ways", pair + 1, options.ways)?;
        pairs.push((now, more));
    }
    let interval = RatioInterval::of_pairs(&pairs).context("the command takes no time")?;
    let is_low = (interval.ratio - 1.0).abs() <= LOW;
    outln!(
        "{:.3} of the time (95 %: {:.3} to {:.3}): {}, sensitivity is {}",
        interval.ratio,
        interval.low,
        interval.high,
        interval.verdict(Direction::LowerIsBetter, 0.0),
        if is_low { "low" } else { "high" }
    )?;
    Ok(())
}

/// Runs the command and returns its time in seconds.
fn timed(command: &[String]) -> anyhow::Result<f64> {
    let (program, arguments) = command.split_first().context("there is no command")?;
    let start = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .status()
        .with_context(|| format!("can't run {program}"))?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(start.elapsed().as_secs_f64())
}
