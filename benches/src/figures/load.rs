//! Clients that use a system at once.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::baselines::AccessPath;
use crate::cpu::pin_self;
use crate::measure::median;

/// Operations between two reads of the clock.
const BURST: u64 = 32;
/// Bytes of the largest item.
const LARGEST: usize = 4096;

/// An operation of a client.
pub(super) type Operation<'a> =
    &'a (dyn Fn(&mut dyn AccessPath, &mut SmallRng) -> anyhow::Result<()> + Sync);

/// Operations per second of all clients together, each with a thread of its own. A single one is
/// on the first core.
pub(super) fn rate(
    clients: &mut [Box<dyn AccessPath>],
    time: Duration,
    operation: Operation<'_>,
) -> anyhow::Result<f64> {
    let start = Barrier::new(clients.len());
    let is_alone = clients.len() == 1;
    let client = |number: u64, path: &mut dyn AccessPath| -> anyhow::Result<f64> {
        if is_alone {
            pin_self(0)?;
        }
        let mut random = SmallRng::seed_from_u64(number);
        // Connections, caches and places of pages are warm then.
        let mut done = burst(path, &mut random, operation);
        start.wait();
        let began = Instant::now();
        let mut count = 0_u32;
        while done.is_ok() && began.elapsed() < time {
            done = burst(path, &mut random, operation);
            count += u32::try_from(BURST)?;
        }
        done.map(|()| f64::from(count) / began.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(clients)
            .map(|(number, path)| scope.spawn(move || client(number, &mut **path)))
            .collect();
        let mut total = 0.0;
        for thread in threads {
            total += thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok(total)
    })
}

fn burst(
    path: &mut dyn AccessPath,
    random: &mut SmallRng,
    operation: Operation<'_>,
) -> anyhow::Result<()> {
    (0..BURST).try_for_each(|_| operation(path, random))
}

/// The mean time of an operation of one client, on the first core, in microseconds: the median of
/// some rounds after a warm-up.
pub(super) fn mean_us(
    path: &mut dyn AccessPath,
    rounds: usize,
    count: u32,
    operation: Operation<'_>,
) -> anyhow::Result<f64> {
    // A thread of its own, since what is started later must not inherit the core.
    std::thread::scope(|scope| {
        scope.spawn(|| pinned_mean_us(path, rounds, count, operation)).join()
    })
    .map_err(|_| anyhow::anyhow!("the client panicked"))?
}

fn pinned_mean_us(
    path: &mut dyn AccessPath,
    rounds: usize,
    count: u32,
    operation: Operation<'_>,
) -> anyhow::Result<f64> {
    pin_self(0)?;
    let mut times = Vec::new();
    for round in 0..=rounds as u64 {
        let mut random = SmallRng::seed_from_u64(round);
        let began = Instant::now();
        (0..count).try_for_each(|_| operation(path, &mut random))?;
        if round > 0 {
            times.push(began.elapsed().as_secs_f64() * 1e6 / f64::from(count));
        }
    }
    Ok(median(times))
}

/// The offset of a random item.
fn place(random: &mut SmallRng, bytes: u64, item: usize) -> u64 {
    random.random_range(0..bytes / item as u64) * item as u64
}

/// Reads of random items.
pub(super) fn reads(
    bytes: u64,
    item: usize,
) -> impl Fn(&mut dyn AccessPath, &mut SmallRng) -> anyhow::Result<()> + Sync {
    move |path, random| {
        let mut buffer = [0; LARGEST];
        path.read(place(random, bytes, item), &mut buffer[..item])
    }
}

/// Writes of random items.
pub(super) fn writes(
    bytes: u64,
    item: usize,
) -> impl Fn(&mut dyn AccessPath, &mut SmallRng) -> anyhow::Result<()> + Sync {
    move |path, random| {
        let buffer = [1; LARGEST];
        path.write(place(random, bytes, item), &buffer[..item])
    }
}
