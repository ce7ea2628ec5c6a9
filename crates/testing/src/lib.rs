//! What tests of several crates share. No program imports it.
//!
//! | module | holds |
//! |---|---|
//! | [`files`] | a temporary folder of given files |
//! | [`log`] | the lines that this process logs |
//! | [`skip`] | reports a test that cannot run on this machine |
//! | [`stop`] | stops threads when a test ends |
//! | [`wait`] | waiting for conditions, with deadlines |
//!
//! Random numbers with a seed are `rackpool_sync::SplitMix64`, which programs use too.
#![forbid(unsafe_code)]

pub mod files;
pub mod log;
pub mod skip;
pub mod stop;
pub mod wait;

pub use files::folder_of;
pub use skip::skipped;
pub use stop::StopAtEnd;
