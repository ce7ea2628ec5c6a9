//! The key-value table, used by programs in both racks that are sometimes killed.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rackpool_client::Pool;
use rackpool_kv::{Table, TableOptions};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::client::TestClient;
use rackpool_tests::pool::TestPool;
use rackpool_tests::program::store::{number_of, value};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const ROUNDS: u64 = 20;
/// The most time that any operation of a surviving client may take.
const SLOWEST: Duration = Duration::from_secs(5);

/// Fields are dropped in order: the clients before the pool.
struct Tables {
    table: Table<Arc<Pool>>,
    racks: [Arc<Pool>; 2],
    pool: TestPool,
}

impl Tables {
    fn new() -> Self {
        let pool = TestPool::start(32 << 20, 64 << 10);
        pool.wait_until_racks_meet();
        let racks = [0, 1].map(|rack| Arc::new(pool.open(rack)));
        // Small segments, which split often.
        let options = TableOptions { max_depth: 12, segment_bytes: 4096 };
        let table = Table::create(Arc::clone(&racks[0]), &options).unwrap();
        Self { table, racks, pool }
    }

    fn open(&self, rack: usize) -> Table<Arc<Pool>> {
        Table::open(Arc::clone(&self.racks[rack]), self.table.addr()).unwrap()
    }

    fn client(&self, rack: u64, command: &str, arguments: &str) -> TestClient {
        let line = format!("{command} {:x} {arguments}", self.table.addr().raw());
        let words: Vec<&str> = line.split(' ').collect();
        self.pool.client(u16::try_from(rack).unwrap(), &words)
    }
}

/// Puts and gets keys of its own until told to stop; returns the longest duration of an operation.
fn work_on(table: &Table<Arc<Pool>>, name: &str, stop: &AtomicBool) -> Duration {
    let (mut handle, mut found) = (table.handle(), Vec::new());
    let mut slowest = Duration::ZERO;
    let mut last = BTreeMap::new();
    for number in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{name}-{}", number % 50);
        let began = Instant::now();
        handle.put(key.as_bytes(), &value(number, 40)).unwrap();
        last.insert(key, number);
        slowest = slowest.max(began.elapsed());
        let (key, number) =
            last.iter().nth(usize::try_from(number % 7).unwrap() % last.len()).unwrap();
        let began = Instant::now();
        assert!(handle.get(key.as_bytes(), &mut found).unwrap(), "{key} is lost");
        slowest = slowest.max(began.elapsed());
        assert_eq!(number_of(&found), Some(*number), "{key}");
    }
    slowest
}

#[test]
fn acknowledged_puts_survive_killed_clients() {
    const KEYS: u64 = 40;
    let tables = Tables::new();
    let mut random = SmallRng::seed_from_u64(1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = [(0, "a"), (1, "b")]
            .map(|(rack, name)| {
                let (table, stop) = (tables.open(rack), &stop);
                scope.spawn(move || work_on(&table, name, stop))
            })
            .into();
        let mut reader = tables.open(1).handle();
        for round in 0..ROUNDS {
            // Values of several size classes, so that objects of all kinds are in use.
            let bytes = [8, 100, 3000, 20_000][usize::try_from(round % 4).unwrap()];
            let mut clients = [0, 1].map(|rack| {
                tables.client(rack, "put", &format!("round{round}rack{rack} {bytes} {KEYS}"))
            });
            for client in &mut clients {
                client.wait_for_lines(random.random_range(1..120));
            }
            for client in &mut clients {
                client.kill();
                check_puts(&mut reader, &client.said, KEYS);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            let slowest = worker.join().unwrap();
            assert!(slowest < SLOWEST, "a client had to wait for {slowest:?}");
        }
    });
    // The first entries still exist.
    let mut found = Vec::new();
    assert!(tables.open(0).handle().get(b"round0rack0-1", &mut found).unwrap());
}

/// Checks that each key has its last acknowledged value, or the value of the one put that the kill
/// interrupted.
fn check_puts(reader: &mut rackpool_kv::Handle<Arc<Pool>>, said: &[String], keys: u64) {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for line in said {
        let words: Vec<&str> = line.split(' ').collect();
        last.insert(words[1], words[2].parse().unwrap());
    }
    let total = u64::try_from(said.len()).unwrap();
    let mut found = Vec::new();
    for (key, number) in last {
        assert!(reader.get(key.as_bytes(), &mut found).unwrap(), "{key} is lost");
        let got = number_of(&found).unwrap();
        let interrupted = got == total + 1 && got % keys == number % keys;
        assert!(got == number || interrupted, "{key} is {got}, acknowledged {number} of {total}");
    }
}

#[test]
fn no_raise_of_a_counter_is_lost_or_done_twice() {
    let tables = Tables::new();
    let mut random = SmallRng::seed_from_u64(2);
    let mut acknowledged = BTreeSet::new();
    let mut kills = 0;
    for _ in 0..ROUNDS / 2 {
        let mut clients = [0, 1, 0, 1].map(|rack| tables.client(rack, "count", "counter"));
        // The nearer client wins more often; the test requires only that some client makes
        // progress.
        let enough = random.random_range(1..200);
        wait_until("the counter grows", TIMEOUT, || {
            clients.iter_mut().for_each(TestClient::listen);
            clients.iter().map(|client| client.said.len()).sum::<usize>() >= enough
        });
        for client in &mut clients {
            client.kill();
            kills += 1;
        }
        for line in clients.iter().flat_map(|client| &client.said) {
            let number: u64 = line.strip_prefix("raised ").unwrap().parse().unwrap();
            assert!(acknowledged.insert(number), "two clients raised the counter to {number}");
        }
    }
    let mut found = Vec::new();
    assert!(tables.open(1).handle().get(b"counter", &mut found).unwrap());
    let (count, sure) = (number_of(&found).unwrap(), u64::try_from(acknowledged.len()).unwrap());
    // A client may be killed between an increment and its announcement.
    assert!((sure..=sure + kills).contains(&count), "{count} with {sure} announced");
}

#[test]
fn threads_and_racks_share_one_table() {
    let tables = Tables::new();
    let total = 3000_u64;
    std::thread::scope(|scope| {
        for worker in 0..6_u64 {
            let table = tables.open(usize::try_from(worker % 2).unwrap());
            scope.spawn(move || {
                let (mut handle, mut found) = (table.handle(), Vec::new());
                for number in (0..total).filter(|number| number % 6 == worker) {
                    let key = format!("key {number}");
                    assert!(handle.insert(key.as_bytes(), &value(number, 30)).unwrap());
                    assert!(!handle.insert(key.as_bytes(), b"other").unwrap());
                    if number % 3 == 0 {
                        assert!(handle.delete(key.as_bytes()).unwrap());
                        assert!(!handle.get(key.as_bytes(), &mut found).unwrap());
                    }
                }
            });
        }
    });
    let (mut handle, mut found) = (tables.open(0).handle(), Vec::new());
    for number in 0..total {
        let key = format!("key {number}");
        assert_eq!(handle.get(key.as_bytes(), &mut found).unwrap(), number % 3 != 0, "{key}");
        assert!(number % 3 == 0 || number_of(&found) == Some(number), "{key}");
    }
}
