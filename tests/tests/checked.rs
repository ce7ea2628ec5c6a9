//! A checked client detects invalid uses of addresses, and reports no valid ones.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Arc;

use rackpool_client::{
    AccessError, CompareAndSwap, FreeError, GlobalAddr, Pool, ReadRequest, WriteRequest,
};
use rackpool_kv::{Table, TableOptions};
use rackpool_testing::wait::TIMEOUT;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The byte with which a checked client fills freed objects.
const POISON: u8 = 0xdb;

fn checked(pool: &TestPool, rack: u16) -> Pool {
    Pool::open(pool.options(rack).checked(true)).unwrap()
}

/// The errors of every operation on 8 bytes.
fn errors_at(pool: &Pool, addr: GlobalAddr) -> Vec<AccessError> {
    let (mut into, from) = ([0; 8], [1; 8]);
    let mut errors = vec![
        pool.read(addr, &mut into).unwrap_err(),
        pool.write(addr, &from).unwrap_err(),
        pool.read_batch(&mut [ReadRequest { addr, into: &mut into }]).unwrap_err(),
        pool.read_many([(addr, &mut into[..])].into_iter()).unwrap_err(),
        pool.write_batch(&[WriteRequest { addr, from: &from }]).unwrap_err(),
        pool.read_value::<u64>(addr).unwrap_err(),
        pool.write_value(addr, &1_u64).unwrap_err(),
    ];
    if addr.raw().is_multiple_of(8) {
        let swap = CompareAndSwap { addr, expected: 0, new: 1 };
        errors.extend([
            pool.compare_and_swap(addr, 0, 1).unwrap_err(),
            pool.fetch_and_add(addr, 1).unwrap_err(),
            pool.compare_and_swap_batch(&[swap]).unwrap_err(),
        ]);
    }
    errors
}

#[test]
fn an_access_that_goes_past_its_object_is_refused() {
    let pool = TestPool::small();
    let racks = [checked(&pool, 0), checked(&pool, 1)];
    for home in &racks {
        for bytes in [16, 64, 4096, PAGE, 3 * PAGE] {
            let [addr, next] = [(); 2].map(|()| home.alloc(bytes).unwrap());
            contents::write(home, next, bytes);
            for rack in &racks {
                let object = rack.object(GlobalAddr::from_raw(addr.raw() + bytes - 1)).unwrap();
                assert_eq!((object.addr(), object.bytes()), (addr, bytes));
                contents::write(rack, object.at(0, bytes).unwrap(), bytes);
                let last = object.at(bytes - 8, 8).unwrap();
                rack.write_value(last, &bytes).unwrap();
                assert_eq!(rack.fetch_and_add(last, 1).unwrap(), bytes);
                assert_eq!(rack.read_value::<u64>(last).unwrap(), bytes + 1);
                let beyond = GlobalAddr::from_raw(last.raw() + 4);
                let refused = AccessError::BeyondObject { addr: beyond, len: 8, available: 4 };
                assert_eq!(object.at(bytes - 4, 8), Err(refused.clone()));
                for error in errors_at(rack, beyond) {
                    assert_eq!(error, refused, "{bytes} B");
                }
            }
            contents::check(home, next, bytes);
            [addr, next].iter().for_each(|addr| home.free(*addr).unwrap());
        }
    }
    racks.into_iter().for_each(Pool::close);
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn an_access_to_what_was_freed_is_refused_whoever_freed_it() {
    let pool = TestPool::small();
    let (own, plain, remote) = (checked(&pool, 0), pool.open(0), pool.open(1));
    for bytes in [16, 64, 4096] {
        // The page holds another object, so it stays allocated.
        let other = own.alloc(bytes).unwrap();
        let by_others: [&dyn Fn(GlobalAddr) -> Result<(), FreeError>; 3] =
            [&|addr| own.free(addr), &|addr| plain.free(addr), &|addr| {
                std::thread::scope(|scope| scope.spawn(|| own.free(addr)).join().unwrap())
            }];
        for free in by_others {
            let addr = own.alloc(bytes).unwrap();
            contents::write(&own, addr, bytes);
            free(addr).unwrap();
            for error in errors_at(&own, addr) {
                assert_eq!(error, AccessError::NotAllocated(addr), "{bytes} B");
            }
            assert_eq!(own.object(addr), Err(AccessError::NotAllocated(addr)));
            assert_eq!(own.free(addr), Err(FreeError::NotAllocated(addr)));
        }
        contents::write(&own, other, bytes);
        contents::check(&own, other, bytes);
        own.free(other).unwrap();
    }
    own.close();
    plain.close();
    remote.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn who_still_reads_what_was_freed_sees_it() {
    let pool = TestPool::small();
    let (own, plain) = (checked(&pool, 0), pool.open(0));
    // The other object keeps the page allocated.
    let [kept, addr] = [(); 2].map(|()| own.alloc(64).unwrap());
    contents::write(&plain, addr, 64);
    own.free(addr).unwrap();
    assert_eq!(plain.read_value::<[u8; 64]>(addr).unwrap(), [POISON; 64]);
    own.free(kept).unwrap();
    own.close();
    plain.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

/// A table reads objects that other clients free meanwhile, and detects that; its results are still
/// correct.
#[test]
fn tables_work_over_checked_clients() {
    const OPERATIONS: usize = 4000;
    const KEYS: u64 = 40;

    let pool = TestPool::start(32 << 20, 64 << 10);
    pool.wait_until_racks_meet();
    let racks = [0, 1].map(|rack| Arc::new(checked(&pool, rack)));
    let options = TableOptions { max_depth: 8, segment_bytes: 4096 };
    let table = Table::create(Arc::clone(&racks[0]), &options).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let rack = Arc::clone(&racks[usize::from(seed == 2)]);
            let addr = table.addr();
            scope.spawn(move || {
                let table = Table::open(rack, addr).unwrap();
                let (mut handle, mut random) = (table.handle(), SmallRng::seed_from_u64(seed));
                let mut found = Vec::new();
                for _ in 0..OPERATIONS {
                    let key = random.random_range(0..KEYS).to_le_bytes();
                    match random.random_range(0..3) {
                        0 => _ = handle.delete(&key).unwrap(),
                        1 => {
                            let len = [8, 100, 3000][random.random_range(0..3)];
                            handle.put(&key, &vec![key[0]; len]).unwrap();
                        }
                        _ if handle.get(&key, &mut found).unwrap() => {
                            assert!(found.iter().all(|byte| *byte == key[0]), "{key:?}");
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    table.destroy().unwrap();
    racks.into_iter().for_each(|rack| Arc::into_inner(rack).unwrap().close());
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}
