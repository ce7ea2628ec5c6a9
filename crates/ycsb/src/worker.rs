//! A worker thread: its share of the load or of a workload.

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::chooser::KeyChooser;
use super::fields::{LayoutError, ValueWriter};
use super::generator::{AcknowledgedCounter, fnv_hash64};
use super::key::KeyName;
use super::latency_recorder::LatencyRecorder;
use super::plan::Plan;
use super::scan::ScanLength;
use super::store::{Fields, Pairs, Store, StoreError};
use super::workload::{Mix, Operation};

/// The store, random choices and measurements of one thread.
pub(super) struct Worker<'a> {
    plan: &'a Plan,
    store: Box<dyn Store + 'a>,
    records: &'a AcknowledgedCounter,
    rng: SmallRng,
    writer: ValueWriter,
    /// The value read last.
    value: Vec<u8>,
    /// A new value, generated before the clock starts.
    fresh: Vec<u8>,
    /// The lengths of scans.
    lengths: ScanLength,
    /// The pairs of the last scan.
    scanned: Pairs,
    pub(super) tally: Tally,
}

/// The measurements of one thread.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) recorder: LatencyRecorder,
    pub(super) missed: u64,
    pub(super) verified: u64,
    pub(super) corrupt: u64,
    pub(super) examples: Vec<String>,
}

/// An operation that failed in the store.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) operation: Operation,
    pub(super) key: KeyName,
    pub(super) cause: StoreError,
}

impl<'a> Worker<'a> {
    /// `phase` (0 for the load) and `thread` are mixed into the seed, so that workers make
    /// different choices.
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
            recorder: LatencyRecorder::new(),
            missed: 0,
            verified: 0,
            corrupt: 0,
            examples: Vec::new(),
        };
        Self {
            plan,
            store,
            records,
            rng,
            writer,
            value: Vec::new(),
            fresh: Vec::new(),
            lengths: ScanLength::new(plan.scans),
            scanned: Pairs::default(),
            tally,
        }
    }

    /// Returns the key of the `number`th record of the run.
    fn key(&self, number: u64) -> KeyName {
        KeyName::new(self.plan.first.wrapping_add(number), self.plan.keys)
    }

    /// Stores record `number`.
    pub(super) fn load(&mut self, number: u64) -> Result<(), Failure> {
        let key = self.key(number);
        self.writer.write_all(&key, &mut self.fresh);
        let start = Instant::now();
        self.store.insert(key.as_bytes(), &self.fresh).map_err(fail(Operation::Insert, key))?;
        self.tally.recorder.record(Operation::Insert, start.elapsed());
        Ok(())
    }

    /// Executes one operation of a workload.
    pub(super) fn operate(&mut self, mix: &Mix, chooser: &mut KeyChooser) -> Result<(), Failure> {
        let operation = mix.at(self.rng.random_range(0..Mix::WHOLE));
        if operation == Operation::Insert {
            let number = self.records.take();
            self.load(number)?;
            self.records.acknowledge(number);
            return Ok(());
        }
        let number = chooser.next(self.records, &mut self.rng);
        let key = self.key(number);
        match operation {
            Operation::Update => self.update(key),
            Operation::ReadModifyWrite => self.read_modify_write(key),
            Operation::Scan => self.scan(key),
            Operation::Read | Operation::Insert => self.read(key),
        }
    }

    fn read(&mut self, key: KeyName) -> Result<(), Failure> {
        let field = self.one_unless(self.plan.read_all_fields);
        if let Some(field) = field
            && let Fields::Apart(fields) = self.store.fields()
        {
            let start = Instant::now();
            let found = fields
                .read_field(key.as_bytes(), field, &mut self.value)
                .map_err(fail(Operation::Read, key))?;
            self.tally.recorder.record(Operation::Read, start.elapsed());
            self.note_miss(key, found);
            if found && self.plan.verify {
                let checked = self.plan.layout.verify_field(&key, field, &self.value);
                self.note_verified(checked);
            }
            return Ok(());
        }
        let (found, time) = self.timed_read(key)?;
        self.tally.recorder.record(Operation::Read, time);
        self.check(key, found, field);
        Ok(())
    }

    fn scan(&mut self, start: KeyName) -> Result<(), Failure> {
        let count = self.lengths.next(&mut self.rng);
        let begin = Instant::now();
        let found = self
            .store
            .scan(start.as_bytes(), count, &mut self.scanned)
            .map_err(fail(Operation::Scan, start))?;
        self.tally.recorder.record(Operation::Scan, begin.elapsed());
        self.note_miss(start, found);
        if !self.plan.verify {
            return Ok(());
        }
        let scanned = std::mem::take(&mut self.scanned);
        if scanned.len() as u64 > count {
            self.note_verified(Err(LayoutError::ScannedTooMany { key: start.to_string() }));
        }
        for (key, value) in scanned.iter() {
            let other = || LayoutError::OtherKey { key: String::from_utf8_lossy(key).into_owned() };
            let key = KeyName::from_bytes(key).ok_or_else(other);
            self.note_verified(key.and_then(|key| self.plan.layout.verify(&key, value, None)));
        }
        self.scanned = scanned;
        Ok(())
    }

    fn update(&mut self, key: KeyName) -> Result<(), Failure> {
        let field = self.prepare(key);
        let start = Instant::now();
        let found = self.write(key, field)?;
        self.tally.recorder.record(Operation::Update, start.elapsed());
        self.note_miss(key, found);
        Ok(())
    }

    fn read_modify_write(&mut self, key: KeyName) -> Result<(), Failure> {
        let field = self.prepare(key);
        let start = Instant::now();
        let (found, read_time) = self.timed_read(key)?;
        // Checking is no part of the operation, but must precede the change of the value.
        let checking = Instant::now();
        self.check(key, found, None);
        self.tally.recorder.record_part(Operation::Read, read_time);
        let checked = checking.elapsed();
        if found {
            let writing = Instant::now();
            let still_there = self.write(key, field)?;
            self.tally.recorder.record_part(Operation::Update, writing.elapsed());
            self.note_miss(key, still_there);
        }
        let time = start.elapsed().saturating_sub(checked);
        self.tally.recorder.record(Operation::ReadModifyWrite, time);
        Ok(())
    }

    /// Generates a new value or, unless all fields are written, one field. Returns the field, or
    /// `None` for all.
    fn prepare(&mut self, key: KeyName) -> Option<usize> {
        let field = self.one_unless(self.plan.write_all_fields);
        match field {
            None => self.writer.write_all(&key, &mut self.fresh),
            Some(field) => self.writer.write_field(&key, field, &mut self.fresh),
        }
        field
    }

    /// Writes what `prepare` has generated.
    fn write(&mut self, key: KeyName, field: Option<usize>) -> Result<bool, Failure> {
        let written = match field {
            Some(field) => self.write_field(key, field),
            None => self.store.update(key.as_bytes(), &self.fresh),
        };
        written.map_err(fail(Operation::Update, key))
    }

    /// Writes the generated field. Other workers may write other fields at the same time.
    fn write_field(&mut self, key: KeyName, field: usize) -> Result<bool, StoreError> {
        let values = match self.store.fields() {
            Fields::Apart(fields) => {
                fields.write_field(key.as_bytes(), field, &self.fresh)?;
                return Ok(true);
            }
            Fields::Together(values) => values,
        };
        let mut other = Ok(());
        let found = values.modify(key.as_bytes(), &mut |value| {
            other = self.plan.layout.replace(&key, value, field, &self.fresh);
            if other.is_err() {
                self.writer.write_all(&key, value);
            }
        })?;
        if let Err(error) = other {
            self.note_corrupt(&error);
        }
        Ok(found)
    }

    fn timed_read(&mut self, key: KeyName) -> Result<(bool, Duration), Failure> {
        let start = Instant::now();
        let found =
            self.store.read(key.as_bytes(), &mut self.value).map_err(fail(Operation::Read, key))?;
        Ok((found, start.elapsed()))
    }

    /// Returns a field chosen at random, or `None` for all of them.
    fn one_unless(&mut self, all: bool) -> Option<usize> {
        let fields = self.plan.layout.field_count;
        (!all && fields > 1).then(|| self.rng.random_range(0..fields))
    }

    fn check(&mut self, key: KeyName, found: bool, field: Option<usize>) {
        self.note_miss(key, found);
        if found && self.plan.verify {
            self.note_verified(self.plan.layout.verify(&key, &self.value, field));
        }
    }

    fn note_verified(&mut self, verified: Result<(), LayoutError>) {
        self.tally.verified += 1;
        if let Err(error) = verified {
            self.note_corrupt(&error);
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

#[cfg(test)]
mod tests;
