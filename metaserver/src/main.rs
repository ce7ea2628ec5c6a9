//! `rackpool-metaserver`: the metadata server's process.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use nix::sys::signal::SigSet;
use rackpool_metaserver::Options;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

fn main() -> ExitCode {
    // Whoever started it may have blocked the signals that end it, which is inherited.
    let _ = SigSet::all().thread_unblock();
    let options: Options = rackpool_config::parse("metaserver");
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter.from_env_lossy())
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the event loop")?;
    runtime.block_on(rackpool_metaserver::serve(options))?;
    Ok(())
}
