//! `rackpool dca set`.

use std::process::Command;

use anyhow::{Context, bail};
use rackpool_dca::WayMask;
use rackpool_dca::hardware::{Held, Plan, State, leftover};
use rackpool_output::{UsageError, outln};

use super::super::signals::Interrupts;
use super::machine::{Machine, tell_left};

/// What is set, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: Machine,
    /// Ways for devices, on every socket: at least as many as now. They are the highest ones, and
    /// those of now stay.
    #[arg(long)]
    ways: Option<u32>,
    /// Keep programs without a group of their own in resctrl out of these ways.
    #[arg(long)]
    keep_programs_out: bool,
    /// Do it. Without this, the command shows what it would change.
    #[arg(long)]
    yes: bool,
    /// Run this command, and undo the change when it ends [default: until Ctrl-C].
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Applies the change, waits, and undoes it.
///
/// # Errors
/// If the change is refused or a step of it fails; then nothing stays changed.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let (files, note) = (options.machine.files(), options.machine.note());
    if leftover(&note) {
        bail!(rackpool_dca::hardware::HardwareError::Leftover(note));
    }
    let mut registers = options.machine.registers();
    let state = State::of(&files);
    let plan = plan(options, &state)?;
    if plan.is_empty() {
        outln!("nothing to change: it is as asked")?;
        return Ok(());
    }
    rackpool_output::print(format_args!("{plan}"))?;
    if !options.yes {
        bail!(UsageError::new("nothing was changed: --yes does it"));
    }
    // Before the first change: a signal from here on ends the wait, not this process.
    let interrupts = Interrupts::catch()?;
    let held = Held::apply(&plan, &files, &mut registers, &note)?;
    let ended = wait(options, &interrupts);
    tell_left(&held.undo()?)?;
    outln!("restored")?;
    ended
}

fn plan(options: &Options, state: &State) -> anyhow::Result<Plan> {
    let mut registers = options.machine.registers();
    let plan = match options.ways {
        Some(ways) => Plan::ways(state, &mut registers, ways)?,
        None if options.keep_programs_out => Plan::default(),
        None => bail!(UsageError::new("give --ways N, --keep-programs-out, or both")),
    };
    if !options.keep_programs_out {
        return Ok(plan);
    }
    let now = state.ways(&mut registers)?.into_iter().map(|(_, mask)| mask.0);
    let then = plan.registers.iter().map(|change| change.new.0);
    let devices = WayMask(now.chain(then).fold(0, |all, mask| all | mask));
    Ok(plan.without_programs(state, devices)?)
}

fn wait(options: &Options, interrupts: &Interrupts) -> anyhow::Result<()> {
    let Some((program, arguments)) = options.command.split_first() else {
        outln!("in force until Ctrl-C")?;
        interrupts.wait(|| None::<()>)?;
        return Ok(());
    };
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("can't run {program}"))?;
    let ended = interrupts.wait(|| child.try_wait().transpose())?;
    match ended {
        Some(status) => match status? {
            status if status.success() => Ok(()),
            status => bail!("{program} ended with {status}"),
        },
        None => {
            child.kill()?;
            child.wait()?;
            bail!("interrupted: {program} was ended")
        }
    }
}
