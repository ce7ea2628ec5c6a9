//! Programs of two racks add to a pair of counters under its lock, and are killed; so are daemons.

use std::time::Duration;

use rackpool_client::{GlobalAddr, Pool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::client::TestClient;
use crate::pool::TestPool;

/// Bytes of a pair of counters, which are equal whenever no writer of them has ended.
pub const PAIR: usize = 16;
/// The most time until the lock of a killed holder is passed on, a restart of its daemon included.
const LONGEST: Duration = Duration::from_secs(60);
/// In one of this many rounds a daemon is killed too.
const DAEMONS: u64 = 10;

/// A pair of counters that are 0.
#[must_use]
pub fn pair(pool: &Pool) -> GlobalAddr {
    let addr = pool.alloc(64).expect("an empty rack");
    pool.write(addr, &[0; PAIR]).expect("a fresh object");
    addr
}

/// The counters of a pair.
#[must_use]
pub fn read(pool: &Pool, addr: GlobalAddr) -> [u64; 2] {
    let mut bytes = [0; PAIR];
    pool.read(addr, &mut bytes).expect("an object in use");
    counters(&bytes)
}

/// The counters in these bytes.
#[must_use]
pub fn counters(bytes: &[u8; PAIR]) -> [u64; 2] {
    let (words, _) = bytes.as_chunks::<8>();
    [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]
}

/// Kills in this many rounds; with `daemons`, daemons too.
///
/// # Panics
/// If an acknowledged update is lost, or a half one is there and the next holder is not told.
pub fn run(pool: &mut TestPool, rounds: u64, seed: u64, daemons: bool) {
    let mut random = SmallRng::seed_from_u64(seed);
    let addrs = [0, 1].map(|home| pair(&pool.open(home)));
    let mut most = [0; 2];
    for round in 0..rounds {
        let which = random.random_range(0..2);
        let addr = format!("{:x}", addrs[which].raw());
        // What was only written under the lock may be lost with a daemon.
        let first = if daemons { "0" } else { "1" };
        let add = ["add-locked", &addr, "1000000", first];
        let mut programs = [0, 1].map(|rack| pool.client(rack, &add));
        for program in &mut programs {
            program.wait_for_lines(random.random_range(1..40));
        }
        if daemons && round % DAEMONS == 0 {
            let rack = random.random_range(0..2);
            pool.kill_daemon(rack);
            pool.restart_daemon(rack);
        }
        let first = random.random_range(0..2);
        programs[first].kill();
        programs[1 - first].kill();
        most[which] = acknowledged(&programs).max(most[which]);
        check(&pool.open(u16::from(round % 2 == 0)), addrs[which], most[which], round);
    }
}

/// The last update that the programs have printed.
fn acknowledged(programs: &[TestClient]) -> u64 {
    let lines = programs.iter().flat_map(|program| &program.said);
    lines.map(|line| line.parse::<u64>().expect("a number")).max().unwrap_or(0)
}

fn check(pool: &Pool, addr: GlobalAddr, acknowledged: u64, round: u64) {
    let guard = pool.write_lock_within(addr, PAIR, LONGEST).expect("the lock of killed programs");
    let [first, second] = read(pool, addr);
    assert!(first == second || guard.recovered(), "round {round}: {first} and {second}");
    assert!(first >= acknowledged, "round {round}: {acknowledged} acknowledged, {first} there");
    let second = addr.add(8).expect("the second counter");
    guard.write(second, &first.to_le_bytes()).expect("a held lock");
    guard.unlock().expect("a held lock");
}
