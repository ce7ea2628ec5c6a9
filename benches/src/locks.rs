//! Locks: without a contender inside a rack and from another rack, and passed between two threads.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_testing::StopAtEnd;

use crate::cpu::{pin_process, pin_self};
use crate::measure::{in_turn, median, time_each};
use crate::table::Table;

/// Lines that are locked in turn, in no order, each in 4 KiB of its own: their lock words lie all
/// over the table.
const LINES: usize = 1 << 12;
const LOCKS: usize = 100_000;
const REMOTE: usize = 20_000;
const LATENCY_US: f64 = 2.0;
/// How long two threads pass a lock on to each other.
const CONTENDED: Duration = Duration::from_secs(2);

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut cluster = cluster()?;
    let dir = cluster.options().dir.clone();
    let open = |rack| Pool::open(ClientOptions::new(&dir, RackId(rack)));
    let (here, there) = (open(0)?, open(1)?);
    pin_self(0)?;
    table.section("locks of 64 B");
    local(table, &here)?;
    let daemon = cluster.daemon(RackId(1))?.id();
    pin_process(daemon, 1)?;
    remote(table, &here, &there)?;
    contended(table, "of one rack", &here, &open(0)?)?;
    contended(table, "of two racks", &here, &there)?;
    drop((here, there));
    cluster.stop()
}

/// Two racks whose pages stay where they are.
pub(crate) fn cluster() -> anyhow::Result<Cluster> {
    let mut options = ClusterOptions::ephemeral()?;
    options.memory = 256 << 20;
    options.latency_us = LATENCY_US;
    options.daemon_arguments = vec![("--swap", "off".into())];
    Cluster::start(options)
}

fn lines(pool: &Pool) -> anyhow::Result<Vec<GlobalAddr>> {
    let bytes = LINES as u64 * 4096;
    let base = pool.alloc(bytes)?;
    // A step that has no divisor in common with the number of lines.
    let at = |index: u64| base.add(index * 1_009 % LINES as u64 * 4096);
    Ok((0..LINES as u64).map(at).collect::<Result<_, _>>()?)
}

fn local(table: &mut Table, pool: &Pool) -> anyhow::Result<()> {
    let lines = lines(pool)?;
    for addr in &lines {
        pool.write(*addr, &[1; 64])?;
    }
    let peer: Vec<RwLock<[u8; 64]>> = (0..LINES).map(|_| RwLock::new([0; 64])).collect();
    let next = |index: usize| lines[index % LINES];
    let write = in_turn(
        || {
            time_each(LOCKS, || {
                (0..LOCKS).for_each(|index| drop(pool.write_lock(next(index), 64)));
            })
        },
        || time_each(LOCKS, || (0..LOCKS).for_each(|i| drop(peer[i * 1_009 % LINES].write()))),
    );
    let detail = format!("{:.1} x a std RwLock", write.ratio);
    table.at_most("write lock and unlock, own rack", write.ours, 100.0, "ns", &detail);
    let read = in_turn(
        || {
            time_each(LOCKS, || {
                (0..LOCKS).for_each(|index| drop(pool.read_lock(next(index), 64)));
            })
        },
        || time_each(LOCKS, || (0..LOCKS).for_each(|i| drop(peer[i * 1_009 % LINES].read()))),
    );
    let detail = format!("{:.1} x a std RwLock", read.ratio);
    table.at_most("read lock and unlock, own rack", read.ours, 100.0, "ns", &detail);
    Ok(())
}

fn remote(table: &mut Table, home: &Pool, pool: &Pool) -> anyhow::Result<()> {
    let addr = home.alloc(64)?;
    home.write(addr, &[1; 64])?;
    // Once before, since the first one also asks for the page.
    pool.write_lock(addr, 64)?.unlock()?;
    let before = pool.rack_status()?.pure_requests;
    let mut locks = Vec::with_capacity(REMOTE);
    for _ in 0..REMOTE {
        let began = Instant::now();
        let guard = pool.write_lock(addr, 64)?;
        locks.push(began.elapsed().as_secs_f64() * 1e6);
        guard.unlock()?;
    }
    let requests = pool.rack_status()?.pure_requests - before;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let each = requests as f64 / REMOTE as f64;
    // The lease of the page is renewed now and then.
    table.at_most("requests to another rack for each lock", each, 2.05, "", "");
    let lock = median(locks);
    table.figure("write lock, another rack: p50", lock, "us", "");
    Ok(())
}

/// Two threads that write a line under its lock: the time from one holder to the next.
fn contended(table: &mut Table, name: &str, home: &Pool, other: &Pool) -> anyhow::Result<()> {
    let addr = home.alloc(64)?;
    home.write(addr, &[0; 64])?;
    let stop = AtomicBool::new(false);
    let add = |pool: &Pool| -> anyhow::Result<u64> {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let guard = pool.write_lock(addr, 8)?;
            let mut bytes = [0; 8];
            guard.read(addr, &mut bytes)?;
            guard.write(addr, &(u64::from_le_bytes(bytes) + 1).to_le_bytes())?;
            guard.unlock()?;
            count += 1;
        }
        Ok(count)
    };
    let counts = std::thread::scope(|scope| -> anyhow::Result<[u64; 2]> {
        let stopper = StopAtEnd(&stop);
        let threads = [home, other].map(|pool| scope.spawn(move || add(pool)));
        std::thread::sleep(CONTENDED);
        drop(stopper);
        let [first, second] = threads.map(|thread| thread.join());
        let ended = |thread: std::thread::Result<anyhow::Result<u64>>| {
            thread.map_err(|_| anyhow::anyhow!("a thread has panicked"))?
        };
        Ok([ended(first)?, ended(second)?])
    })?;
    let [first, second] = counts;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let each = CONTENDED.as_secs_f64() * 1e6 / (first + second) as f64;
    let detail = format!("{first} and {second}");
    table.figure(&format!("an update, two threads {name}"), each, "us", &detail);
    Ok(())
}
