//! Reads and writes under locks of another rack's lines: with the line cache, that is through the
//! guard, and without it.

use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId, WriteGuard};

use crate::cpu::{pin_process, pin_self};
use crate::locks::cluster;
use crate::measure::{Pair, in_turn, time_each};
use crate::table::Table;

/// Bytes of the longest lock.
pub(crate) const LOCK: usize = 4096;
/// Writes of a measurement, within these numbers of locks.
const WRITES: usize = 20_000;
const LOCKS: usize = 200;
const MOST_LOCKS: usize = 5_000;
const READS: usize = 1_000_000;
/// Length in bytes up to which writes were to go through the paper's write buffer.
const BUFFERED: usize = 256;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut cluster = cluster()?;
    let dir = cluster.options().dir.clone();
    let open = |rack| Pool::open(ClientOptions::new(&dir, RackId(rack)));
    let (home, pool) = (open(0)?, open(1)?);
    pin_self(0)?;
    let daemon = cluster.daemon(RackId(1))?.id();
    pin_process(daemon, 1)?;
    table.section("line cache: locks of another rack's lines, 4 KiB each");
    let addr = home.alloc(LOCK as u64)?;
    home.write(addr, &[1; LOCK])?;
    let own = pool.alloc(LOCK as u64)?;
    for len in [8, 16, 64, 128, 256, 512, 1024, 4096] {
        writes(table, &pool, addr, len)?;
    }
    one_write(table, &pool, addr);
    reads(table, &pool, addr, own)?;
    drop((home, pool));
    cluster.stop()
}

/// Parts of the lock in an order that is not that of their addresses.
pub(crate) fn parts(addr: GlobalAddr, len: usize) -> anyhow::Result<Vec<GlobalAddr>> {
    let count = LOCK / len;
    let at = |index: usize| addr.add((index * 7 % count * len) as u64);
    Ok((0..count).map(at).collect::<Result<_, _>>()?)
}

fn writes(table: &mut Table, pool: &Pool, addr: GlobalAddr, len: usize) -> anyhow::Result<()> {
    let measured = times_without(pool, addr, LOCK, &parts(addr, len)?, len);
    let name = format!("writes of {len} B, times without the cache");
    let limit = if len == 64 { 1.6 } else { 1.0 };
    let detail = format!("{:.2} and {:.2} us each", measured.ours / 1e3, measured.peer / 1e3);
    let faster = 1.0 / measured.ratio;
    if len <= BUFFERED {
        table.at_least(&name, faster, limit, "", &detail);
    } else {
        table.figure(&name, faster, "", &detail);
    }
    Ok(())
}

/// Locks whose holder writes once: nothing can be gathered.
fn one_write(table: &mut Table, pool: &Pool, addr: GlobalAddr) {
    let measured = times_without(pool, addr, 64, &[addr], 64);
    let detail = format!("{:.1} and {:.1} us each", measured.ours / 1e3, measured.peer / 1e3);
    // The same messages as without: the difference is noise.
    table.at_least("one write of 64 B a lock, times", 1.0 / measured.ratio, 0.95, "", &detail);
}

/// The time of a write of `len` bytes, under locks of `locked` bytes for one write of each part:
/// through the guard, and without it.
pub(crate) fn times_without(
    pool: &Pool,
    addr: GlobalAddr,
    locked: usize,
    parts: &[GlobalAddr],
    len: usize,
) -> Pair {
    let bytes = vec![2; len];
    let locks = (WRITES / parts.len()).clamp(LOCKS, MOST_LOCKS);
    let each = |write: &dyn Fn(&WriteGuard<'_>, GlobalAddr)| {
        time_each(locks * parts.len(), || {
            for _ in 0..locks {
                let guard = pool.write_lock(addr, locked).expect("a free lock");
                parts.iter().for_each(|at| write(&guard, *at));
                guard.unlock().expect("a held lock");
            }
        })
    };
    in_turn(
        || each(&|guard, at| guard.write(at, &bytes).expect("a held lock")),
        || each(&|_, at| pool.write(at, &bytes).expect("an object")),
    )
}

/// Repeated reads of 64 B under read locks: of another rack's lines, and of own ones.
fn reads(table: &mut Table, pool: &Pool, addr: GlobalAddr, own: GlobalAddr) -> anyhow::Result<()> {
    pool.write(own, &[1; LOCK])?;
    let (far, near) = (pool.read_lock(addr, LOCK)?, pool.read_lock(own, LOCK)?);
    let (far_parts, near_parts) = (parts(addr, 64)?, parts(own, 64)?);
    let mut bytes = [0; 64];
    let next = |parts: &[GlobalAddr], index: usize| parts[index % parts.len()];
    let through = in_turn(
        || {
            time_each(READS, || {
                for index in 0..READS {
                    far.read(next(&far_parts, index), &mut bytes).expect("a held lock");
                }
            })
        },
        || {
            let mut bytes = [0; 64];
            time_each(READS, || {
                for index in 0..READS {
                    near.read(next(&near_parts, index), &mut bytes).expect("a held lock");
                }
            })
        },
    );
    let mut bytes = [0; 64];
    let plain = time_each(READS, || {
        for index in 0..READS {
            pool.read(next(&near_parts, index), &mut bytes).expect("an object");
        }
    });
    let detail =
        format!("{:.1} and {:.1} ns; {plain:.1} ns without a lock", through.ours, through.peer);
    table.at_most("64 B read again, times a read of the own rack", through.ratio, 1.2, "", &detail);
    Ok(())
}
