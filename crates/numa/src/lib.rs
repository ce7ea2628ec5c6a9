//! The effect of NUMA placement on one-sided operations, measured over the fabrics of rackpool: the
//! experiment of J. Nelson and R. Palmieri, "Performance Evaluation of the Impact of NUMA on
//! One-sided RDMA Interactions", SRDS 2020 (sections below are of this article).
//!
//! A [`study()`] measures a [`Configuration`] with the registered memory on the card's node and on
//! another one, in turn, and compares the two. `docs/design/numa-study.md` describes the method.
//!
//! | module | holds |
//! |---|---|
//! | `configuration`, `presets`, `lists` | what is measured |
//! | `topology`, `placement`, `memory` | the two nodes, and the proof that memory lies there |
//! | `session`, `server`, `connection`, `one_sided`, [`kv`], `background` | one measurement |
//! | `measurement`, `statistics`, `study` | what it counts, and what follows |
//! | [`latency`] | latencies of memory, for the prediction |
//! | [`model`], [`published`] | a study without two nodes; published values |
//!
//! ```
//! use rackpool_model::FabricKind;
//! use rackpool_numa::*;
//!
//! # fn main() -> Result<(), StudyError> {
//! let options = StudyOptions {
//!     fabric: FabricKind::Emulated,
//!     rdma_device: None,
//!     topology: None,
//!     model: Some(Model { dilation: 20 }),
//!     length: Length::Operations(10),
//!     pairs: 2,
//!     negligible: 0.01,
//!     client_threads: 1,
//!     window: 16,
//!     client: ClientPlacement::on(NodeChoice::Local),
//! };
//! let grid = Grid { queue_pairs: vec![1], ..Figure::LatencyRatio.grid(0) };
//! for configuration in grid.configurations()? {
//!     let outcome = study(&options, &configuration, |_, _| {})?;
//!     assert_eq!(outcome.placements.len(), 2);
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod background;
mod configuration;
mod connection;
mod error;
mod fabrics;
pub mod kv;
pub mod latency;
mod lists;
mod measurement;
mod memory;
pub mod model;
mod one_sided;
mod placement;
mod presets;
pub mod published;
mod server;
mod session;
mod statistics;
mod study;
mod threads;
mod topology;

pub use configuration::{
    Configuration, Grid, Load, LoopKind, MAX_BYTES, MAX_CONFIGURATIONS, MAX_QUEUE_PAIRS,
    MAX_THREADS, NameError, Workers, Workload,
};
pub use error::StudyError;
pub use latency::MemoryLatencies;
pub use lists::{NumberList, NumberListError};
pub use measurement::{Latency, Measurement};
pub use model::Model;
pub use placement::{
    ClientPlacement, NodeChoice, NodeChoiceError, NodeSurvey, Placement, Side, require_node,
};
pub use presets::Figure;
pub use statistics::{Direction, RatioInterval, Verdict};
pub use study::{
    Comparison, Length, MAX_PAIRS, MAX_WINDOW, Outcome, PlacementOutcome, StudyOptions, study,
};
pub use topology::{NodeSelection, StudyNode, Topology};
