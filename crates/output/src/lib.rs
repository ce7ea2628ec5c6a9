//! What the programs of rackpool write to standard output and standard error.
//!
//! A server must not depend on the reader of its log. Its lines go to a bounded queue, and a thread
//! of its own writes them. A line that can't be written (a full disk, a pipe that nobody reads or
//! whose reader has gone) is dropped and counted; when writing works again, a line says how many
//! were lost. [`run_server`] sets that up for logs, panics and the last error; [`banner`] is the
//! same for standard output. docs/design/seeing.md has the rules.
//!
//! A command prints with [`outln!`] and ends quietly when its reader has gone: [`run_command`].
#![forbid(unsafe_code)]

mod command;
mod failure;
mod queue;
mod server;

pub use command::{OutputError, print, run_command};
pub use failure::{UsageError, chain};
pub use queue::{banner, flush, lost_lines, note};
pub use server::run_server;
