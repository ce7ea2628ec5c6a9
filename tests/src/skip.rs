//! Reports tests that cannot run on this machine.

pub use rackpool_skip::skipped;
