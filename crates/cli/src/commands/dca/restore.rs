//! `rackpool dca restore`.

use rackpool_dca::hardware::{leftover, restore};
use rackpool_output::outln;

use super::machine::{Machine, tell_left};

/// What is restored.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: Machine,
}

/// Undoes the change of a killed `set`.
///
/// # Errors
/// If a value can't be restored.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let note = options.machine.note();
    if !leftover(&note) {
        outln!("nothing to restore")?;
        return Ok(());
    }
    let left = restore(&options.machine.files(), &mut options.machine.registers(), &note)?;
    tell_left(&left)?;
    outln!("restored")?;
    Ok(())
}
