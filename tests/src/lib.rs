//! Process tests of rackpool: real daemons, real clients, real kills.
//!
//! | module | holds |
//! |---|---|
//! | [`pool`] | a small pool of real processes for one test |
//! | [`client`] | driving a client that is a process of its own, and killing it |
//! | [`program`] | what that process does: `rackpool-test-client` |
//! | [`census`] | every object in use, as the racks' metadata says |
//! | [`announced`] | what a churning client said it holds |
//! | [`contents`] | bytes that tell whose they are |
//! | [`wait`] | waiting for conditions, with deadlines |
#![forbid(unsafe_code)]

pub mod announced;
pub mod census;
pub mod client;
pub mod contents;
pub mod pool;
pub mod program;
pub mod wait;
