//! Communication between the threads of a client and the daemon of its rack. Requests go through a
//! lock-free ring, answers through one cell for each outstanding call. Both are in the client's
//! file.
//!
//! | module | holds |
//! |---|---|
//! | [`request`] | the request ring: the threads of one client push, the daemon pops |
//! | [`data`] | the data ring: the bytes of requests that leave the rack |
//! | [`call`] | call cells: a thread waits here for its answer, first spinning, then asleep |
//! | [`reservation`] | records of objects that a program has and that nothing points to |
//! | [`objects`] | the steps by which objects move through the arrays of a thread slot |
//! | [`magazine`] | the owner's view of a magazine, a thread's free objects of one size class |
//! | [`magazines`] | all magazines of a thread |
//! | [`line_cache`] | lines of other racks that a thread has locked |
//! | [`client_file`] | the layout of a client's file and the slots of its threads |
//!
//! Each client has two request rings. Requests that stay in the rack go through the first one.
//! Requests that leave the rack go through the second one, whose entries refer to the data ring.
//! Answers arrive in any order, so a slow request does not delay others.
#![cfg_attr(not(loom), expect(unsafe_code, reason = "lays its structures over shared memory"))]

pub mod call;
#[cfg(not(loom))]
pub mod client_file;
pub mod data;
#[cfg(not(loom))]
pub mod line_cache;
pub mod magazine;
#[cfg(not(loom))]
pub mod magazines;
pub mod objects;
pub mod pins;
pub mod request;
pub mod reservation;
pub mod sparse_array;
