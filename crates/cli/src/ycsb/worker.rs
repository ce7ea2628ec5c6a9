//! What one thread does: its share of the load, or of a workload.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::chooser::KeyChooser;
use super::fields::{LayoutError, ValueWriter};
use super::generator::{AcknowledgedCounter, fnv_hash64};
use super::key::KeyName;
use super::plan::Plan;
use super::recorder::Recorder;
use super::store::{Store, StoreError};
use super::workload::{Mix, Operation};

/// One thread's store, choices and measurements.
pub(super) struct Worker<'a> {
    plan: &'a Plan,
    store: Box<dyn Store + 'a>,
    records: &'a AcknowledgedCounter,
    rng: SmallRng,
    writer: ValueWriter,
    /// The value read.
    value: Vec<u8>,
    /// A whole new value, made before the clock starts.
    fresh: Vec<u8>,
    pub(super) tally: Tally,
}

/// What one thread measured.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) recorder: Recorder,
    pub(super) missed: u64,
    pub(super) verified: u64,
    pub(super) corrupt: u64,
    pub(super) examples: Vec<String>,
}

/// An operation that the store could not do.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) operation: Operation,
    pub(super) key: KeyName,
    pub(super) cause: StoreError,
}

impl<'a> Worker<'a> {
    /// `phase` (0 for the load) and `thread` make each worker's choices its own.
    pub(super) fn new(
        plan: &'a Plan,
        store: Box<dyn Store + 'a>,
        records: &'a AcknowledgedCounter,
        (phase, thread): (usize, usize),
    ) -> Self {
        let own = fnv_hash64((phase as u64) << 32 | thread as u64);
        let mut rng = SmallRng::seed_from_u64(fnv_hash64(plan.seed) ^ own.rotate_left(1));
        let writer = ValueWriter::new(plan.layout, rng.random());
        let tally = Tally {
            recorder: Recorder::new(),
            missed: 0,
            verified: 0,
            corrupt: 0,
            examples: Vec::new(),
        };
        Self { plan, store, records, rng, writer, value: Vec::new(), fresh: Vec::new(), tally }
    }

    /// Stores record `number`.
    pub(super) fn load(&mut self, number: u64) -> Result<(), Failure> {
        let key = KeyName::new(number);
        self.writer.write_all(&key, &mut self.fresh);
        let start = Instant::now();
        self.store.insert(key.as_bytes(), &self.fresh).map_err(fail(Operation::Insert, key))?;
        self.tally.recorder.record(Operation::Insert, start.elapsed());
        Ok(())
    }

    /// Does one operation of a workload.
    pub(super) fn operate(&mut self, mix: &Mix, chooser: &mut KeyChooser) -> Result<(), Failure> {
        let operation = mix.at(self.rng.random_range(0..100));
        if operation == Operation::Insert {
            let number = self.records.take();
            self.load(number)?;
            self.records.acknowledge(number);
            return Ok(());
        }
        let key = KeyName::new(chooser.next(self.records, &mut self.rng));
        match operation {
            Operation::Update => self.update(key),
            Operation::ReadModifyWrite => self.read_modify_write(key),
            Operation::Read | Operation::Insert => self.read(key),
        }
    }

    fn read(&mut self, key: KeyName) -> Result<(), Failure> {
        let field = self.one_unless(self.plan.read_all_fields);
        let (found, time) = self.timed_read(key)?;
        self.tally.recorder.record(Operation::Read, time);
        self.check(key, found, field);
        Ok(())
    }

    fn update(&mut self, key: KeyName) -> Result<(), Failure> {
        let field = self.prepare(key);
        let start = Instant::now();
        // One field of several: the others have to be read first, and that is part of the update.
        let found = match field {
            Some(field) => self.timed_read(key)?.0 && self.write_one(key, field)?,
            None => self.write_fresh(key)?,
        };
        self.tally.recorder.record(Operation::Update, start.elapsed());
        self.note_miss(key, found);
        Ok(())
    }

    fn read_modify_write(&mut self, key: KeyName) -> Result<(), Failure> {
        let field = self.prepare(key);
        let start = Instant::now();
        let (found, read_time) = self.timed_read(key)?;
        // Checking is no part of the operation, but has to come before the value is changed.
        let checking = Instant::now();
        self.check(key, found, None);
        self.tally.recorder.record_part(Operation::Read, read_time);
        let checked = checking.elapsed();
        if found {
            let writing = Instant::now();
            let still_there = match field {
                Some(field) => self.write_one(key, field)?,
                None => self.write_fresh(key)?,
            };
            self.tally.recorder.record_part(Operation::Update, writing.elapsed());
            self.note_miss(key, still_there);
        }
        let time = start.elapsed().saturating_sub(checked);
        self.tally.recorder.record(Operation::ReadModifyWrite, time);
        Ok(())
    }

    /// Makes a fresh value, if all fields are to be written; else says which one.
    fn prepare(&mut self, key: KeyName) -> Option<usize> {
        let field = self.one_unless(self.plan.write_all_fields);
        if field.is_none() {
            self.writer.write_all(&key, &mut self.fresh);
        }
        field
    }

    fn timed_read(&mut self, key: KeyName) -> Result<(bool, Duration), Failure> {
        let start = Instant::now();
        let found =
            self.store.read(key.as_bytes(), &mut self.value).map_err(fail(Operation::Read, key))?;
        Ok((found, start.elapsed()))
    }

    fn write_fresh(&mut self, key: KeyName) -> Result<bool, Failure> {
        self.store.update(key.as_bytes(), &self.fresh).map_err(fail(Operation::Update, key))
    }

    /// Writes the value just read, with new contents for one field.
    fn write_one(&mut self, key: KeyName, field: usize) -> Result<bool, Failure> {
        if let Err(error) = self.writer.write_one(&key, &mut self.value, field) {
            self.note_corrupt(&error);
            self.writer.write_all(&key, &mut self.value);
        }
        self.store.update(key.as_bytes(), &self.value).map_err(fail(Operation::Update, key))
    }

    /// A field chosen at random, or `None` for all of them.
    fn one_unless(&mut self, all: bool) -> Option<usize> {
        let fields = self.plan.layout.field_count;
        (!all && fields > 1).then(|| self.rng.random_range(0..fields))
    }

    fn check(&mut self, key: KeyName, found: bool, field: Option<usize>) {
        self.note_miss(key, found);
        if found && self.plan.verify {
            self.tally.verified += 1;
            if let Err(error) = self.plan.layout.verify(&key, &self.value, field) {
                self.note_corrupt(&error);
            }
        }
    }

    fn note_miss(&mut self, key: KeyName, found: bool) {
        if !found {
            if self.tally.missed == 0 {
                self.tally.examples.push(format!("{key} was not found"));
            }
            self.tally.missed += 1;
        }
    }

    fn note_corrupt(&mut self, error: &LayoutError) {
        if self.tally.corrupt == 0 {
            self.tally.examples.push(error.to_string());
        }
        self.tally.corrupt += 1;
    }
}

fn fail(operation: Operation, key: KeyName) -> impl FnOnce(StoreError) -> Failure {
    move |cause| Failure { operation, key, cause }
}
