//! Connections, and the threads that serve them: an event loop each.
//!
//! | module | holds |
//! |---|---|
//! | `input`, `connection` | the input of a connection, and the execution of its requests |
//! | `stream`, `listeners` | sockets of both kinds |
//! | `same_user_gate` | the thread that accepts connections |
//! | `mailbox` | connections and results of long commands on their way to a thread |
//! | `long_commands` | the threads for long commands |
//! | `worker` | the event loop |

mod connection;
mod input;
mod listeners;
mod long_commands;
mod mailbox;
mod same_user_gate;
mod stream;
mod worker;

pub use listeners::Listeners;
pub use long_commands::{LONG_THREADS, LongThread, ToLong};
pub use mailbox::Mailbox;
pub use same_user_gate::Door;
pub use worker::Worker;
