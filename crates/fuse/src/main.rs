//! The `rackpool-fuse` program.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

fn main() -> std::process::ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let options: rackpool_fuse::Options = rackpool_config::parse("fuse");
    match rackpool_fuse::run(&options) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rackpool-fuse: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
