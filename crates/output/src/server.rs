//! The frame of a server's `main`.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::chain;
use crate::failure::UsageError;
use crate::queue::{Line, flush, note};

/// Runs a server: its log goes to standard error (`RUST_LOG` chooses, `info` unless set), its
/// panics and its last error too. Nothing of that blocks the server or ends it. It may have as many
/// open files as its hard limit says: each client takes some.
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
        // A line takes all that is written.
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

/// The soft limit is for programs that use `select`.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        tracing::warn!("the limit of open files is not raised: {error}");
    }
}

/// Says why the program fails, if it does.
pub(crate) fn exit_code(name: &str, result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    note(format_args!("{name}: {}", chain(error.as_ref())));
    if error.chain().any(|cause| cause.is::<UsageError>()) {
        u8::try_from(UsageError::STATUS).map_or(ExitCode::FAILURE, ExitCode::from)
    } else {
        ExitCode::FAILURE
    }
}
