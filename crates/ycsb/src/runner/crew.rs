//! The threads of a phase: started together, sampled, and joined.

use std::sync::{OnceLock, PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

use super::phase::{Job, Phase};
use crate::chooser::KeyChooser;
use crate::counter::SharedCounter;
use crate::run_error::RunError;
use crate::summary::Sample;
use crate::worker::{Failure, Tally, Worker};

/// The state that all threads of a phase share.
pub(super) struct Shared {
    /// Held for writing until every store is open; releasing it starts all workers at once.
    gate: RwLock<()>,
    /// The worker that failed first. The others then stop; their own failures may be consequences.
    failed: OnceLock<usize>,
    /// Number of workload operations that workers have begun.
    taken: SharedCounter,
    /// Number of operations that each worker has done.
    pub(super) done: Vec<SharedCounter>,
    chooser: Option<KeyChooser>,
}

impl Shared {
    pub(super) fn new(threads: usize, chooser: Option<KeyChooser>) -> Self {
        Self {
            gate: RwLock::default(),
            failed: OnceLock::new(),
            taken: SharedCounter::default(),
            done: (0..threads).map(|_| SharedCounter::default()).collect(),
            chooser,
        }
    }
}

/// Senders that a worker holds until it is ready, and until it is done. Nothing is ever sent: the
/// signal is that all senders are dropped, which a panic does as well.
struct Signals {
    opening: mpsc::Sender<()>,
    working: mpsc::Sender<()>,
}

/// Stops the other workers if this one fails or panics.
struct StopUnlessDone<'a> {
    thread: usize,
    failed: &'a OnceLock<usize>,
}

impl Drop for StopUnlessDone<'_> {
    fn drop(&mut self) {
        // Only the first failure counts.
        let _ = self.failed.set(self.thread);
    }
}

/// The result of a worker.
pub(super) struct Report {
    pub(super) thread: usize,
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) tally: Tally,
}

impl Phase<'_> {
    /// Starts the workers, runs `watch` meanwhile, and joins all workers.
    pub(super) fn run_threads(
        &self,
        shared: &Shared,
        watch: impl FnOnce(&mpsc::Receiver<()>) -> Vec<Sample>,
    ) -> Result<(Vec<Report>, Vec<Sample>), RunError> {
        let (opening, ready) = mpsc::channel();
        let (working, finished) = mpsc::channel();
        std::thread::scope(|scope| {
            let closed = shared.gate.write().unwrap_or_else(PoisonError::into_inner);
            let workers: Vec<_> = (0..self.plan.threads)
                .map(|thread| {
                    let signals = Signals { opening: opening.clone(), working: working.clone() };
                    scope.spawn(move || self.work(thread, shared, signals))
                })
                .collect();
            drop((opening, working));
            let _ = ready.recv();
            drop(closed);
            let timeline = watch(&finished);
            let mut ended: Vec<_> = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or(Err(RunError::Panicked)))
                .collect();
            if let Some(first) = shared.failed.get() {
                ended.swap(0, *first);
            }
            Ok((ended.into_iter().collect::<Result<_, _>>()?, timeline))
        })
    }

    /// Runs one worker.
    fn work(&self, thread: usize, shared: &Shared, signals: Signals) -> Result<Report, RunError> {
        let stop = StopUnlessDone { thread, failed: &shared.failed };
        let store = self.factory.open(thread).map_err(|cause| RunError::Open { thread, cause })?;
        let mut worker = Worker::new(self.plan, store, self.records, (self.number, thread));
        // Rebound so that it is dropped first: closing the store may take longer than other workers
        // take to fail.
        let stop = stop;
        drop(signals.opening);
        drop(shared.gate.read().unwrap_or_else(PoisonError::into_inner));
        let started = Instant::now();
        let outcome = self.operate(thread, shared, &mut worker);
        let ended = Instant::now();
        drop(signals.working);
        match outcome {
            Ok(()) => {
                std::mem::forget(stop);
                Ok(Report { thread, started, ended, tally: worker.tally })
            }
            Err(Failure { operation, key, cause }) => {
                let (key, done) = (key.to_string(), shared.done[thread].get());
                Err(RunError::Operation { thread, operation, key, done, cause })
            }
        }
    }

    /// Sleeps until a thread that has done `done` operations may do the next one at the target
    /// rate.
    fn keep_pace(&self, begin: Instant, done: u64) {
        let (Job::Run(_), Some(rate)) = (&self.job, self.plan.rate) else { return };
        let due = done as f64 * self.plan.threads as f64 / rate as f64;
        let due = Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX);
        if let Some(early) = due.checked_sub(begin.elapsed()) {
            std::thread::sleep(early);
        }
    }

    fn operate(
        &self,
        thread: usize,
        shared: &Shared,
        worker: &mut Worker<'_>,
    ) -> Result<(), Failure> {
        let mut chooser = shared.chooser.clone();
        let threads = self.plan.threads as u64;
        // In a workload each free thread takes the next operation, so that all threads end
        // together. In the load each thread takes every `threads`-th record, so that each rack
        // stores the same number.
        let next = |done| match self.job {
            Job::Run(_) => shared.taken.take(),
            Job::Load => thread as u64 + done * threads,
        };
        let begin = Instant::now();
        let mut done = 0;
        loop {
            let number = next(done);
            if number >= self.operations() || shared.failed.get().is_some() {
                return Ok(());
            }
            match (&self.job, &mut chooser) {
                (Job::Run(workload), Some(chooser)) => worker.operate(&workload.mix, chooser)?,
                _ => worker.load(number)?,
            }
            done += 1;
            shared.done[thread].publish(done);
            self.keep_pace(begin, done);
        }
    }
}
