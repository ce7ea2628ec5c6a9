//! Benchmarks of rackpool, each beside its limit.
//!
//! `limits` measures what an issue or the design sets a limit for: figure and limit stand side by
//! side, both sides of a ratio are measured in turn in one run, and medians are compared, because
//! the machines we have are shared and noisy. `primitives` times the small parts with criterion.
//!
//! ```sh
//! cargo x bench                 # everything
//! cargo x bench local kv        # some sections of `limits`
//! ```
#![forbid(unsafe_code)]

mod cpu;
pub mod idle;
pub mod kv;
pub mod local;
pub mod measure;
pub mod remote;
pub mod table;
