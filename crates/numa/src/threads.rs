//! Threads on the processors of a node, and waiting without a lock.

use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rackpool_sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::StudyError;

/// The limit of every wait of a study.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks of a wait that is not measured.
pub(crate) const GLANCE: Duration = Duration::from_micros(50);

/// Lets the calling thread, and the threads that it creates, run on these processors only. Without
/// processors nothing changes.
pub(crate) fn run_on(cpus: &[u32]) -> Result<(), StudyError> {
    if cpus.is_empty() {
        return Ok(());
    }
    let set = || -> nix::Result<()> {
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.set(usize::try_from(*cpu).map_err(|_| nix::Error::EINVAL)?)?;
        }
        sched_setaffinity(Pid::from_raw(0), &set)
    };
    set().map_err(|error| StudyError::system("run on the processors of a NUMA node")(error.into()))
}

/// What a polling thread does when it found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Polls again: every thread has a processor.
    Spin,
    /// Lets another thread run.
    Yield,
}

impl Idle {
    /// For busy threads and the processors on which they run, of each node and of the machine.
    pub(crate) fn for_threads(nodes: &[(u32, usize)]) -> Self {
        let fits = |(threads, processors): &(u32, usize)| {
            usize::try_from(*threads).is_ok_and(|threads| threads <= *processors)
        };
        if nodes.iter().all(fits) { Self::Spin } else { Self::Yield }
    }

    pub(crate) fn wait(self) {
        match self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => std::thread::yield_now(),
        }
    }
}

/// Lets the client's threads start together.
#[derive(Debug, Default)]
pub(crate) struct StartGate {
    ready: AtomicU32,
    has_failed: AtomicBool,
}

impl StartGate {
    /// Announces that a thread is ready, and waits until all of them are. Returns false if another
    /// one has failed.
    pub(crate) fn pass(&self, threads: u32) -> Result<bool, StudyError> {
        // SYNC: pairs with the loads in `StartGate::pass` of the other threads.
        self.ready.fetch_add(1, Ordering::AcqRel);
        let start = Instant::now();
        // SYNC: pairs with the addition in `StartGate::pass` of the other threads.
        while self.ready.load(Ordering::Acquire) < threads {
            // SYNC: pairs with the store in `StartGate::fail`.
            if self.has_failed.load(Ordering::Acquire) {
                return Ok(false);
            }
            if start.elapsed() > TIMEOUT {
                let seconds = TIMEOUT.as_secs();
                return Err(StudyError::Timeout { what: "connecting", seconds });
            }
            std::thread::sleep(GLANCE);
        }
        Ok(true)
    }

    /// Announces that a thread will never be ready.
    pub(crate) fn fail(&self) {
        // SYNC: pairs with the load in `StartGate::pass`.
        self.has_failed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pass_the_gate_or_none() {
        let gate = StartGate::default();
        let passed = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| gate.pass(3).unwrap()));
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(passed, [true; 3]);
        let gate = StartGate::default();
        gate.fail();
        assert!(!gate.pass(2).unwrap());
    }

    #[test]
    fn threads_spin_only_if_each_has_a_processor() {
        assert_eq!(Idle::for_threads(&[(2, 2), (1, 1)]), Idle::Spin);
        assert_eq!(Idle::for_threads(&[(2, 4), (2, 1)]), Idle::Yield);
        assert_eq!(Idle::for_threads(&[(u32::MAX, 8)]), Idle::Yield);
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        std::thread::spawn(|| {
            run_on(&[]).unwrap();
            assert!(run_on(&[100_000]).is_err());
        })
        .join()
        .unwrap();
    }
}
