//! Standard output of commands.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::queue::flush;
use crate::server::exit_code;

/// Why a command can't print.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The reader of the pipe has ended, like `head` after its lines. This is not a failure.
    #[error("nobody reads the output any more")]
    ReaderGone,
    /// The file or device refuses the write.
    #[error("can't write to standard output: {0}")]
    Refused(io::Error),
}

/// Prints to standard output. [`outln!`](crate::outln) prints a line.
///
/// # Errors
/// When the reader has gone, or the output can't be written.
pub fn print(text: fmt::Arguments<'_>) -> Result<(), OutputError> {
    let mut output = io::stdout().lock();
    result_of(output.write_fmt(text).and_then(|()| output.flush()))
}

/// Writes bytes of any kind to standard output.
///
/// # Errors
/// As [`print()`].
pub fn print_bytes(bytes: &[u8]) -> Result<(), OutputError> {
    let mut output = io::stdout().lock();
    result_of(output.write_all(bytes).and_then(|()| output.flush()))
}

fn result_of(written: io::Result<()>) -> Result<(), OutputError> {
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => OutputError::ReaderGone,
        _ => OutputError::Refused(error),
    })
}

/// Prints a line to standard output. Returns an [`OutputError`] where `println!` panics.
#[macro_export]
macro_rules! outln {
    () => { $crate::print(format_args!("\n")) };
    ($format:literal $($rest:tt)*) => {
        $crate::print(format_args!("{}\n", format_args!($format $($rest)*)))
    };
}

/// Runs a command and prints its error to standard error. A command whose reader has gone ends with
/// success and without a message.
pub fn run_command(name: &str, run: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    let result = run().or_else(|error| {
        let is_gone = |cause: &(dyn Error + 'static)| {
            matches!(cause.downcast_ref(), Some(OutputError::ReaderGone))
        };
        if error.chain().any(is_gone) { Ok(()) } else { Err(error) }
    });
    let code = exit_code(name, result);
    flush();
    code
}
