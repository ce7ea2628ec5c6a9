//! Requests of an operator to the servers of a pool.
//!
//! | server | reached over | requests |
//! |---|---|---|
//! | metadata server | TCP, with credentials if it is not on this host | [`MetadataServer`] |
//! | rack daemon of this host | its Unix socket | [`rack_status`] and the other functions |
//!
//! [`look_at_racks`] asks all racks of a pool.
//!
//! ```no_run
//! use rackpool_admin::{MetadataServer, look_at_racks};
//!
//! let pool = MetadataServer::at("127.0.0.1:7400").status()?;
//! for rack in look_at_racks(&pool, 0) {
//!     println!("{}: {}", rack.member.rack, rack.state.name());
//! }
//! # Ok::<(), anyhow::Error>(())
//! ```
#![forbid(unsafe_code)]

mod daemon;
mod metadata_server;
mod racks;
mod timeout;

pub use daemon::{page_history, put_root, rack_status, top_pages};
pub use metadata_server::{LocatedPages, MetadataServer};
pub use racks::{MemberReach, RackHealth, RackLook, look_at_racks, own_addresses, reach};
