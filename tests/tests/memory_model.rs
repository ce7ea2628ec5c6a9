//! Litmus tests of the memory model in docs/SEMANTICS.md, for threads and words of both racks, in
//! pools whose pages stay and in pools whose pages move.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use rackpool_client::{GlobalAddr, Pool};
use rackpool_tests::pool::TestPool;

/// Values that a writer stores, one after the other.
const VALUES: u64 = 300;

/// Runs a litmus test for threads in all combinations of racks, on two words in all combinations of
/// homes. `test` gets two threads' pools and the words.
fn everywhere(test: impl Fn([&Pool; 2], [GlobalAddr; 2])) {
    for pool in [TestPool::small(), TestPool::restless(16 << 20, 64 << 10)] {
        pool.wait_until_racks_meet();
        let racks = [pool.open(0), pool.open(1)];
        for combination in 0..16 {
            let rack = |bit: u32| &racks[combination >> bit & 1];
            // A page each: the words may move apart.
            let words = [rack(2), rack(3)].map(|home| {
                let word = home.alloc(home.page_bytes()).unwrap();
                home.write(word, &[0; 8]).unwrap();
                word
            });
            test([rack(0), rack(1)], words);
            words.iter().for_each(|word| racks[0].free(*word).unwrap());
        }
    }
}

fn load(pool: &Pool, word: GlobalAddr) -> u64 {
    pool.read_value(word).unwrap()
}

/// Calls `look` until `ended`, and once more after that. Returns what it saw, without repetitions.
fn watch<T: PartialEq>(ended: &AtomicBool, mut look: impl FnMut() -> T) -> Vec<T> {
    let mut seen = Vec::new();
    loop {
        let is_last = ended.load(Ordering::SeqCst);
        let now = look();
        if seen.last() != Some(&now) {
            seen.push(now);
        }
        if is_last {
            return seen;
        }
    }
}

/// Stores 1 to [`VALUES`].
fn count_up(pool: &Pool, word: GlobalAddr) {
    (1..=VALUES).for_each(|value| pool.write_value(word, &value).unwrap());
}

#[test]
fn a_reader_of_a_flag_reads_what_was_written_before_it() {
    everywhere(|[writer, reader], [data, flag]| {
        let ended = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                watch(&ended, || {
                    let flag = load(reader, flag);
                    (flag, load(reader, data))
                })
            });
            for value in 1..=VALUES {
                writer.write_value(data, &value).unwrap();
                // A plain write serves as the flag, and so does an atomic.
                if value % 2 == 0 {
                    writer.write_value(flag, &value).unwrap();
                } else {
                    writer.fetch_and_add(flag, 1).unwrap();
                }
            }
            ended.store(true, Ordering::SeqCst);
            reading.join().unwrap()
        });
        assert_eq!(seen.last(), Some(&(VALUES, VALUES)));
        for (flag, data) in seen {
            assert!(data >= flag, "the flag was {flag}, and the data {data}");
        }
    });
}

#[test]
fn an_atomic_between_write_and_read_excludes_store_buffering() {
    everywhere(|racks, words| {
        let spare = racks[0].alloc(8).unwrap();
        let start = Barrier::new(2);
        let found: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads = [0, 1].map(|own| {
                let start = &start;
                scope.spawn(move || {
                    let turn = |value| {
                        start.wait();
                        racks[own].write_value(words[own], &value).unwrap();
                        racks[own].fetch_and_add(spare, 1).unwrap();
                        load(racks[own], words[1 - own])
                    };
                    (1..=VALUES / 3).map(turn).collect()
                })
            });
            threads.map(|thread| thread.join().unwrap()).into()
        });
        for (value, (first, second)) in (1..).zip(found[0].iter().zip(&found[1])) {
            let old = value - 1;
            assert!((*first, *second) != (old, old), "both read the values before {value}");
        }
        racks[0].free(spare).unwrap();
    });
}

#[test]
fn two_readers_see_the_writes_of_two_writers_in_one_order() {
    everywhere(|racks, words| {
        let ended = AtomicBool::new(false);
        let [forth, back] = std::thread::scope(|scope| {
            let ended = &ended;
            let readers = [[0, 1], [1, 0]].map(|order| {
                scope.spawn(move || {
                    watch(ended, || {
                        let mut seen = [0; 2];
                        for word in order {
                            seen[word] = load(racks[order[0]], words[word]);
                        }
                        seen
                    })
                })
            });
            let other = scope.spawn(|| count_up(racks[1], words[1]));
            count_up(racks[0], words[0]);
            other.join().unwrap();
            ended.store(true, Ordering::SeqCst);
            readers.map(|reader| reader.join().unwrap())
        });
        assert_eq!((forth.last(), back.last()), (Some(&[VALUES; 2]), Some(&[VALUES; 2])));
        // If one reader finds word 0 newer than the other one, which reads it second, it must not
        // find word 1 older than that one did before.
        for [x, y] in &forth {
            for [other_x, other_y] in &back {
                assert!(
                    !(x > other_x && other_y > y),
                    "one saw {x} and then {y}, the other {other_y} and then {other_x}"
                );
            }
        }
    });
}
