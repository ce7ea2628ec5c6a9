//! The protocols of rackpool as pure state machines.
//!
//! Every machine has one shape: `handle(now, event)` takes in what happened, `poll()` gives the
//! actions to carry out, `deadline()` the time by which it wants to be woken. Inside there is no
//! clock, thread, socket, randomness or unordered iteration, so that the same events always give
//! the same actions and a failure replays. Events are in the past tense, actions imperative.
//!
//! | module | holds |
//! |---|---|
//! | [`directory`] | which rack is the home of a page |
//! | [`membership`] | which racks are alive |
//! | [`metadata`] | the machine of the metadata server, made of both and of named addresses |
//! | [`heat`] | how much a rack uses which page |
//! | [`lease`] | who may use a page of another rack by one-sided operations |
//! | [`share`] | pages that many read and nobody writes |
//! | [`swap`] | how a hot page and a cold one change places |
//! | [`planted`] | bugs that the simulator's tests plant |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod directory;
pub mod heat;
pub mod lease;
pub mod membership;
pub mod metadata;
pub mod planted;
pub mod share;
pub mod swap;
mod time;

pub use time::Time;
