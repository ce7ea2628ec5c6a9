//! The Yahoo! Cloud Serving Benchmark (YCSB), with its workloads A to F and property files, for any
//! key-value store.
//!
//! Keys, field rules, mixes and distributions follow YCSB's own `CoreWorkload`
//! (<https://github.com/brianfrankcooper/YCSB>, Cooper et al., SoCC 2010), so that results are
//! comparable with those of other systems.
//!
//! A run is: [`Options`] (command line) -> [`Plan`] (checked) -> [`run`] over a [`StoreFactory`] ->
//! [`Session`] (results, serializable) -> [`render`] (table) or `report::write` (plots and HTML).

mod chooser;
mod command;
mod counter;
mod fields;
mod generator;
mod key;
mod options;
mod payload;
mod plan;
mod progress;
mod properties;
mod recorder;
mod resp;
mod runner;
mod scan;
mod store;
mod summary;
mod table;
mod target;
mod text;
mod timeline;
mod worker;
mod workload;

#[cfg(test)]
pub(crate) mod memory_store;

pub use command::{CommandError, command};
pub use fields::{Layout, LayoutError};
pub use key::{KeyName, KeyStyle};
pub use options::Options;
pub use plan::{Plan, PlanError};
pub use progress::Progress;
pub use properties::PropertyError;
pub use resp::RespStores;
#[cfg(feature = "fuzzing")]
pub use resp::fuzzing;
pub use runner::{RunError, run};
pub use store::{FieldStore, Fields, Pairs, Store, StoreError, StoreFactory, ValueStore};
pub use summary::{
    Bucket, LatencySummary, OperationResult, RackResult, Sample, Session, WorkloadResult,
};
pub use table::{Style, render};
pub use target::{Server, Target, TargetError};
pub use workload::{Distribution, Mix, Operation, ScanLengths, Workload, WorkloadName};

pub(crate) use generator::{Uniform, Zipfian};
pub(crate) use text::{counted, grouped, latency, rounded};
