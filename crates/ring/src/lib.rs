//! How the threads of a client and the daemon of its rack talk: requests through a lock-free
//! ring, answers through one cell for each outstanding call, both in the client's own file.
//!
//! | module | holds |
//! |---|---|
//! | [`request`] | the polling ring: many threads of one client push, the daemon pops |
//! | [`data`] | the data ring: where the bytes of requests that leave the rack are |
//! | [`call`] | call cells: where an answer arrives and its thread waits, first looking, then asleep |
//! | [`reservation`] | objects that a program has and that nothing points to |
//! | [`objects`] | the steps by which objects go through the arrays of a thread slot |
//! | [`magazine`] | what the owner of a magazine, a thread's free objects of one size, knows of it |
//! | [`magazines`] | all magazines of a thread, resolved once |
//! | [`client_file`] | the layout of a client's file and the slots of its threads |
//!
//! Each client has two request rings. Requests that only touch the rack go through the first, a
//! plain one; requests that leave the rack go through the second, whose entries point into the
//! data ring. Answers come in any order, so a slow request blocks nobody.
#![cfg_attr(not(loom), expect(unsafe_code, reason = "lays its structures over shared memory"))]

pub mod call;
#[cfg(not(loom))]
pub mod client_file;
pub mod data;
pub mod magazine;
#[cfg(not(loom))]
pub mod magazines;
pub mod objects;
pub mod request;
pub mod reservation;
