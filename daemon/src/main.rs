//! The `rackpool-daemon` program.

use std::io::IsTerminal;

use nix::sys::signal::SigSet;
use tracing_subscriber::EnvFilter;

fn main() -> std::process::ExitCode {
    // Whoever started it may have blocked the signals that end it, which is inherited.
    let _ = SigSet::all().thread_unblock();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let options: rackpool_daemon::Options = rackpool_config::parse("daemon");
    match rackpool_daemon::run(&options) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rackpool-daemon: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
