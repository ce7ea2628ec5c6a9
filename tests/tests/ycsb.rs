//! The benchmark's store over the table of a real pool.

use rackpool_client::RackId;
use rackpool_tests::pool::TestPool;
use rackpool_ycsb::{Fields, PoolStores, StoreFactory};

const ROUNDS: u64 = 2000;
const KEY: &[u8] = b"user1";

/// Adds 1 to number `field` of a value.
fn raise(value: &mut [u8], field: usize) {
    let numbers = value.as_chunks_mut::<8>().0;
    numbers[field] = (u64::from_le_bytes(numbers[field]) + 1).to_le_bytes();
}

#[test]
fn fields_of_one_record_written_from_two_racks_are_all_there() {
    // The benchmark's table has a directory of 512 KiB, in one page.
    let pool = TestPool::with(|options| (options.page_size, options.memory) = (2 << 20, 64 << 20));
    let stores = PoolStores::open(pool.dir(), &[RackId(0), RackId(1)], 1, "ycsb").unwrap();
    stores.open(0).unwrap().insert(KEY, &[0; 16]).unwrap();
    std::thread::scope(|scope| {
        for field in 0..2 {
            let stores = &stores;
            scope.spawn(move || {
                let mut store = stores.open(field).unwrap();
                let Fields::Together(values) = store.fields() else { panic!("one value") };
                assert!(!values.modify(b"none", &mut |_| ()).unwrap());
                for _ in 0..ROUNDS {
                    assert!(values.modify(KEY, &mut |value| raise(value, field)).unwrap());
                }
            });
        }
    });
    let mut value = Vec::new();
    assert!(stores.open(0).unwrap().read(KEY, &mut value).unwrap());
    assert_eq!(value, [ROUNDS.to_le_bytes(), ROUNDS.to_le_bytes()].concat());
}
