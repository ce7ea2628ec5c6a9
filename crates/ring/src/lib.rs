//! How the threads of a client and the daemon of its rack talk: requests through a lock-free
//! ring, answers through one cell for each outstanding call, both in the client's own file.
//!
//! | module | holds |
//! |---|---|
//! | [`request`] | the polling ring: many threads of one client push, the daemon pops |
//! | [`call`] | call cells: where an answer arrives and its thread waits, first looking, then asleep |
//! | [`client_file`] | the layout of a client's file and the slots of its threads |
//!
//! Each client has two request rings. Requests that only touch the rack go through the first;
//! requests that leave the rack go through the second, and point to their bytes in the data area
//! of their thread. Answers come in any order, so a slow request blocks nobody.
#![cfg_attr(not(loom), expect(unsafe_code, reason = "lays its structures over shared memory"))]

pub mod call;
#[cfg(not(loom))]
pub mod client_file;
pub mod request;
