//! The threads of a phase: started together, watched, and waited for.

use std::sync::{PoisonError, RwLock, mpsc};
use std::time::Instant;

use super::{Job, Phase, RunError};
use crate::ycsb::chooser::KeyChooser;
use crate::ycsb::counter::SharedCounter;
use crate::ycsb::summary::Sample;
use crate::ycsb::worker::{Failure, Tally, Worker};

/// What all threads of a phase share.
pub(super) struct Shared {
    /// Held for writing until every store is open; then all workers pass at once.
    gate: RwLock<()>,
    /// Not zero once a worker has failed: the others need not go on.
    stop: SharedCounter,
    /// Operations each worker has done.
    pub(super) done: Vec<SharedCounter>,
    chooser: Option<KeyChooser>,
}

impl Shared {
    pub(super) fn new(threads: usize, chooser: Option<KeyChooser>) -> Self {
        Self {
            gate: RwLock::default(),
            stop: SharedCounter::default(),
            done: (0..threads).map(|_| SharedCounter::default()).collect(),
            chooser,
        }
    }
}

/// What a worker holds on to until it is ready, and until it is done. Nothing is ever sent: that
/// all are dropped, be it by a panic, is the signal.
struct Signals {
    opening: mpsc::Sender<()>,
    working: mpsc::Sender<()>,
}

/// Stops the other workers when this one fails or panics.
struct StopUnlessDone<'a>(&'a SharedCounter);

impl Drop for StopUnlessDone<'_> {
    fn drop(&mut self) {
        self.0.publish(1);
    }
}

/// What a worker brings home.
pub(super) struct Report {
    pub(super) thread: usize,
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) tally: Tally,
}

impl Phase<'_> {
    /// Starts the workers, watches them, and waits for all.
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
            let reports = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or(Err(RunError::Panicked)))
                .collect::<Result<_, _>>()?;
            Ok((reports, timeline))
        })
    }

    /// One worker's thread.
    fn work(&self, thread: usize, shared: &Shared, signals: Signals) -> Result<Report, RunError> {
        let stop = StopUnlessDone(&shared.stop);
        let store = self.factory.open(thread).map_err(|cause| RunError::Open { thread, cause })?;
        let mut worker = Worker::new(self.plan, store, self.records, (self.number, thread));
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

    fn operate(
        &self,
        thread: usize,
        shared: &Shared,
        worker: &mut Worker<'_>,
    ) -> Result<(), Failure> {
        let mut chooser = shared.chooser.clone();
        let threads = self.plan.threads as u64;
        // Every thread takes each threads-th: shares that differ by one at most.
        let share = (thread as u64..self.operations()).step_by(self.plan.threads);
        for (done, number) in (1..).zip(share) {
            if shared.stop.get() != 0 {
                break;
            }
            match (&self.job, &mut chooser) {
                (Job::Run(workload), Some(chooser)) => worker.operate(&workload.mix, chooser)?,
                _ => worker.load(number)?,
            }
            shared.done[thread].publish(done);
        }
        debug_assert!(shared.done[thread].get() <= self.operations().div_ceil(threads));
        Ok(())
    }
}
