//! The service around the machine: its sockets, its store, its threads.
//!
//! | module | is |
//! |---|---|
//! | `options` | the command line |
//! | `lifecycle` | start and end |
//! | `private_pool` | the pool of a service that is given none |
//! | `listener` | the socket |
//! | `server` | the event loop |
//! | `connection` | a client's socket: bytes in, bytes and the descriptor out |
//! | `subscription` | a subscriber's socket |
//! | `descriptors` | bytes and descriptors through sockets |
//! | `store_memory` | the objects of a store as the machine uses them |
//! | `look_ups` | threads that ask the pool for objects |

mod connection;
mod descriptors;
mod lifecycle;
mod listener;
mod look_ups;
mod options;
mod private_pool;
mod server;
mod store_memory;
mod subscription;

pub use lifecycle::run;
pub use options::PlasmaOptions;
