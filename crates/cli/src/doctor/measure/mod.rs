//! What things cost on this computer. Each figure but that of a wake is the best of several short
//! runs, because whatever disturbs a run makes it slower; nothing is claimed that was not measured.

mod cores;
mod memory;

use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

pub use cores::PingPong;
pub use memory::MemoryMeasurements;

use super::facts::Facts;

/// How long measuring may take. What is not done by then is said to be not measured.
const BUDGET: Duration = Duration::from_secs(6);

/// A figure, or why there is none.
pub type Measured<T> = Result<T, String>;

/// What was measured.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// Memory: from each node with processors to each node with memory, in each size of page.
    pub memory: Vec<MemoryMeasurements>,
    /// A cache line that goes to another core, one way.
    pub ping_pong: Vec<PingPong>,
    /// From the call that wakes a thread on another core until it runs, in ns; the median.
    pub futex_wake_ns: Measured<f64>,
    /// The shortest system call, in ns.
    pub syscall_ns: f64,
    /// How long measuring took.
    pub took: Duration,
}

/// Measures everything.
#[must_use]
pub fn all(facts: &Facts) -> Measurements {
    let start = Instant::now();
    let syscall_ns = cores::syscall_ns();
    let ping_pong = cores::ping_pongs(&facts.usable_cpus);
    let futex_wake_ns = cores::futex_wake_ns(&facts.usable_cpus);
    let memory = memory::all(facts, start + BUDGET);
    Measurements { memory, ping_pong, futex_wake_ns, syscall_ns, took: start.elapsed() }
}

/// Keeps the calling thread on a processor.
fn pin(cpu: u32) -> Measured<()> {
    let mut set = CpuSet::new();
    usize::try_from(cpu)
        .map_err(|_| nix::Error::EINVAL)
        .and_then(|cpu| set.set(cpu))
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| format!("can't run on CPU {cpu}: {error}"))
}

/// The nanoseconds that each of `count` operations took.
fn ns_each(start: Instant, count: u32) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
}

/// The best of several runs.
fn least(runs: impl Iterator<Item = f64>) -> f64 {
    runs.fold(f64::INFINITY, f64::min)
}
