//! Compare-and-swap and fetch-and-add are linearizable among clients of all racks.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;

use rackpool_client::{AccessError, CompareAndSwap, GlobalAddr, Pool};
use rackpool_tests::pool::TestPool;

const THREADS: usize = 8;
const TURNS: usize = 400;

fn load(pool: &Pool, addr: GlobalAddr) -> u64 {
    let mut bytes = [0; 8];
    pool.read(addr, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Runs `work` in many threads, half of them in each rack; returns the values that they found.
fn in_both_racks(pool: &TestPool, work: impl Fn(&Pool) -> Vec<u64> + Sync) -> Vec<u64> {
    let racks = [pool.open(0), pool.open(1)];
    std::thread::scope(|scope| {
        let (racks, work) = (&racks, &work);
        let threads: Vec<_> =
            (0..THREADS).map(|index| scope.spawn(move || work(&racks[index % 2]))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

fn counter(pool: &TestPool, home: u16) -> (Pool, GlobalAddr) {
    let owner = pool.open(home);
    let addr = owner.alloc(8).unwrap();
    owner.write(addr, &[0; 8]).unwrap();
    (owner, addr)
}

#[test]
fn no_update_of_a_shared_counter_is_lost() {
    let pool = TestPool::small();
    for home in [0, 1] {
        let (owner, addr) = counter(&pool, home);
        let found = in_both_racks(&pool, |rack| {
            (0..TURNS).map(|_| rack.fetch_and_add(addr, 1).unwrap()).collect()
        });
        let total = u64::try_from(THREADS * TURNS).unwrap();
        assert_eq!(load(&owner, addr), total);
        assert_eq!(found.into_iter().collect::<BTreeSet<u64>>(), (0..total).collect());
    }
}

#[test]
fn of_many_swaps_from_one_value_exactly_one_is_done() {
    let pool = TestPool::small();
    for home in [0, 1] {
        let (owner, addr) = counter(&pool, home);
        let found = in_both_racks(&pool, |rack| {
            let raise = |_| loop {
                let before = load(rack, addr);
                if rack.compare_and_swap(addr, before, before + 1).unwrap() == before {
                    return before;
                }
            };
            (0..TURNS / 4).map(raise).collect()
        });
        let total = u64::try_from(THREADS * TURNS / 4).unwrap();
        assert_eq!(load(&owner, addr), total);
        assert_eq!(found.into_iter().collect::<BTreeSet<u64>>(), (0..total).collect());
    }
}

#[test]
fn aligned_words_are_never_torn() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    for home in &racks {
        let addr = home.alloc(8).unwrap();
        home.write(addr, &[0; 8]).unwrap();
        std::thread::scope(|scope| {
            for (rack, byte) in [(&racks[0], 1_u8), (&racks[1], 2), (&racks[0], 3)] {
                scope.spawn(move || {
                    for _ in 0..TURNS {
                        rack.write(addr, &[byte; 8]).unwrap();
                        let found = load(rack, addr).to_le_bytes();
                        assert!(found.iter().all(|b| *b == found[0]), "torn: {found:?}");
                    }
                });
            }
        });
    }
}

#[test]
fn a_batch_of_swaps_does_each_of_them_once_in_whatever_rack() {
    let pool = TestPool::small();
    let homes = [pool.open(0), pool.open(1)];
    // More swaps than can be under way at a time.
    let words: Vec<GlobalAddr> = (0..100_u64)
        .map(|index| {
            let home = &homes[usize::from(index % 3 == 0)];
            let addr = home.alloc(8).unwrap();
            home.write(addr, &index.to_le_bytes()).unwrap();
            addr
        })
        .collect();
    let swaps = |change: fn(u64) -> (u64, u64)| -> Vec<CompareAndSwap> {
        let swap = |(index, addr): (u64, &GlobalAddr)| {
            let (expected, new) = change(index);
            CompareAndSwap { addr: *addr, expected, new }
        };
        (0..).zip(&words).map(swap).collect()
    };
    for client in &homes {
        // Every second swap expects a wrong value.
        let before = client.compare_and_swap_batch(&swaps(|i| (i + i % 2, i + 1000))).unwrap();
        assert_eq!(before, (0..100).collect::<Vec<_>>());
        let back = client.compare_and_swap_batch(&swaps(|i| (i + 1000, i))).unwrap();
        let found = (0..100).map(|i| if i % 2 == 0 { i + 1000 } else { i });
        assert_eq!(back, found.collect::<Vec<_>>());
    }
    assert_eq!(homes[0].compare_and_swap_batch(&[]), Ok(vec![]));
    let misaligned = words[3].add(4).unwrap();
    let wrong = [CompareAndSwap { addr: misaligned, expected: 0, new: 1 }];
    assert_eq!(homes[0].compare_and_swap_batch(&wrong), Err(AccessError::Misaligned(misaligned)));
}
