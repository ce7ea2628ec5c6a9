//! What the programs of rackpool write to standard output and standard error.
//!
//! A server must not depend on the reader of its log. The server puts its lines into a bounded
//! queue, and a dedicated thread writes them. A line that can't be written (the disk is full, the
//! pipe is not read or has no reader) is dropped and counted; when writing works again, a line
//! reports the number of lost lines. [`run_server`] sets this up for logs, panics and the last
//! error; [`banner`] is the same for standard output. docs/design/seeing.md has the rules.
//!
//! A command prints with [`outln!`] and ends quietly when its reader has gone: [`run_command`].
//! [`numbers`], [`clock`] and [`Style`] format what commands print for people.
#![forbid(unsafe_code)]

pub mod clock;
mod command;
mod failure;
pub mod numbers;
mod queue;
mod server;
mod style;

pub use command::{OutputError, print, print_bytes, run_command};
pub use failure::{UsageError, chain};
pub use queue::{banner, flush, lost_lines, note};
pub use server::run_server;
pub use style::Style;
