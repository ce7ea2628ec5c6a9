//! What the NUMA node of registered memory costs one-sided operations, measured on this host or on
//! the model of the emulated fabric.
//!
//! The experiments are those of Nelson and Palmieri, "Performance Evaluation of the Impact of NUMA
//! on One-sided RDMA Interactions" (SRDS 2020). A server has registered memory; clients read or
//! write it through queue pairs of their own. Each [`Experiment`] is run in pairs, with the memory
//! on the card's node and on another one; the result is the ratio of the two with its confidence
//! interval. docs/design/numa-study.md has the method.
//!
//! ```no_run
//! use rackpool_numa::{Experiment, Host, Study};
//!
//! # fn main() -> anyhow::Result<()> {
//! let study = Study { host: Host::Model { dilation: 20 }, ..Study::default() };
//! let outcome = study.run(&Experiment::default())?;
//! println!("{:.3} of the time, {}", outcome.ratio.mean, outcome.verdict(0.01));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod background;
mod connection;
mod experiment;
mod fabrics;
pub mod figures;
mod latency;
mod measurement;
mod memory;
mod pinned;
pub mod published;
mod ratio;
pub mod request;
mod server;
mod study;

pub use experiment::{Experiment, Kind, Pacing, Workers};
pub use fabrics::Provider;
pub use measurement::Measurement;
pub use ratio::{MAX_PAIRS, Ratio, Verdict};
pub use study::{Host, Outcome, Study};
