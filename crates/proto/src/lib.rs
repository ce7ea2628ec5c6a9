//! The protocols of rackpool as pure state machines.
//!
//! Every machine has one shape: the shell passes events to `handle(now, event)`, executes the
//! actions that `poll()` returns, and calls again at the time that `deadline()` returns. A machine
//! has no clock, thread, socket, randomness or unordered iteration, so the same events always give
//! the same actions and a failure can be replayed. Events are named in the past tense, actions in
//! the imperative.
//!
//! | module | holds |
//! |---|---|
//! | [`directory`] | which rack is the home of a page |
//! | [`membership`] | which racks are alive |
//! | [`metadata`] | the metadata server: both of these, and named addresses |
//! | [`exchange`] | objects that racks allocate in and return to each other, exactly once |
//! | [`group`] | a stream of messages from one program to others in many racks |
//! | [`heat`] | hotness of pages in a rack |
//! | [`lease`] | location leases: which racks may access a page one-sided |
//! | [`lock`] | locks of cache lines |
//! | [`multicast`] | an object that is copied from one rack to many, in blocks |
//! | [`publication`] | recovery of reservations: resolution of publications in doubt |
//! | [`rack`] | everything a rack decides: owns the machines of exchanges, leases and swaps |
//! | [`retirement`] | when the memory of retired objects is reused |
//! | [`share`] | read-only replicas of shared pages |
//! | [`swap`] | page swaps between two racks |
//! | [`planted_bugs`] | bugs that the simulator's tests plant |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod directory;
pub mod exchange;
pub mod group;
pub mod heat;
pub mod lease;
mod location;
pub mod lock;
pub mod membership;
pub mod metadata;
pub mod multicast;
pub mod planted_bugs;
pub mod publication;
pub mod rack;
pub mod retirement;
pub mod share;
pub mod swap;
mod time;

pub use location::Located;
pub use time::Time;
