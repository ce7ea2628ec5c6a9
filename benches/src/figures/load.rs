//! Clients that use a system at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{ITEM, Sizes};
use crate::baselines::{AccessPath, System};
use crate::cpu::{of_process, pin_self};
use crate::measure::median;

/// Operations between two reads of the clock.
const BURST: u64 = 32;
/// Bytes of the largest item.
const LARGEST: usize = 4096;

/// The seed of the next client.
static SEED: AtomicU64 = AtomicU64::new(0);

/// An operation of a client.
pub(super) type Operation<'a> =
    &'a (dyn Fn(&mut dyn AccessPath, &mut SmallRng) -> anyhow::Result<()> + Sync);

/// Operations per second of all clients together: the median of some rounds of [`run`].
pub(super) fn rate(
    clients: &mut [Box<dyn AccessPath>],
    sizes: &Sizes,
    operation: Operation<'_>,
) -> anyhow::Result<f64> {
    let rounds = (0..sizes.rounds).map(|_| run(clients, sizes.time, operation));
    Ok(median(rounds.collect::<anyhow::Result<_>>()?))
}

/// The rates of random reads and of random writes of items of [`ITEM`] bytes by new clients, some
/// in each rack.
pub(super) fn rates(
    system: &dyn System,
    clients: usize,
    racks: usize,
    sizes: &Sizes,
) -> anyhow::Result<(f64, f64)> {
    let clients = (0..clients).map(|client| system.client(client % racks));
    let mut clients: Vec<_> = clients.collect::<anyhow::Result<_>>()?;
    let read = rate(&mut clients, sizes, &reads(sizes.bytes, ITEM))?;
    Ok((read, rate(&mut clients, sizes, &writes(sizes.bytes, ITEM))?))
}

/// Runs all clients for a time, each on a thread of its own, a single one on the first core.
/// Returns their operations per second.
pub(super) fn run(
    clients: &mut [Box<dyn AccessPath>],
    time: Duration,
    operation: Operation<'_>,
) -> anyhow::Result<f64> {
    let start = Barrier::new(clients.len());
    let is_alone = clients.len() == 1;
    // No two runs draw the same items.
    let first_seed = SEED.fetch_add(clients.len() as u64, Ordering::Relaxed);
    let client = |number: u64, path: &mut dyn AccessPath| -> anyhow::Result<f64> {
        if is_alone {
            pin_first()?;
        }
        let mut random = SmallRng::seed_from_u64(first_seed + number);
        // The thread has used its client once, so that nothing is done for the first time later.
        let mut done = burst(path, &mut random, operation).and_then(|()| path.finish());
        start.wait();
        let began = Instant::now();
        let mut count = 0_u32;
        while done.is_ok() && began.elapsed() < time {
            done = burst(path, &mut random, operation);
            count += u32::try_from(BURST)?;
        }
        // Also after a failure: others may wait for what this one has requested.
        let finished = path.finish();
        done.and(finished).map(|()| f64::from(count) / began.elapsed().as_secs_f64())
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

/// Binds the calling thread to the first core of the process.
fn pin_first() -> anyhow::Result<()> {
    of_process()?.first().map_or(Ok(()), |core| pin_self(*core))
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
    pin_first()?;
    let mut times = Vec::new();
    for round in 0..=rounds as u64 {
        let mut random = SmallRng::seed_from_u64(round);
        let began = Instant::now();
        (0..count).try_for_each(|_| operation(path, &mut random))?;
        path.finish()?;
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

/// Reads of random items in every second page of rackpool, which are one rack's.
pub(super) fn reads_of_rack(
    bytes: u64,
    item: usize,
    rack: u64,
) -> impl Fn(&mut dyn AccessPath, &mut SmallRng) -> anyhow::Result<()> + Sync {
    const PAGE: u64 = 2 << 20;
    move |path, random| {
        let mut buffer = [0; LARGEST];
        let offset = place(random, bytes / 2, item);
        let page = offset / PAGE * 2 + rack;
        path.read(page * PAGE + offset % PAGE, &mut buffer[..item])
    }
}
