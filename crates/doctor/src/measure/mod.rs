//! Measured costs of this computer. Each is the best of several short runs, since any disturbance
//! makes a run slower; only the wake time is a median. What was not measured is reported as such.

mod cores;
mod memory;
mod timing;

use std::time::{Duration, Instant};

pub use cores::PingPong;
pub use memory::MemoryMeasurements;
pub use timing::Measured;

use super::facts::Facts;

/// Time limit of all measurements; the rest is reported as not measured.
const BUDGET: Duration = Duration::from_secs(6);

/// All measurements.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// Memory, from each node with processors to each node with memory, in each page size.
    pub memory: Vec<MemoryMeasurements>,
    /// Transfers of a cache line to another core, one way.
    pub ping_pong: Vec<PingPong>,
    /// Median time from the call that wakes a thread on another core until that thread runs, in ns.
    pub futex_wake_ns: Measured<f64>,
    /// The time of the shortest system call in ns.
    pub syscall_ns: f64,
    /// Duration of the measurements.
    pub took: Duration,
}

/// Runs all measurements.
#[must_use]
pub fn all(facts: &Facts) -> Measurements {
    let start = Instant::now();
    let syscall_ns = cores::syscall_ns();
    let ping_pong = cores::ping_pongs(&facts.usable_cpus);
    let futex_wake_ns = cores::futex_wake_ns(&facts.usable_cpus);
    let memory = memory::all(facts, start + BUDGET);
    Measurements { memory, ping_pong, futex_wake_ns, syscall_ns, took: start.elapsed() }
}
