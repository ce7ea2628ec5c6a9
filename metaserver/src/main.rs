//! `rackpool-metaserver`: the metadata server's process.

use std::process::ExitCode;

use anyhow::Context;
use nix::sys::signal::SigSet;
use rackpool_metaserver::MetadataServerOptions;
use rackpool_output::UsageError;

fn main() -> ExitCode {
    // The parent process may have blocked the signals that stop the server; the mask is inherited.
    let _ = SigSet::all().thread_unblock();
    rackpool_output::run_server("rackpool-metaserver", || run(rackpool_config::parse("metaserver")))
}

fn run(options: MetadataServerOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the event loop")?;
    runtime.block_on(rackpool_metaserver::serve(options)).map_err(|error| {
        if error.is_usage() { UsageError::new(error).into() } else { error.into() }
    })
}
