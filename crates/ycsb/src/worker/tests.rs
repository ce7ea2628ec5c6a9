//! Workers that write to one record concurrently.

use std::sync::Barrier;

use super::*;
use crate::memory_store::MemoryStores;
use crate::store::StoreFactory;
use crate::{WorkloadName, YcsbOptions};

const FIELDS: usize = 2;

/// A store in memory that yields to other threads between a read and the next operation.
struct Slow<'a>(Box<dyn Store + 'a>);

impl Store for Slow<'_> {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        let found = self.0.read(key, value);
        std::thread::yield_now();
        found
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.0.update(key, value)
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.0.insert(key, value)
    }

    fn scan(&mut self, start: &[u8], count: u64, pairs: &mut Pairs) -> Result<bool, StoreError> {
        self.0.scan(start, count, pairs)
    }

    fn fields(&mut self) -> Fields<'_> {
        match self.0.fields() {
            Fields::Together(values) => Fields::Together(values),
            Fields::Apart(_) => panic!("a store in memory has whole values"),
        }
    }
}

#[test]
fn workers_that_write_different_fields_of_a_record_lose_none() {
    const ROUNDS: usize = 2000;
    let options = YcsbOptions {
        workloads: vec![WorkloadName::F],
        threads: FIELDS,
        field_count: FIELDS,
        field_length: 32,
        write_all_fields: false,
        ..YcsbOptions::default()
    };
    let plan = options.plan().unwrap();
    let (stores, records) = (MemoryStores::default(), AcknowledgedCounter::new(1));
    let worker = |thread| {
        let store = Box::new(Slow(stores.open(thread).unwrap()));
        Worker::new(&plan, store, &records, (1, thread))
    };
    let key = worker(0).key(0);
    worker(0).load(0).unwrap();
    let (before, after) = (Barrier::new(FIELDS), Barrier::new(FIELDS));
    // No thread stops early: the others would wait at the barrier for ever.
    let rounds_without = &|field: usize| {
        let mut own = worker(field);
        let mut lost = Vec::new();
        for round in 0..ROUNDS {
            own.writer.write_field(&key, field, &mut own.fresh);
            before.wait();
            let written = own.write(key, Some(field));
            after.wait();
            let value = stores.pairs()[key.as_bytes()].clone();
            let is_there = plan.layout.split(&value).is_some_and(|all| all[field] == own.fresh);
            if !matches!(written, Ok(true)) || !is_there {
                lost.push(round);
            }
        }
        lost
    };
    let lost: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..FIELDS).map(|field| scope.spawn(move || rounds_without(field))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(lost.iter().all(Vec::is_empty), "rounds in which a field was lost: {lost:?}");
}
