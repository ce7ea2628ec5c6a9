//! Connections, and the threads that serve them: an event loop each.
//!
//! | module | holds |
//! |---|---|
//! | `input`, `connection` | the input of a connection, and the execution of its requests |
//! | `stream`, `listeners` | sockets of both kinds |
//! | `acceptor` | the thread that accepts connections |
//! | `mailbox` | connections and results of long commands on their way to a thread |
//! | `long_commands` | the threads for long commands |
//! | `worker` | the event loop |

mod acceptor;
mod arriving;
mod connection;
mod input;
mod listeners;
mod long_commands;
mod mailbox;
mod stream;
mod worker;

pub use acceptor::Acceptor;
pub use listeners::Listeners;
pub use long_commands::{LONG_THREADS, LongThread, ToLong};
pub use mailbox::Mailbox;
pub use worker::Worker;
