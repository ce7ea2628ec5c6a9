//! Times of accesses, and the unit of simulated time.

use crate::assumptions::{L2_NS, LLC_NS, MEMORY_NS, OTHER_SOCKET_NS};
use crate::machine::{DmaPath, Level};

/// Simulated time in picoseconds.
pub(crate) type Picoseconds = u64;

/// Converts nanoseconds to picoseconds; negative times become zero.
pub(crate) fn picoseconds(ns: f64) -> Picoseconds {
    whole(ns * 1000.0)
}

/// Rounds `value` to a whole number; negative values become zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is clamped to a range that u64 holds"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value.round().clamp(0.0, 1e18) as u64
}

/// Time of a line access of a device (ns).
pub(crate) fn device_ns(level: Level, path: DmaPath) -> f64 {
    match level {
        Level::L2 | Level::Llc => LLC_NS,
        Level::Memory => MEMORY_NS + remote_ns(path),
    }
}

/// Time of a line access of a core (ns).
pub(crate) fn core_ns(level: Level, path: DmaPath) -> f64 {
    match level {
        Level::L2 => L2_NS,
        Level::Llc => LLC_NS,
        Level::Memory => MEMORY_NS + remote_ns(path),
    }
}

/// Additional time of an access to memory over the interconnect of the sockets (ns).
fn remote_ns(path: DmaPath) -> f64 {
    if path == DmaPath::OtherSocket { OTHER_SOCKET_NS } else { 0.0 }
}
