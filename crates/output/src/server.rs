//! The common setup and end of a server's `main`.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::chain;
use crate::failure::UsageError;
use crate::queue::{Line, flush, note};

/// Runs a server. Its log (filtered by `RUST_LOG`, `info` if unset), its panics and its last error
/// go to standard error; writing them neither blocks nor ends the server. The limit of open files
/// is raised to the hard limit, because each client takes some.
pub fn run_server(name: &str, serve: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Line::new)
        .with_ansi(std::io::stderr().is_terminal() && !no_color)
        .init();
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let mut line = Line::new();
        // Writing to a `Line` does not fail.
        let _ = writeln!(line, "the thread '{name}' panicked: {panic}");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            let _ = writeln!(line, "{backtrace}");
        }
        drop(line);
        flush();
    }));
    raise_file_limit();
    let code = exit_code(name, serve());
    flush();
    code
}

/// Raises the soft limit of open files to the hard limit. The low soft limit only protects programs
/// that use `select`.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::warn!("the limit of open files is not raised: {error}");
    }
}

/// Prints the error of a failed program and returns the exit code.
pub(crate) fn exit_code(name: &str, result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    note(format_args!("{name}: {}", chain(error.as_ref())));
    if error.chain().any(|cause| cause.is::<UsageError>()) {
        u8::try_from(UsageError::STATUS).map_or(ExitCode::FAILURE, ExitCode::from)
    } else {
        ExitCode::FAILURE
    }
}
