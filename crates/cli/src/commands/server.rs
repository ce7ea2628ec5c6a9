//! `rackpool metaserver` and `rackpool daemon`: the programs beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::anyhow;
use rackpool_cluster::find_program;
use rackpool_config::ConfigFile;

/// What the program is told.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Options of the program. `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

/// Replaces this process by the program.
pub(crate) fn run(
    program: &'static str,
    config: &ConfigFile,
    options: &Options,
) -> anyhow::Result<()> {
    let mut command = Command::new(find_program(program)?);
    if let Some(file) = &config.config {
        command.arg("--config").arg(file);
    }
    Err(anyhow!("can't start {program}: {}", command.args(&options.options).exec()))
}
