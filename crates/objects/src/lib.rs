//! An object store whose every byte is in the pool: sequences of bytes of any size that are written
//! once, *sealed*, and from then on read in place.
//!
//! - [`Store`] is a named set of objects: open or create it, then create, put, get, list and delete
//!   objects.
//! - [`UnsealedObject`] is an object that its creator writes in place. If the creator is killed
//!   before it has sealed the object, the pool takes the memory back.
//! - [`View`] is a sealed object as a slice. A get of an object in the reader's rack copies nothing
//!   and costs the same for each size. The view *pins* the memory: it stays until the last view is
//!   dropped or its process ends, even if a program deletes the object meanwhile.
//!
//! There is no server: programs in all racks work on the store by loads, stores and one-sided
//! operations. The protocol and its correctness arguments are in `docs/design/objects.md`.
//!
//! ```no_run
//! use std::sync::Arc;
//! use rackpool_client::{ClientOptions, Pool, RackId};
//! use rackpool_objects::{CreateOptions, Store};
//!
//! let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?);
//! let store = Store::open_or_create(pool, "weights")?;
//!
//! let mut layer = store.create(b"layer-1", 100 << 20, &CreateOptions::default())?;
//! layer.fill(7);
//! layer.seal()?;
//!
//! let view = store.get(b"layer-1")?.expect("it was sealed");
//! assert_eq!(view[12_345], 7);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A module imports only from modules above its own in this table:
//!
//! | module | contains |
//! |---|---|
//! | `checksum` | the checksum of an object |
//! | `error` | why an operation failed |
//! | `options` | [`StoreOptions`] |
//! | `stats` | [`StoreStats`] |
//! | `layout` | the bytes of the store's header, of heads and of registrations |
//! | `store` | [`Store`]: open and create; the handles of its tables |
//! | `view` | [`View`] |
//! | `unsealed` | create, write, seal, abort |
//! | `protocol` | get and delete as steps on tables, registrations and heads |
//! | `chain` | how the bytes of an object come from other racks |
//! | `transfer` | its steps in the pool |
//! | `steps` | the steps of `protocol` in the pool |
//! | `get` | get and contains |
//! | `delete` | delete |
//! | `survey` | the memory of a store in the own rack, and what may be evicted of it |
//! | `evict` | allocation of memory, capacity, eviction, time to live |
//! | `spill` | objects that make room move to files, and come back |
//! | `repair` | what is left of objects whose memory is lost |
//! | `list` | list and stat |
//! | `explain`, `usage` | what is known of an id; what a store takes in each rack |
//! | `remove` | removal of a whole store |
//! | `wait` | calls for several objects |
//! | `subscription` | [`Subscription`]: what is sealed and deleted |
//! | `cast` | [`Store::cast`]: copies an object into many racks; [`CastAgent`] |
//! | `group` | [`GroupRoot`], [`GroupMember`]: a stream of messages to many racks |
//! | `walk` | all pool objects of a store |
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod cast;
mod chain;
mod checksum;
mod delete;
mod error;
mod evict;
mod explain;
#[cfg(test)]
mod exploration;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod get;
mod group;
mod layout;
mod list;
mod options;
mod protocol;
mod remove;
mod repair;
mod spill;
mod stats;
mod steps;
mod store;
mod subscription;
mod survey;
mod transfer;
mod unsealed;
mod usage;
mod view;
mod wait;
mod walk;

pub use cast::{
    AgentEvent, CastAgent, CastFailure, CastOptions, CastProgress, CastReport, CastSchedule,
    CastVisibility,
};
pub use error::StoreError;
pub use explain::{ExplainedObject, ExplainedRegistration, ExplainedReplica, Explanation};
pub use group::{
    GroupFailure, GroupMember, GroupOptions, GroupOutcome, GroupReport, GroupRoot, Message,
    Received,
};
pub use layout::header::begins_store;
pub use list::{ObjectInfo, ObjectStat};
pub use options::{EvictionPolicy, StoreOptions};
pub use stats::StoreStats;
pub use store::Store;
pub use subscription::{StoreEvent, Subscription};
pub use unsealed::{CreateOptions, UnsealedObject};
pub use usage::{RackUsage, StoreUsage, UsageOrder, UsedObject};
pub use view::View;
pub use walk::walk_store;
