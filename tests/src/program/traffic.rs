//! Allocating, storing and freeing without a pause, so that a kill hits any step of them.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_kv::{Handle, Table};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Arguments;
use crate::contents;

/// Keys in the table.
const KEYS: u32 = 300;
/// Roots of each rack's clients.
const ROOTS: u32 = 4;
/// Sizes of values.
const VALUES: [usize; 5] = [20, 300, 1500, 9000, 100_000];
/// The largest object that is allocated without a reservation. Such an object stays in use when its
/// program is killed while holding it.
const LARGEST: u64 = 256;
/// The most operations in a row that may fail, a millisecond apart.
const FAILURES: u32 = 10_000;

/// `traffic TABLE SEED`: changes keys of a table and roots, and allocates and frees, until its
/// standard input ends. Refusals of racks that have just been restarted do not end it.
pub(super) fn traffic(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let (table, seed) = (arguments.addr("TABLE")?, arguments.number("SEED")?);
    let mut random = SmallRng::seed_from_u64(seed);
    let ends = ends_with_input();
    let mut handle = Table::open(Arc::clone(pool), table)?.handle();
    let mut failures = 0;
    while !ends.load(Ordering::Relaxed) {
        match step(pool, &mut handle, &mut random) {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                if failures > FAILURES {
                    return Err(error.context("nothing can be done any more"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    Ok(())
}

fn ends_with_input() -> Arc<AtomicBool> {
    let ends = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ends);
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while std::io::stdin().read(&mut bytes).is_ok_and(|read| read > 0) {}
        told.store(true, Ordering::Relaxed);
    });
    ends
}

fn step(pool: &Pool, handle: &mut Handle<Arc<Pool>>, random: &mut SmallRng) -> anyhow::Result<()> {
    let key = format!("key {}", random.random_range(0..KEYS));
    let value = contents::of(7, VALUES[random.random_range(0..VALUES.len())]);
    match random.random_range(0..100) {
        0..60 => drop(handle.put(key.as_bytes(), &value)?),
        60..80 => drop(handle.delete(key.as_bytes())?),
        80..99 => {
            let addr = pool.alloc(random.random_range(1..=LARGEST))?;
            pool.free(addr)?;
        }
        _ => change_root(pool, &root_name(pool.rack(), random.random_range(0..ROOTS)))?,
    }
    Ok(())
}

fn root_name(rack: RackId, number: u32) -> String {
    format!("traffic-{}-{number}", rack.0)
}

/// Replaces a root's object with a new one.
fn change_root(pool: &Pool, name: &str) -> anyhow::Result<()> {
    let old = pool.root(name)?;
    let new = pool.alloc(LARGEST)?;
    let root = pool.set_root(name, old, Some(new)).context("whether it was set is unknown")?;
    let unused: Option<GlobalAddr> = if root.addr == Some(new) { old } else { Some(new) };
    unused.map_or(Ok(()), |addr| pool.free(addr))?;
    Ok(())
}

/// Deletes the roots that clients in these racks have left, with their objects.
pub fn clear(pool: &Pool, racks: impl Iterator<Item = RackId>) -> anyhow::Result<()> {
    for name in racks.flat_map(|rack| (0..ROOTS).map(move |number| root_name(rack, number))) {
        if let Some(addr) = pool.root(&name)? {
            pool.set_root(&name, Some(addr), None)?;
            pool.free(addr)?;
        }
    }
    Ok(())
}
