//! Allocating and freeing, with every step announced.

use std::sync::Arc;

use rackpool_client::{GlobalAddr, Pool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Arguments, say};
use crate::contents;

/// `churn THREADS SEED KEEP BYTES...`: threads allocate and free objects of these sizes, and each
/// keeps up to KEEP. Prints `+ ADDR BYTES` once an object is written, `- ADDR` before it is freed,
/// and `x ADDR` once it is free.
pub(super) fn churn(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let (threads, seed) = (arguments.number("THREADS")?, arguments.number("SEED")?);
    let keep = usize::try_from(arguments.number("KEEP")?)?;
    let mut sizes = vec![arguments.number("BYTES")?];
    while let Ok(size) = arguments.number("BYTES") {
        sizes.push(size);
    }
    let workers: Vec<_> = (0..threads)
        .map(|thread| {
            let (pool, sizes) = (Arc::clone(pool), sizes.clone());
            std::thread::spawn(move || work(&pool, seed * 1000 + thread, keep, &sizes))
        })
        .collect();
    for worker in workers {
        worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(())
}

fn work(pool: &Pool, seed: u64, keep: usize, sizes: &[u64]) -> anyhow::Result<()> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut held: Vec<GlobalAddr> = Vec::new();
    loop {
        let full = held.len() >= keep;
        if !full && (held.is_empty() || random.random_bool(0.55)) {
            let bytes = sizes[random.random_range(0..sizes.len())];
            let addr = pool.alloc(bytes)?;
            pool.write(addr, &contents::of(addr.raw(), usize::try_from(bytes)?))?;
            say(&format!("+ {:x} {bytes}", addr.raw()))?;
            held.push(addr);
        } else {
            let addr = held.swap_remove(random.random_range(0..held.len()));
            say(&format!("- {:x}", addr.raw()))?;
            pool.free(addr)?;
            say(&format!("x {:x}", addr.raw()))?;
        }
    }
}

/// `refill BYTES COUNT`: allocates COUNT objects and frees them all again, in turns, and prints the
/// number of the turn. The caches fill and empty all the time.
pub(super) fn refill(pool: &Arc<Pool>, arguments: &mut Arguments) -> anyhow::Result<()> {
    let (bytes, count) = (arguments.number("BYTES")?, arguments.number("COUNT")?);
    for turn in 0_u64.. {
        let held: Result<Vec<_>, _> = (0..count).map(|_| pool.alloc(bytes)).collect();
        say(&format!("held {turn}"))?;
        for addr in held? {
            pool.free(addr)?;
        }
        say(&format!("free {turn}"))?;
    }
    Ok(())
}
