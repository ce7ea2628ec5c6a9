//! The runner on a store in memory.

use super::*;
use crate::key::{KeyName, KeyStyle};
use crate::memory_store::MemoryStores;
use crate::store::StoreError;
use crate::{WorkloadName, YcsbOptions};

const RECORDS: u64 = 500;
const OPERATIONS: u64 = 4001;

fn options(workloads: &[WorkloadName]) -> YcsbOptions {
    YcsbOptions {
        workloads: workloads.to_vec(),
        records: RECORDS,
        operations: OPERATIONS,
        threads: 3,
        verify: true,
        quiet: true,
        ..YcsbOptions::default()
    }
}

fn run_over(stores: &MemoryStores, options: &YcsbOptions) -> Result<Session, RunError> {
    run(&options.plan().unwrap(), stores, Progress::new(true))
}

fn count(result: &WorkloadResult, kind: &str) -> u64 {
    let operation = result.by_operation.iter().find(|result| result.operation == kind);
    operation.map_or(0, |operation| operation.latency.count)
}

#[test]
fn every_workload_does_its_operations_and_finds_every_record() {
    let stores = MemoryStores::default();
    let session = run_over(&stores, &options(&WorkloadName::ALL)).unwrap();
    assert_eq!(session.problems(), [""; 0]);
    let load = session.load.as_ref().unwrap();
    assert_eq!((load.operations, count(load, "insert")), (RECORDS, RECORDS));
    for (result, name) in session.workloads.iter().zip(["A", "B", "C", "D", "E", "F"]) {
        assert_eq!((result.name.as_str(), result.operations), (name, OPERATIONS));
        assert_eq!((result.racks, result.threads), (2, 3));
        assert_eq!(result.by_rack.iter().map(|rack| rack.operations).sum::<u64>(), OPERATIONS);
        assert_eq!(result.timeline.iter().map(|sample| sample.operations).sum::<u64>(), OPERATIONS);
        let rate = result.operations as f64 / result.seconds;
        assert!((result.throughput / rate - 1.0).abs() < 1e-9);
        let racks: f64 = result.by_rack.iter().map(|rack| rack.throughput).sum();
        assert!((result.throughput / racks - 1.0).abs() < 1e-9, "racks add up to the whole");
        assert!(result.all_worked_seconds.unwrap() <= result.seconds);
    }
}

#[test]
fn mixes_come_out_as_given() {
    let session = run_over(&MemoryStores::default(), &options(&WorkloadName::ALL)).unwrap();
    let [a, b, c, d, e, f] = session.workloads.as_slice() else { panic!("six workloads") };
    let near = |found: u64, percent: f64| {
        let share = found as f64 / OPERATIONS as f64 * 100.0;
        assert!((share - percent).abs() < 4.0, "{share} % for {percent} %");
    };
    near(count(a, "update"), 50.0);
    near(count(b, "update"), 5.0);
    assert_eq!(count(c, "read"), OPERATIONS);
    near(count(d, "insert"), 5.0);
    near(count(e, "insert"), 5.0);
    near(count(e, "scan"), 95.0);
    // 50 records on average, all checked.
    assert!(e.verified > 40 * count(e, "scan"), "{} verified", e.verified);
    near(count(f, "read-modify-write"), 50.0);
    for result in [a, b, d, e] {
        let all: u64 = result.by_operation.iter().map(|kind| kind.latency.count).sum();
        assert_eq!(all, OPERATIONS);
    }
}

#[test]
fn read_modify_writes_read_and_update_what_they_read() {
    let stores = MemoryStores::default();
    run_over(&stores, &options(&[WorkloadName::C])).unwrap();
    let before = stores.pairs().clone();
    let again = YcsbOptions { no_load: true, ..options(&[WorkloadName::F]) };
    let session = run_over(&stores, &again).unwrap();
    let f = &session.workloads[0];
    assert_eq!(count(f, "read"), OPERATIONS);
    assert_eq!(count(f, "update"), count(f, "read-modify-write"));
    assert_eq!(f.verified, OPERATIONS);
    let pairs = stores.pairs();
    assert_eq!(pairs.len(), before.len());
    let changed = pairs.iter().filter(|(key, value)| before[*key] != **value).count();
    assert!(changed > 100, "{changed} records changed");
}

#[test]
fn the_latest_workload_inserts_the_next_records_each_time() {
    let stores = MemoryStores::default();
    let twice = options(&[WorkloadName::D, WorkloadName::D, WorkloadName::C]);
    let session = run_over(&stores, &twice).unwrap();
    let [first, second, c] = session.workloads.as_slice() else { panic!("three workloads") };
    let inserted = count(first, "insert");
    assert_eq!(first.records, RECORDS);
    assert_eq!(second.records, RECORDS + inserted);
    assert_eq!(c.records, RECORDS);
    let total = RECORDS + inserted + count(second, "insert");
    let pairs = stores.pairs();
    assert_eq!(pairs.len() as u64, total);
    assert!(
        (0..total)
            .all(|number| pairs.contains_key(KeyName::new(number, KeyStyle::default()).as_bytes()))
    );
}

#[test]
fn a_corrupted_value_is_caught() {
    let stores = MemoryStores { corrupt_every: 100, ..MemoryStores::default() };
    let session = run_over(&stores, &options(&[WorkloadName::A])).unwrap();
    let a = &session.workloads[0];
    assert!(a.corrupt > 0 && a.verified == count(a, "read"));
    let problems = session.problems();
    assert!(problems[0].contains("holds bytes that were never written"), "{problems:?}");

    let unchecked = YcsbOptions { verify: false, no_load: true, ..options(&[WorkloadName::A]) };
    assert_eq!(run_over(&stores, &unchecked).unwrap().problems(), [""; 0]);
}

#[test]
fn missing_records_are_counted_in_every_workload() {
    for name in WorkloadName::ALL {
        let stores = MemoryStores::default();
        let unloaded = YcsbOptions { no_load: true, ..options(&[name]) };
        let session = run_over(&stores, &unloaded).unwrap();
        assert!(session.load.is_none());
        assert!(session.workloads[0].missed > 0, "workload {name:?}");
        assert!(session.problems()[0].contains("found no record"), "workload {name:?}");
    }
}

#[test]
fn single_fields_are_read_and_written_in_place() {
    let stores = MemoryStores::default();
    for write_all_fields in [false, true] {
        let several = YcsbOptions {
            field_count: 4,
            field_length: 32,
            read_all_fields: false,
            write_all_fields,
            ..options(&[WorkloadName::A, WorkloadName::F])
        };
        assert_eq!(run_over(&stores, &several).unwrap().problems(), [""; 0]);
        assert!(stores.pairs().values().all(|value| value.len() == 4 * 36));
    }
    let other = YcsbOptions { no_load: true, field_count: 2, ..options(&[WorkloadName::A]) };
    let problems = run_over(&stores, &other).unwrap().problems();
    assert!(problems[0].contains("--field-count"), "{problems:?}");
}

#[test]
fn properties_say_which_records_there_are_and_how_they_are_called() {
    let stores = MemoryStores::default();
    let ordered = ["recordcount=900", "insertstart=300", "insertorder=ordered", "zeropadding=6"];
    let properties = ordered.map(str::to_owned).to_vec();
    let session = run_over(&stores, &YcsbOptions { properties, ..options(&[WorkloadName::E]) });
    let session = session.unwrap();
    assert_eq!(session.problems(), [""; 0]);
    assert_eq!(session.load.unwrap().operations, 600);
    let pairs = stores.pairs();
    assert_eq!(pairs.keys().next().unwrap(), b"user000300");
    let last = format!("user{:06}", 299 + pairs.len());
    assert_eq!(pairs.keys().last().unwrap(), last.as_bytes());
}

#[test]
fn a_rate_given_is_not_passed() {
    let properties = vec!["target=2000".to_owned()];
    let slow = YcsbOptions { operations: 300, properties, ..options(&[WorkloadName::C]) };
    let c = &run_over(&MemoryStores::default(), &slow).unwrap().workloads[0];
    // Each thread also waits after its last operation.
    assert!(c.seconds >= 0.14, "{} s", c.seconds);
}

#[test]
fn a_failing_store_ends_the_run_and_says_where() {
    let stores = MemoryStores { full_at: 100, ..MemoryStores::default() };
    let error = run_over(&stores, &options(&[WorkloadName::A])).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("insert of user") && message.ends_with("the map is full"),
        "{message}"
    );
}

/// Stores in memory, one of which fails or panics while opening.
struct Closed {
    memory: MemoryStores,
    panics: bool,
}

impl StoreFactory for Closed {
    fn open(&self, thread: usize) -> Result<Box<dyn crate::Store + '_>, StoreError> {
        match thread {
            1 if self.panics => panic!("as the test wants"),
            1 => Err(StoreError::new("no pool")),
            _ => self.memory.open(thread),
        }
    }
    fn label(&self) -> String {
        String::new()
    }
    fn rack_of(&self, _thread: usize) -> u16 {
        0
    }
}

/// Stores without records: that of worker 1 fails first, that of worker 0 once the former is
/// closed.
#[derive(Default)]
struct FailingInTurn {
    gone: std::sync::OnceLock<()>,
}

struct Failing<'a> {
    thread: usize,
    stores: &'a FailingInTurn,
}

impl crate::Store for Failing<'_> {
    fn read(&mut self, _key: &[u8], _value: &mut Vec<u8>) -> Result<bool, StoreError> {
        Ok(false)
    }
    fn update(&mut self, _key: &[u8], _value: &[u8]) -> Result<bool, StoreError> {
        Ok(false)
    }
    fn insert(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), StoreError> {
        if self.thread == 0 {
            self.stores.gone.wait();
        }
        Err(StoreError::new("it fails"))
    }
    fn scan(
        &mut self,
        _start: &[u8],
        _count: u64,
        _pairs: &mut crate::Pairs,
    ) -> Result<bool, StoreError> {
        Ok(false)
    }
    fn fields(&mut self) -> crate::Fields<'_> {
        crate::Fields::Together(self)
    }
}

impl crate::ValueStore for Failing<'_> {
    fn modify(
        &mut self,
        _key: &[u8],
        _change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<bool, StoreError> {
        Ok(false)
    }
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if self.thread == 1 {
            let _ = self.stores.gone.set(());
        }
    }
}

impl StoreFactory for FailingInTurn {
    fn open(&self, thread: usize) -> Result<Box<dyn crate::Store + '_>, StoreError> {
        Ok(Box::new(Failing { thread, stores: self }))
    }
    fn label(&self) -> String {
        String::new()
    }
    fn rack_of(&self, _thread: usize) -> u16 {
        0
    }
}

#[test]
fn of_several_failures_the_first_one_is_reported() {
    let plan = YcsbOptions { threads: 2, ..options(&[WorkloadName::A]) }.plan().unwrap();
    let error = run(&plan, &FailingInTurn::default(), Progress::new(true)).unwrap_err();
    assert!(matches!(error, RunError::Operation { thread: 1, .. }), "{error}");
}

#[test]
fn a_store_that_does_not_open_ends_the_run() {
    let plan =
        YcsbOptions { records: 1_000_000_000, ..options(&[WorkloadName::A]) }.plan().unwrap();
    let refusal = |panics| {
        let closed = Closed { memory: MemoryStores::default(), panics };
        run(&plan, &closed, Progress::new(true)).unwrap_err().to_string()
    };
    assert_eq!(refusal(false), "worker 1 could not open its store: no pool");
    assert_eq!(refusal(true), "a worker panicked; its message is above");
}

#[test]
fn the_same_seed_does_the_same_with_one_thread() {
    let pairs = |seed| {
        let stores = MemoryStores::default();
        let one = YcsbOptions { threads: 1, seed, ..options(&[WorkloadName::A, WorkloadName::F]) };
        run_over(&stores, &one).unwrap();
        stores.pairs().clone()
    };
    assert_eq!(pairs(7), pairs(7));
    assert_ne!(pairs(7), pairs(8));
}
