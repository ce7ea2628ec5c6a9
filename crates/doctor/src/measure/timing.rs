//! What all measurements share.

use std::time::Instant;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// A measured value, or why there is none.
pub type Measured<T> = Result<T, String>;

/// Pins the calling thread to a processor.
pub(super) fn pin(cpu: u32) -> Measured<()> {
    let mut set = CpuSet::new();
    usize::try_from(cpu)
        .map_err(|_| nix::Error::EINVAL)
        .and_then(|cpu| set.set(cpu))
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .map_err(|error| format!("can't run on CPU {cpu}: {error}"))
}

/// Returns the nanoseconds for each of `count` operations since `start`.
pub(super) fn ns_each(start: Instant, count: u32) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
}

/// Returns the best of several runs.
pub(super) fn least(runs: impl Iterator<Item = f64>) -> f64 {
    runs.fold(f64::INFINITY, f64::min)
}
