//! Connections: an event loop for each thread.
//!
//! | module | holds |
//! |---|---|
//! | `input`, `connection` | the bytes of a connection, and what is done with them |
//! | `stream`, `listeners` | sockets of both kinds |
//! | `door` | the thread that lets clients in |
//! | `mailbox` | connections on their way to the thread that serves them |
//! | `long` | the threads that do what would keep others waiting |
//! | `worker` | the event loop |

mod connection;
mod door;
mod input;
mod listeners;
mod long;
mod mailbox;
mod stream;
mod worker;

pub use door::Door;
pub use listeners::Listeners;
pub use long::{LONG_THREADS, LongThread, ToLong};
pub use mailbox::Mailbox;
pub use worker::Worker;
