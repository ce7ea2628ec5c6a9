//! Tests that can't be done where they run.

pub use rackpool_skip::skipped;
