//! The operations that workers have begun, and those that were acknowledged, in a file that
//! outlives the workers.
//!
//! ```text
//!      0  pause: workers rest while it is 1
//!      8  turn: how often workers have been told to rest
//!     64  workers, 256 B each: rests with turn + 1 | longest wait in us | wrong values | 0
//!         | reads, writes, additions that went well, 8 B each | 0 | failures, 8 B for each kind
//!   4096  own words, 16 B each, those of a worker side by side: last number begun | acknowledged
//!         counters, 16 B each for each worker: additions acknowledged | uncertain
//! ```

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rackpool_shm::Mapping;

use super::trouble::{TROUBLES, Trouble};

/// Workers, one half in each rack.
pub const WORKERS: u64 = 4;
/// Objects, each with one word for each worker and one counter.
pub const OBJECTS: u64 = 48;

const AT_WORKERS: u64 = 64;
const WORKER_BYTES: u64 = 256;
const AT_DONE: u64 = 4;
const AT_FAILURES: u64 = 8;
const AT_WORDS: u64 = 4096;
const AT_COUNTERS: u64 = AT_WORDS + WORKERS * OBJECTS * 16;
const BYTES: u64 = AT_COUNTERS + WORKERS * OBJECTS * 16;

/// What a worker does with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// Reads the word of any worker, and checks it.
    Read = 0,
    /// Writes its own word.
    Write = 1,
    /// Adds to the counter.
    Add = 2,
}

/// All kinds.
pub const KINDS: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Add];

/// The mapped file.
#[derive(Debug)]
pub struct Ledger(Mapping);

/// Two numbers that bound a value. For writes `first` never lags behind `second`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The last number begun; for additions the acknowledged ones.
    pub first: u64,
    /// The last number acknowledged; for additions the uncertain ones.
    pub second: u64,
}

impl Ledger {
    /// Creates a ledger, all zero.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        file.set_len(BYTES)?;
        Ok(Self(Mapping::new(&file, BYTES)?))
    }

    /// Opens the ledger that another process has created.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self(Mapping::new(&file, BYTES)?))
    }

    fn at(&self, offset: u64) -> &AtomicU64 {
        self.0.view(offset).expect("a place within the ledger")
    }

    /// Returns true while the workers are to pause.
    #[must_use]
    pub fn pauses(&self) -> bool {
        self.at(0).load(Ordering::Acquire) == 1
    }

    /// Tells the workers to pause, or to go on.
    pub fn set_pause(&self, pause: bool) {
        self.at(0).store(u64::from(pause), Ordering::Release);
    }

    /// The current turn.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.at(8).load(Ordering::Acquire)
    }

    /// Begins the next turn.
    pub fn next_turn(&self) {
        self.at(8).fetch_add(1, Ordering::AcqRel);
    }

    fn of_worker(&self, worker: u64, word: u64) -> &AtomicU64 {
        self.at(AT_WORKERS + worker * WORKER_BYTES + word * 8)
    }

    /// Notes that the worker pauses in this turn.
    pub fn rest(&self, worker: u64) {
        self.of_worker(worker, 0).store(self.turn() + 1, Ordering::Release);
    }

    /// Returns true if the worker pauses in this turn.
    #[must_use]
    pub fn rests(&self, worker: u64) -> bool {
        self.of_worker(worker, 0).load(Ordering::Acquire) == self.turn() + 1
    }

    /// Notes the duration of an operation, successful or not.
    pub fn took(&self, worker: u64, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.of_worker(worker, 1).fetch_max(micros, Ordering::AcqRel);
    }

    /// The longest operation of the worker since the last call of this function.
    #[must_use]
    pub fn take_longest(&self, worker: u64) -> Duration {
        Duration::from_micros(self.of_worker(worker, 1).swap(0, Ordering::AcqRel))
    }

    /// Notes that the worker has read an impossible value.
    pub fn wrong(&self, worker: u64) {
        self.of_worker(worker, 2).fetch_add(1, Ordering::AcqRel);
    }

    /// The number of impossible values that the worker has read.
    #[must_use]
    pub fn wrongs(&self, worker: u64) -> u64 {
        self.of_worker(worker, 2).load(Ordering::Acquire)
    }

    /// Notes a successful operation.
    pub fn succeeded(&self, worker: u64, kind: Kind) {
        self.of_worker(worker, AT_DONE + kind as u64).fetch_add(1, Ordering::AcqRel);
    }

    /// Successful operations of the worker by kind, over all its incarnations.
    #[must_use]
    pub fn successes(&self, worker: u64) -> [u64; KINDS.len()] {
        KINDS.map(|kind| self.of_worker(worker, AT_DONE + kind as u64).load(Ordering::Acquire))
    }

    fn failures(&self, worker: u64, trouble: Trouble) -> &AtomicU64 {
        let kind = (0_u64..).zip(TROUBLES).find(|(_, known)| *known == trouble);
        let kind = kind.expect("one of all kinds").0;
        self.of_worker(worker, AT_FAILURES + kind)
    }

    /// Notes a failed operation.
    pub fn failed(&self, worker: u64, trouble: Trouble) {
        self.failures(worker, trouble).fetch_add(1, Ordering::AcqRel);
    }

    /// Returns true if an operation of the worker has failed like this since
    /// [`Self::take_failures`].
    #[must_use]
    pub fn has_failed(&self, worker: u64, trouble: Trouble) -> bool {
        self.failures(worker, trouble).load(Ordering::Acquire) > 0
    }

    /// The number of such failures of the worker since the last call of this function.
    #[must_use]
    pub fn take_failures(&self, worker: u64, trouble: Trouble) -> u64 {
        self.failures(worker, trouble).swap(0, Ordering::AcqRel)
    }

    fn word(&self, worker: u64, object: u64) -> u64 {
        AT_WORDS + (worker * OBJECTS + object) * 16
    }

    /// Notes that the worker is about to write this number into its word of an object.
    pub fn begin(&self, worker: u64, object: u64, number: u64) {
        self.at(self.word(worker, object)).store(number, Ordering::SeqCst);
    }

    /// Notes that the write of this number is acknowledged.
    pub fn acknowledge(&self, worker: u64, object: u64, number: u64) {
        self.at(self.word(worker, object) + 8).store(number, Ordering::SeqCst);
    }

    /// The last number begun, and the last one acknowledged.
    #[must_use]
    pub fn written(&self, worker: u64, object: u64) -> Pair {
        self.pair(self.word(worker, object))
    }

    fn counter(&self, worker: u64, object: u64) -> u64 {
        AT_COUNTERS + (worker * OBJECTS + object) * 16
    }

    /// Notes that the worker is about to add 1 to the counter of an object. The addition is
    /// uncertain until it ends.
    pub fn begin_addition(&self, worker: u64, object: u64) {
        self.at(self.counter(worker, object) + 8).fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that the addition is done (`true`), or was certainly not done (`false`).
    pub fn end_addition(&self, worker: u64, object: u64, done: bool) {
        let at = self.counter(worker, object);
        if done {
            self.at(at).fetch_add(1, Ordering::SeqCst);
        }
        self.at(at + 8).fetch_sub(1, Ordering::SeqCst);
    }

    /// Additions to the counter of an object: acknowledged, and uncertain.
    #[must_use]
    pub fn additions(&self, object: u64) -> Pair {
        let all = (0..WORKERS).map(|worker| self.pair(self.counter(worker, object)));
        all.fold(Pair { first: 0, second: 0 }, |sum, one| Pair {
            first: sum.first + one.first,
            second: sum.second + one.second,
        })
    }

    fn pair(&self, at: u64) -> Pair {
        // The second is read first, so it is never newer than the first.
        let second = self.at(at + 8).load(Ordering::SeqCst);
        Pair { first: self.at(at).load(Ordering::SeqCst), second }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_mapping_sees_everything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let (one, other) = (Ledger::create(&path).unwrap(), Ledger::open(&path).unwrap());
        one.begin(3, 47, 9);
        assert_eq!(other.written(3, 47), Pair { first: 9, second: 0 });
        other.acknowledge(3, 47, 9);
        assert_eq!(one.written(3, 47), Pair { first: 9, second: 9 });
        one.begin_addition(0, 47);
        one.begin_addition(3, 47);
        one.end_addition(3, 47, true);
        assert_eq!(other.additions(47), Pair { first: 1, second: 1 });
        assert_eq!(other.additions(0), Pair { first: 0, second: 0 });
        one.rest(1);
        assert!(other.rests(1) && !other.rests(0));
        other.next_turn();
        assert!(!one.rests(1));
        one.took(2, Duration::from_micros(7));
        one.succeeded(2, Kind::Write);
        one.wrong(2);
        assert_eq!((other.successes(2), other.wrongs(2)), ([0, 1, 0], 1));
        assert_eq!((other.take_longest(2).as_micros(), other.take_longest(2).as_micros()), (7, 0));
        for trouble in TROUBLES {
            one.failed(3, trouble);
            assert!(other.has_failed(3, trouble) && !other.has_failed(2, trouble));
            assert_eq!([(); 2].map(|()| other.take_failures(3, trouble)), [1, 0]);
        }
        assert_eq!(other.written(0, 0), Pair { first: 0, second: 0 }, "places are apart");
        assert!(Ledger::create(&path).is_err(), "it is there already");
    }
}
