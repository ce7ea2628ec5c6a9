//! The Yahoo! Cloud Serving Benchmark (YCSB), with its workloads A to F and property files, for any
//! key-value store.
//!
//! Keys, field rules, mixes and distributions follow YCSB's own `CoreWorkload`
//! (<https://github.com/brianfrankcooper/YCSB>, Cooper et al., SoCC 2010), so that results are
//! comparable with those of other systems.
//!
//! A run is: [`YcsbOptions`] (command line) -> [`Plan`] (checked) -> [`run`] over a
//! [`StoreFactory`] -> [`Session`] (results, serializable) -> [`render`] (table); `rackpool-report`
//! makes plots and a page of them.
//!
//! | store | records in |
//! |---|---|
//! | [`PoolStores`] | a key-value table of a pool, from each of its racks |
//! | [`RespStores`] | a server that speaks Redis' protocol |
//! | [`MemoryStores`] | a map of this process |
//!
//! [`TraceRecorder`] notes which pages the accesses of [`PoolStores`] use.
//!
//! ```
//! use rackpool_ycsb::{MemoryStores, Progress, Style, WorkloadName, YcsbOptions, render, run};
//!
//! let options = YcsbOptions {
//!     workloads: vec![WorkloadName::A],
//!     records: 100,
//!     operations: 1000,
//!     threads: 2,
//!     verify: true,
//!     ..YcsbOptions::default()
//! };
//! let session = run(&options.plan()?, &MemoryStores::default(), Progress::new(true))?;
//! assert!(session.problems().is_empty());
//! println!("{}", render(&session, Style::Plain));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod chooser;
mod command;
mod counter;
mod fields;
mod generator;
mod key;
mod latency_recorder;
mod memory_store;
mod payload;
mod plan;
mod pool_stores;
mod progress;
mod properties;
mod resp;
mod run_error;
mod runner;
mod scan;
mod store;
mod summary;
mod table;
mod target;
mod timeline;
mod trace_recorder;
mod worker;
mod workload;
mod ycsb_options;

pub use command::{CommandError, command};
pub use fields::{Layout, LayoutError};
pub use generator::{Uniform, Zipfian};
pub use key::{KeyName, KeyStyle};
pub use memory_store::MemoryStores;
pub use plan::{Plan, PlanError};
pub use pool_stores::{Place, PoolStores};
pub use progress::Progress;
pub use properties::PropertyError;
pub use rackpool_output::Style;
pub use resp::RespStores;
#[cfg(feature = "fuzzing")]
pub use resp::fuzzing;
pub use run_error::RunError;
pub use runner::run;
pub use store::{FieldStore, Fields, Pairs, Store, StoreError, StoreFactory, ValueStore};
pub use summary::{
    Bucket, LatencySummary, OperationResult, RackResult, Sample, Session, WorkloadResult,
};
pub use table::render;
pub use target::{Server, Target, TargetError};
pub use trace_recorder::{RecordedPool, TraceRecorder};
pub use workload::{Distribution, Mix, Operation, ScanLengths, Workload, WorkloadName};
pub use ycsb_options::YcsbOptions;
