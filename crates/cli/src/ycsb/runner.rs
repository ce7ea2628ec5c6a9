//! Runs a plan: the load, then each workload, all threads at once.

use std::sync::{Barrier, mpsc};
use std::time::Instant;

use super::chooser::KeyChooser;
use super::counter::SharedCounter;
use super::generator::AcknowledgedCounter;
use super::plan::Plan;
use super::progress::Progress;
use super::store::{StoreError, StoreFactory};
use super::summary::{Sample, Session, WorkloadResult};
use super::timeline;
use super::worker::{Failure, Tally, Worker};
use super::workload::{Operation, Workload};

mod gather;

/// Why a run could not be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A worker's store could not be opened.
    #[error("worker {thread} could not open its store: {cause}")]
    Open {
        /// The worker.
        thread: usize,
        /// The store's reason.
        cause: StoreError,
    },
    /// A store could not do an operation.
    #[error("{operation} of {key} failed in worker {thread}, after {done} operations: {cause}")]
    Operation {
        /// The worker.
        thread: usize,
        /// What it was doing.
        operation: Operation,
        /// The key it was about.
        key: String,
        /// Operations that worker had done in this phase.
        done: u64,
        /// The store's reason.
        cause: StoreError,
    },
    /// A worker panicked: a bug in the store or here.
    #[error("a worker panicked; its message is above")]
    Panicked,
}

/// Runs the plan against the stores of `factory`.
///
/// Operations that find no record and values that fail `verify` are counted, see [`Session::problems`].
///
/// # Errors
/// At the first store that cannot be opened or answers with an error; the other workers stop then.
pub fn run(
    plan: &Plan,
    factory: &dyn StoreFactory,
    progress: Progress,
) -> Result<Session, RunError> {
    let records = AcknowledgedCounter::new(plan.records);
    let phase = |number, job| Phase { plan, factory, records: &records, number, job };
    let load = plan.load.then(|| phase(0, Job::Load).run(progress)).transpose()?;
    let workloads = plan
        .workloads
        .iter()
        .enumerate()
        .map(|(i, workload)| phase(i + 1, Job::Run(workload)).run(progress))
        .collect::<Result<_, _>>()?;
    Ok(Session { store: factory.label(), load, workloads })
}

/// What the threads of a phase do.
#[derive(Debug, Clone, Copy)]
enum Job<'a> {
    Load,
    Run(&'a Workload),
}

/// The load, or one workload.
struct Phase<'a> {
    plan: &'a Plan,
    factory: &'a dyn StoreFactory,
    records: &'a AcknowledgedCounter,
    number: usize,
    job: Job<'a>,
}

/// What all threads of a phase share.
struct Shared {
    start: Barrier,
    stop: SharedCounter,
    done: Vec<SharedCounter>,
    chooser: Option<KeyChooser>,
}

/// What a worker brings home.
struct Report {
    thread: usize,
    started: Instant,
    ended: Instant,
    tally: Tally,
}

impl Phase<'_> {
    fn run(&self, progress: Progress) -> Result<WorkloadResult, RunError> {
        let threads = self.plan.threads;
        let present = self.present();
        let shared = Shared {
            start: Barrier::new(threads + 1),
            stop: SharedCounter::default(),
            done: (0..threads).map(|_| SharedCounter::default()).collect(),
            chooser: match self.job {
                Job::Load => None,
                Job::Run(workload) => {
                    Some(KeyChooser::new(workload, present, self.plan.operations))
                }
            },
        };
        let bar = progress.bar(&self.title(), self.operations());
        let (reports, timeline) =
            self.run_threads(&shared, |finished| timeline::watch(finished, &shared.done, &bar))?;
        Ok(self.gather(present, reports, timeline))
    }

    /// Starts the workers, watches them, and waits for all.
    fn run_threads(
        &self,
        shared: &Shared,
        watch: impl FnOnce(&mpsc::Receiver<()>) -> Vec<Sample>,
    ) -> Result<(Vec<Report>, Vec<Sample>), RunError> {
        let (alive, finished) = mpsc::channel();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.plan.threads)
                .map(|thread| {
                    let alive = alive.clone();
                    scope.spawn(move || {
                        let report = self.work(thread, shared);
                        drop(alive);
                        report
                    })
                })
                .collect();
            drop(alive);
            shared.start.wait();
            let timeline = watch(&finished);
            let reports = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or(Err(RunError::Panicked)))
                .collect::<Result<_, _>>()?;
            Ok((reports, timeline))
        })
    }

    /// One worker's thread.
    fn work(&self, thread: usize, shared: &Shared) -> Result<Report, RunError> {
        let opened = self.factory.open(thread);
        if opened.is_err() {
            shared.stop.publish(1);
        }
        shared.start.wait();
        let store = opened.map_err(|cause| RunError::Open { thread, cause })?;
        let mut worker = Worker::new(self.plan, store, self.records, (self.number, thread));
        let started = Instant::now();
        let outcome = self.operate(thread, shared, &mut worker);
        let ended = Instant::now();
        match outcome {
            Ok(()) => Ok(Report { thread, started, ended, tally: worker.tally }),
            Err(Failure { operation, key, cause }) => {
                shared.stop.publish(1);
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

    /// Operations of this phase, all threads together.
    fn operations(&self) -> u64 {
        match self.job {
            Job::Load => self.plan.records,
            Job::Run(_) => self.plan.operations,
        }
    }

    /// Records this phase chooses among at its start. What an earlier workload inserted belongs to the others
    /// that insert: the rest work on the records loaded, whatever ran before.
    fn present(&self) -> u64 {
        match self.job {
            Job::Run(workload) if workload.mix.insert > 0 => self.records.present(),
            _ => self.plan.records,
        }
    }

    fn title(&self) -> String {
        match self.job {
            Job::Load => "load".to_owned(),
            Job::Run(workload) => format!("workload {:?}", workload.name),
        }
    }
}

#[cfg(test)]
mod tests;
