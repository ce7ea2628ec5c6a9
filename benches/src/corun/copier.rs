//! The process that copies objects of 2 MiB, or executes a comparison operation.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_shm::{Mapping, Stores};

use super::obey;
use crate::cpu::pin_self;
use crate::measure::median;

/// Bytes of one copy, and bytes over which successive copies are spread.
const OBJECT: usize = 2 << 20;
const REGION: u64 = 256 << 20;
/// The number of operations, among them none at all.
const WAYS: usize = 7;
/// Requests a measurement of bandwidths.
pub(super) const BANDWIDTHS: u8 = 100;

/// The copying process.
struct Copier {
    pool: Pool,
    objects: Vec<GlobalAddr>,
    frames: Mapping,
    bytes: Vec<u8>,
    /// As many bytes as all objects together.
    targets: Vec<u8>,
    copies: usize,
}

/// Runs as the copying process. Arguments: the pool's folder, and the bytes of the rack's memory.
pub(super) fn be_copier(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut next = || arguments.next().context("an argument");
    let (dir, memory) = (PathBuf::from(next()?), next()?.parse()?);
    let pool = Pool::open(ClientOptions::new(&dir, RackId(0)))?;
    pin_self(1)?;
    let count = REGION / OBJECT as u64;
    let objects: Vec<GlobalAddr> =
        (0..count).map(|_| pool.alloc(OBJECT as u64)).collect::<Result<_, _>>()?;
    // The upper half of the memory is unused: the comparisons that bypass the pool use it.
    let file = std::fs::File::options().read(true).write(true).open(dir.join("rack-0/frames"))?;
    let frames = Mapping::new(&file, memory)?;
    frames.advise_huge();
    let (bytes, targets) = (vec![3; OBJECT], vec![3; objects.len() * OBJECT]);
    let mut copier = Copier { pool, objects, frames, bytes, targets, copies: 0 };
    for way in 1..=WAYS {
        for _ in 0..count {
            copier.copy(way)?;
        }
    }
    obey(|way| match way {
        BANDWIDTHS => copier.bandwidths(),
        way => copier.copy(way.into()).map(|()| 1),
    })
}

impl Copier {
    fn copy(&mut self, way: usize) -> anyhow::Result<()> {
        let at = self.copies % self.objects.len();
        let object = self.objects[at];
        let spare = self.frames.len() / 2 + (at * OBJECT) as u64;
        self.copies += 1;
        match way {
            1 => self.pool.write(object, &self.bytes)?,
            2 => self.pool.read(object, &mut self.bytes)?,
            3 => {
                let at = at * OBJECT;
                self.pool.read(object, &mut self.targets[at..at + OBJECT])?;
            }
            4 => {
                self.pool.read(object, &mut self.bytes)?;
                let other = self.objects[(at + self.objects.len() / 2) % self.objects.len()];
                self.pool.write(other, &self.bytes)?;
            }
            5 => self.frames.write_by(spare, &self.bytes, Stores::Cached)?,
            6 => self.frames.read_by(spare, &mut self.bytes, Stores::Cached)?,
            _ => (0..OBJECT).for_each(|step| _ = black_box(step)),
        }
        Ok(())
    }

    /// Prints the bandwidths of both ways of storing for each length.
    fn bandwidths(&self) -> anyhow::Result<u64> {
        const COPIED: usize = 256 << 20;
        let from = vec![5; 16 << 20];
        let mut back = vec![0; from.len()];
        for shift in 14..=24 {
            let length = 1_usize << shift;
            let mut pass = |stores, is_used| -> anyhow::Result<f64> {
                let start = Instant::now();
                for at in (0..COPIED).step_by(length) {
                    let to = self.frames.len() / 2 + at as u64;
                    self.frames.write_by(to, &from[..length], stores)?;
                    if is_used {
                        self.frames.read_by(to, &mut back[..length], Stores::Cached)?;
                        // Keeps the compiler from dropping the read.
                        black_box(&mut back);
                    }
                }
                Ok(COPIED as f64 / start.elapsed().as_secs_f64() / 1e9)
            };
            let mut all: [Vec<f64>; 4] = Default::default();
            for _ in 0..5 {
                for (i, figures) in all.iter_mut().enumerate() {
                    let stores = if i % 2 == 0 { Stores::Cached } else { Stores::Past };
                    figures.push(pass(stores, i >= 2)?);
                }
            }
            let [a, b, c, d] = all.map(median);
            println!("{length} {a} {b} {c} {d}");
        }
        Ok(0)
    }
}
