//! Tables with names: clients that create the same table concurrently and are stopped or killed at
//! each memory operation.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rackpool_kv::{GlobalAddr, KvError, Memory, Roots, Table, TableOptions};
use support::heap::{Heap, HeapError};
use support::history::{Op, perform};
use support::interleaving::{Client, Replay, run, scheduler as with_daemon, seeds};
use support::scheduler::{Fate, scheduler};
use support::{SEGMENT_BYTES, value_of};

const NAME: &str = "words";
/// The size of a table's header in the pool.
const HEADER: u64 = 1024;

fn open(heap: &Arc<Heap>) -> Result<Table<Arc<Heap>>, KvError<HeapError>> {
    let options = TableOptions { max_depth: 8, segment_bytes: SEGMENT_BYTES };
    let table = Table::open_or_create(Arc::clone(heap), NAME, &options)?;
    Ok(table.with_lock_wait(Duration::ZERO))
}

/// Uses the table until it has split, destroys it, and returns the sizes of what is still
/// allocated.
fn use_up(heap: &Arc<Heap>, table: Table<Arc<Heap>>) -> Vec<u64> {
    let mut handle = table.handle();
    for key in 100..200 {
        perform(&mut handle, key, Op::Put(key));
    }
    for key in 100..200 {
        assert_eq!(value_of(&mut handle, key), Some(key));
    }
    drop(handle);
    let _ = heap.set_root(NAME, Some(table.addr()), None).unwrap();
    table.destroy().unwrap();
    heap.live()
}

/// A creator meets its fate at its operation `at`; another one comes later. Returns whether the
/// first met it.
fn meet(fate: fn(u64) -> Fate, at: u64) -> bool {
    let heap = Arc::new(Heap::new(1 << 20));
    let time = scheduler(1, &[fate(at), Fate::Lives]).never_switching();
    heap.schedule(Arc::clone(&time));
    let addrs: Mutex<Vec<GlobalAddr>> = Mutex::default();
    let had_name = Mutex::new(false);
    let create = || {
        let table = open(&heap).unwrap();
        addrs.lock().unwrap().push(table.addr());
        perform(&mut table.handle(), 1, Op::Put(7));
    };
    let later = || {
        *had_name.lock().unwrap() = heap.root(NAME).unwrap().is_some();
        // In half of the cases the daemon recovers later.
        if at.is_multiple_of(2) {
            heap.recover(|client| client == Some(0) && time.is_gone(0), || {});
        }
        let table = open(&heap).unwrap();
        addrs.lock().unwrap().push(table.addr());
        perform(&mut table.handle(), 2, Op::Put(8));
    };
    let killed = time.run(vec![Box::new(create), Box::new(later)])[0];
    heap.recover(|client| client == Some(0), || {});
    let addrs = addrs.into_inner().unwrap();
    assert!(addrs.iter().all(|addr| *addr == addrs[0]), "at {at}: {addrs:?}");
    let table = open(&heap).unwrap();
    assert_eq!(table.addr(), addrs[0], "at {at}");
    assert_eq!(value_of(&mut table.handle(), 2), Some(8), "at {at}");
    if !killed {
        assert_eq!(value_of(&mut table.handle(), 1), Some(7), "at {at}");
    }
    let left = use_up(&heap, table);
    let may_be_left = killed && !had_name.into_inner().unwrap();
    assert!(left.is_empty() || (may_be_left && left == [HEADER]), "at {at}: {left:?}");
    time.operations(0) >= at
}

#[test]
fn a_table_whose_creator_was_killed_is_completed_by_the_next_to_open_it() {
    let count = (1..).take_while(|at| meet(Fate::KilledAt, *at)).count();
    assert!(count > 15, "{count}");
}

#[test]
fn a_table_whose_creator_was_stopped_is_completed_by_others_and_used_by_both() {
    let count = (1..).take_while(|at| meet(Fate::StoppedAt, *at)).count();
    assert!(count > 15, "{count}");
}

#[test]
fn clients_that_create_a_table_at_the_same_time_get_one_and_leave_no_other() {
    for seed in seeds(400) {
        let _replay = Replay(seed);
        let heap = Arc::new(Heap::new(1 << 20));
        let time = with_daemon(seed, &[Fate::Lives; 3], if seed % 2 == 0 { 0 } else { 20 });
        let addrs: Mutex<Vec<GlobalAddr>> = Mutex::default();
        let clients = (0..3_u64).map(|client| -> Client<'_> {
            let (heap, addrs) = (&heap, &addrs);
            Box::new(move || {
                let table = open(heap).unwrap();
                addrs.lock().unwrap().push(table.addr());
                perform(&mut table.handle(), client, Op::Put(client));
            })
        });
        run(&heap, &time, clients.collect(), || {});
        let addrs = addrs.into_inner().unwrap();
        assert!(addrs.len() == 3 && addrs.iter().all(|addr| *addr == addrs[0]), "{addrs:?}");
        let table = open(&heap).unwrap();
        for client in 0..3 {
            assert_eq!(value_of(&mut table.handle(), client), Some(client));
        }
        assert_eq!(use_up(&heap, table), Vec::<u64>::new());
    }
}

#[test]
fn a_table_that_finds_no_memory_is_completed_when_there_is_some() {
    let heap = Arc::new(Heap::new(1 << 20));
    heap.segments_left.store(0, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(open(&heap), Err(KvError::Memory(HeapError::Full))));
    let addr = heap.root(NAME).unwrap();
    assert!(addr.is_some());
    heap.segments_left.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    let table = open(&heap).unwrap();
    assert_eq!(Some(table.addr()), addr);
    assert_eq!(use_up(&heap, table), Vec::<u64>::new());
}

#[test]
fn a_table_at_a_place_leaves_nothing_wherever_its_creator_is_killed() {
    let options = TableOptions { max_depth: 8, segment_bytes: SEGMENT_BYTES };
    let meet = |at| {
        let heap = Arc::new(Heap::new(1 << 20));
        let place = heap.allocate(64).unwrap();
        heap.write(place, &[0; 8]).unwrap();
        let open = || {
            let table = Table::open_or_create_at(Arc::clone(&heap), place, &options).unwrap();
            table.with_lock_wait(Duration::ZERO)
        };
        let time = scheduler(1, &[Fate::KilledAt(at), Fate::Lives]).never_switching();
        heap.schedule(Arc::clone(&time));
        let later = || {
            if at.is_multiple_of(2) {
                heap.recover(|client| client == Some(0), || {});
            }
            perform(&mut open().handle(), 2, Op::Put(8));
        };
        let killed = time.run(vec![Box::new(|| drop(open())), Box::new(later)])[0];
        heap.recover(|client| client == Some(0), || {});
        assert_eq!(value_of(&mut open().handle(), 2), Some(8), "at {at}");
        assert_eq!(use_up(&heap, open()), [64], "at {at}");
        killed
    };
    assert!((1..).take_while(|at| meet(*at)).count() > 15);
}
