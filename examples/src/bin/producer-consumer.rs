//! Hands values from one rack to another through a ring in the pool's memory.
//!
//! Producer and consumer are two processes that have only the pool in common, and find the ring by
//! a root: a name that stands for an address. Run each of these in a terminal of its own:
//!
//! ```sh
//! cargo run --release --bin rackpool -- up --racks 2
//! cargo run --release -p rackpool-examples --bin producer-consumer -- producer
//! cargo run --release -p rackpool-examples --bin producer-consumer -- consumer
//! ```
//!
//! The ring stays in the pool: further runs go on after the last value, also after a `kill -9`.
//! Run one producer at a time, and as many consumers as you like.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use rackpool_client::zerocopy::little_endian::U64;
use rackpool_client::{ClientOptions, Object, Pool, RackId};

const ROOT: &str = "example-ring";
const CAPACITY: u64 = 16;
/// Offsets of the words that count the values put in and taken out, and of the values.
const TAIL: u64 = 0;
const HEAD: u64 = 64;
const SLOTS: u64 = 128;
const RING_BYTES: usize = 256;

/// Hand values from one rack to another.
#[derive(Parser)]
struct Options {
    /// The producer runs in rack 0, the consumer in rack 1.
    role: Role,
    /// Folder of the pool.
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm/rackpool")]
    dir: PathBuf,
    /// Number of values to put in or to take out.
    #[arg(long, default_value_t = 1000)]
    count: u64,
    /// Seconds to wait for the other side.
    #[arg(long, default_value_t = 30)]
    wait_s: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Producer = 0,
    Consumer = 1,
}

/// Finds the ring by its root, or creates it.
fn open_or_create(pool: &Pool) -> Result<Object> {
    let mut root = pool.root(ROOT)?;
    if root.is_none() {
        let made = pool.alloc(RING_BYTES as u64)?;
        // The contents of a new object are unspecified.
        pool.write(made, &[0; RING_BYTES])?;
        let ring = pool.set_root(ROOT, None, Some(made))?;
        if !ring.changed {
            pool.free(made)?; // The other process was faster: its ring is used.
        }
        root = ring.addr;
    }
    Ok(pool.object(root.context("the ring's root was removed meanwhile")?)?)
}

/// Reads a word: an aligned read of 8 bytes is atomic, in every rack.
fn load(pool: &Pool, ring: &Object, offset: u64) -> Result<u64> {
    Ok(pool.read_value::<U64>(ring.at(offset, 8)?)?.get())
}

/// Puts the next value in, the square of its number; returns false if the ring is full.
fn put(pool: &Pool, ring: &Object) -> Result<bool> {
    let index = load(pool, ring, TAIL)?;
    if index - load(pool, ring, HEAD)? == CAPACITY {
        return Ok(false);
    }
    pool.write_value(ring.at(SLOTS + index % CAPACITY * 8, 8)?, &U64::new(index * index))?;
    // Others see the writes of a thread in order: with the new tail they see the value.
    pool.write_value(ring.at(TAIL, 8)?, &U64::new(index + 1))?;
    Ok(true)
}

/// Takes a value out and checks it; returns false if there is none, or another consumer took it.
fn take(pool: &Pool, ring: &Object) -> Result<bool> {
    let index = load(pool, ring, HEAD)?;
    if load(pool, ring, TAIL)? == index {
        return Ok(false);
    }
    let value = load(pool, ring, SLOTS + index % CAPACITY * 8)?;
    // The producer reuses the slot only once the head has passed it.
    let is_mine = pool.compare_and_swap(ring.at(HEAD, 8)?, index, index + 1)? == index;
    ensure!(!is_mine || value == index * index, "value {index} is {value}, not its square");
    Ok(is_mine)
}

fn main() -> Result<()> {
    let Options { role, dir, count, wait_s } = Options::parse();
    let rack = RackId(role as u16);
    let pool = Pool::open(ClientOptions::new(dir, rack))?;
    let ring = open_or_create(&pool)?;
    let step = match role {
        Role::Producer => put,
        Role::Consumer => take,
    };
    for _ in 0..count {
        let begin = Instant::now();
        while !step(&pool, &ring)? {
            ensure!(begin.elapsed().as_secs() < wait_s, "nothing for {wait_s} s: run both sides");
            thread::sleep(Duration::from_micros(50));
        }
    }
    println!("{role:?} in {rack}: {count} values handed over");
    Ok(())
}
