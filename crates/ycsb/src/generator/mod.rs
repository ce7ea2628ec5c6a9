//! YCSB's number generators: they choose the record of the next operation.
//!
//! All draw from a `rand` generator passed in, so one seed gives one sequence. YCSB's own random
//! numbers (`java.util.Random`) are not reproduced: the distributions agree, single draws do not.

mod acknowledged;
mod fnv;
mod latest;
mod scrambled;
mod uniform;
mod zipfian;

pub(super) use acknowledged::AcknowledgedCounter;
pub(super) use fnv::fnv_hash64;
pub(super) use latest::Latest;
pub(super) use scrambled::ScrambledZipfian;
pub use uniform::Uniform;
pub use zipfian::Zipfian;
