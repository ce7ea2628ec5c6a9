//! A model of a last-level cache (LLC) into which network cards write: Intel DDIO, also called
//! direct cache access.
//!
//! The model answers how many device writes and reads hit the cache, how much memory traffic they
//! cause, and how much received data leaves the cache before a core has read it ("leaky DMA"), for
//! a given number of DDIO ways, descriptors, cores, and packet size. It follows A. Farshin et al.,
//! "Reexamining Direct Cache Access", USENIX ATC 2020; [`published`] holds the paper's figures.
//!
//! # What is modelled
//!
//! - One socket: an LLC of sets and ways, a private L2 for each core, memory. Lines have 64 B.
//! - A device write of a line that is in any LLC way updates it there (a hit). Other lines are
//!   allocated in the DDIO ways (a miss) and evict a line from them. A device read never allocates.
//! - The LLC is not inclusive: a core access moves the line into the core's L2, and a line that the
//!   L2 evicts goes into any LLC way that the core's CAT mask allows.
//! - Device writes to the other socket, or with DDIO disabled, go to memory and invalidate cached
//!   copies.
//! - A [`Forwarder`] has a card and cores with RX rings and TX queues. Its card writes each packet,
//!   a core reads and rewrites the header, and the card reads the packet for sending. A core whose
//!   TX queue is full waits; a card whose RX ring is full drops packets or pauses the sender.
//! - A [`RandomReader`] is a cache-hungry program beside the forwarders.
//! - A recorded trace ([`Accesses`]) goes through the same caches with [`replay`].
//!
//! # What is assumed
//!
//! - Replacement is random and sets are selected by a hash. Least-recently-used replacement and
//!   linear indexing are options; with them the model does not reproduce the paper.
//! - A device write of a line that only an L2 holds counts as a hit and allocates in the DDIO ways.
//! - Two effects with several cores rest on constants of [`assumptions`]. First, with few TX queues
//!   the card sends slightly less than 100 Gbit/s; a load above that fills the TX queues, whose
//!   packets are additional buffers in flight. Second, a core that has caught up with its ring
//!   moves some lines of each packet through its L2. These lines end in any LLC way, where device
//!   writes hit them, until other lines that the L2s evict replace them.
//! - Latencies have no component for contention of memory channels, and absolute latencies are not
//!   calibrated. Compare them with each other only.
//!
//! # Example
//!
//! ```
//! use rackpool_dca::{Forwarder, MachineOptions, SimulationOptions, WayMask, simulate};
//!
//! # fn main() -> Result<(), rackpool_dca::OptionsError> {
//! let forwarder = Forwarder { descriptors: 2048, packet_bytes: 1500, ..Forwarder::default() };
//! let hit_percent = |ways| {
//!     let ddio_ways = WayMask::highest(ways, 11);
//!     let machine = MachineOptions { ddio_ways, ..MachineOptions::default() };
//!     let options = SimulationOptions { machine, warm_up_rounds: 4, rounds: 4 };
//!     let outcome = simulate(&options, std::slice::from_ref(&forwarder))?;
//!     Ok(outcome.total.write_hit_percent().unwrap_or(0.0))
//! };
//! assert!(hit_percent(2)? < 80.0);
//! assert!(hit_percent(4)? > 95.0);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod assumptions;
mod cache;
mod error;
mod event_loop;
mod forwarder;
pub mod hardware;
mod l2;
mod machine;
mod mask;
mod outcome;
mod port;
pub mod published;
mod requests;
mod rng;
mod simulate;
mod timing;

pub use cache::{Indexing, Replacement};
pub use error::{OptionsError, ParseError};
pub use forwarder::{Forwarder, RandomReader};
pub use machine::{DmaPath, LINE_BYTES, Level, Machine, MachineOptions};
pub use mask::{MAX_WAYS, WayMask};
pub use outcome::{Counters, ForwarderOutcome, Outcome};
pub use requests::{Access, AccessKind, Accesses, replay};
pub use simulate::{SimulationOptions, simulate, simulate_with_readers};
