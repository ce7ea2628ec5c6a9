//! An object store of the pool for clients of Apache Arrow's Plasma: `rackpool-plasma`.
//!
//! docs/design/plasma.md describes the layers and what happens at each crash.
#![forbid(unsafe_code)]

pub mod eviction;
pub mod machine;
pub mod protocol;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

mod shell;

pub use shell::{PlasmaOptions, run};
