//! A pool on this machine: a metadata server and rack daemons as child processes.
//!
//! [`ClusterOptions`] -> [`Cluster`], whose processes are a [`Child`] each; a [`Supervisor`]
//! restarts those that die. The children stop when their standard input ends, so none of them
//! outlives the process that started it, however that ends.
//!
//! ```no_run
//! use rackpool_cluster::{Cluster, ClusterOptions};
//!
//! let cluster = Cluster::start(ClusterOptions::ephemeral()?)?;
//! println!("clients open rack 0 of {}", cluster.options().dir.display());
//! cluster.stop()?;
//! # Ok::<(), anyhow::Error>(())
//! ```
#![forbid(unsafe_code)]

mod child;
mod cluster;
mod cluster_options;
mod pool_folder;
mod program;
mod supervisor;
mod wait;

pub use child::Child;
pub use cluster::Cluster;
pub use cluster_options::ClusterOptions;
pub use pool_folder::{address_file, metadata_address, racks_in, remove_abandoned, unique_name};
pub use program::find_program;
pub use supervisor::Supervisor;
pub use wait::wait_for;
