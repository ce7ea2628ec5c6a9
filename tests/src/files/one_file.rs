//! Random operations on one file, compared with its bytes in memory. They go through two
//! descriptors, through the page cache and past it. The bytes identify the place in the file and
//! the operation that wrote them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rackpool_shm::mapping::Mapping;
use rackpool_sync::SplitMix64;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

/// The largest size: beyond the first 2 MiB, which some file systems treat as a unit.
const MAX_SIZE: u64 = (2 << 20) + 300_000;
/// The most bytes of one operation.
const MAX_LEN: u64 = 150_000;
/// The alignment that `O_DIRECT` requires of offsets, lengths and memory.
const BLOCK: u64 = 4096;
/// The number of last operations that a failure prints.
const TOLD: usize = 12;

/// Executes `operations` operations on a new file in a folder. A failure prints the seed and the
/// last operations.
pub fn exercise(folder: &Path, seed: u64, operations: u32) -> anyhow::Result<()> {
    let mut run = Run::new(folder, seed)?;
    for number in 0..operations {
        let outcome = run.step();
        outcome.with_context(|| {
            let last: Vec<_> = run.told.iter().map(String::as_str).collect();
            format!("seed {seed}, operation {number}, the last ones: {}", last.join("; "))
        })?;
    }
    run.check_all("at the end").with_context(|| format!("seed {seed}"))
}

/// The file and its expected contents.
struct Run {
    path: PathBuf,
    /// Two open descriptions of the file; an operation uses either.
    files: [File; 2],
    /// An `O_DIRECT` description, where the file system supports it.
    direct: Option<File>,
    bytes: Vec<u8>,
    random: SmallRng,
    told: VecDeque<String>,
    /// The number of operations that have written.
    writes: u64,
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).open(path)
}

fn open_direct(path: &Path) -> anyhow::Result<Option<File>> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    match File::options().read(true).write(true).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// A buffer aligned for `O_DIRECT`: `len` bytes from `from` on.
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    fn new(len: u64) -> anyhow::Result<Self> {
        let (len, block) = (usize::try_from(len)?, usize::try_from(BLOCK)?);
        let bytes = vec![0; len + block];
        let from = bytes.as_ptr().align_offset(block);
        ensure!(from <= block, "no aligned memory");
        Ok(Self { bytes, from, len })
    }

    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}

impl Run {
    fn new(folder: &Path, seed: u64) -> anyhow::Result<Self> {
        let path = folder.join(format!("one file {seed}"));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        let (files, direct) = ([file, open(&path)?], open_direct(&path)?);
        let random = SmallRng::seed_from_u64(seed);
        let (bytes, told) = (Vec::new(), VecDeque::new());
        Ok(Self { path, files, direct, bytes, random, told, writes: 0 })
    }

    fn step(&mut self) -> anyhow::Result<()> {
        let (offset, len) = self.range();
        match self.random.random_range(0..100) {
            0..18 => self.write(offset, len),
            18..25 => self.write_directly(offset, len),
            25..38 => self.read(offset, len),
            38..45 => self.read_directly(offset, len),
            45..53 => self.truncate(offset),
            53..60 => self.punch(offset, len),
            60..65 => self.zero(offset, len),
            65..70 => self.allocate(offset, len),
            70..78 => self.write_mapped(offset, len),
            78..84 => self.read_mapped(offset, len),
            84..90 => self.append(len),
            90..95 => self.reopen(),
            95..98 => Ok(self.file().sync_all()?),
            _ => self.check_all("now and then"),
        }
    }

    /// A random range, near the ends of pages and of the file more often than elsewhere.
    fn range(&mut self) -> (u64, u64) {
        let size = self.bytes.len() as u64;
        let random = &mut self.random;
        let offset = match random.random_range(0..4) {
            0 => random.random_range(0..MAX_SIZE),
            1 => random.random_range(0..=size),
            2 => size,
            _ => random.random_range(0..=MAX_SIZE / 4096) * 4096,
        };
        let len = match random.random_range(0..3) {
            0 => random.random_range(1..100),
            1 => random.random_range(1..=16) * 4096,
            _ => random.random_range(1..MAX_LEN),
        };
        let offset = offset.min(MAX_SIZE - 1);
        (offset, len.min(MAX_SIZE - offset))
    }

    fn tell(&mut self, what: String) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(what);
    }

    /// One of the two descriptions, at random.
    fn file(&mut self) -> &File {
        let which = usize::from(self.random.random::<bool>());
        &self.files[which]
    }

    /// The bytes of a new operation for a range of the file. They differ, except by chance, from
    /// those of every other place and every other operation, so that misplaced and old bytes are
    /// detected.
    fn new_bytes(&mut self, offset: u64, len: u64) -> Vec<u8> {
        self.writes += 1;
        let begin = offset / 8;
        let words = (begin..=(offset + len) / 8).map(|word| {
            // Mixed, so that neighbouring words have nothing in common.
            SplitMix64::mix(self.writes << 32 ^ word).to_le_bytes()
        });
        let skipped = usize::try_from(offset - begin * 8).unwrap_or_default();
        let len = usize::try_from(len).unwrap_or_default();
        // 0 is the contents of holes.
        words.flatten().map(|byte| byte.max(1)).skip(skipped).take(len).collect()
    }

    /// The model's bytes of a range; extends the model to the end of the range.
    fn model(&mut self, offset: u64, len: u64) -> &mut [u8] {
        if len == 0 {
            return &mut [];
        }
        let from = usize::try_from(offset).unwrap_or_default();
        let to = from + usize::try_from(len).unwrap_or_default();
        if self.bytes.len() < to {
            self.bytes.resize(to, 0);
        }
        &mut self.bytes[from..to]
    }

    /// The part of a range that lies within the file.
    fn within(&self, offset: u64, len: u64) -> u64 {
        (self.bytes.len() as u64).saturating_sub(offset).min(len)
    }

    fn write(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        self.tell(format!("write {len} B at {offset}"));
        let new = self.new_bytes(offset, len);
        self.file().write_all_at(&new, offset)?;
        self.model(offset, len).copy_from_slice(&new);
        Ok(())
    }

    /// The blocks that a range touches.
    const fn blocks(offset: u64, len: u64) -> (u64, u64) {
        let begin = offset / BLOCK * BLOCK;
        (begin, (offset + len).next_multiple_of(BLOCK) - begin)
    }

    fn write_directly(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        let (offset, len) = Self::blocks(offset, len);
        if self.direct.is_none() || len == 0 {
            return Ok(());
        }
        self.tell(format!("write {len} B at {offset} with O_DIRECT"));
        let mut new = Aligned::new(len)?;
        new.as_mut().copy_from_slice(&self.new_bytes(offset, len));
        if let Some(direct) = &self.direct {
            direct.write_all_at(new.as_mut(), offset)?;
        }
        self.model(offset, len).copy_from_slice(new.as_mut());
        Ok(())
    }

    fn read_directly(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        let (offset, len) = Self::blocks(offset, len);
        let there = usize::try_from(self.within(offset, len))?;
        let Some(direct) = self.direct.take().filter(|_| len > 0) else { return Ok(()) };
        self.tell(format!("read {len} B at {offset} with O_DIRECT"));
        let mut read = Aligned::new(len)?;
        let mut done = 0;
        // A read may be short only at the end of the file.
        while done < there {
            let count = direct.read_at(&mut read.as_mut()[done..], offset + done as u64)?;
            ensure!(count > 0, "{done} B were read instead of {there} B");
            done += count;
            ensure!(
                done == there || (done as u64).is_multiple_of(BLOCK),
                "{done} B of {there} B were read"
            );
        }
        self.direct = Some(direct);
        ensure!(done == there, "{done} B were read instead of {there} B");
        same(&read.as_mut()[..done], self.model(offset, there as u64), offset)
    }

    fn read(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        self.tell(format!("read {len} B at {offset}"));
        let there = self.within(offset, len);
        let mut read = vec![0; usize::try_from(len)?];
        let mut done = 0;
        let which = usize::from(self.random.random::<bool>());
        let file = &self.files[which];
        while let count @ 1.. = file.read_at(&mut read[done..], offset + done as u64)? {
            done += count;
        }
        ensure!(done as u64 == there, "{done} B were read instead of {there} B");
        read.truncate(done);
        same(&read, self.model(offset, there), offset)
    }

    fn truncate(&mut self, size: u64) -> anyhow::Result<()> {
        self.tell(format!("truncate to {size} B"));
        self.file().set_len(size)?;
        self.bytes.resize(usize::try_from(size)?, 0);
        Ok(())
    }

    fn punch(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        self.tell(format!("punch {len} B at {offset}"));
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.file(), mode, offset, len)?;
        let there = self.within(offset, len);
        self.model(offset, there).fill(0);
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        self.tell(format!("zero {len} B at {offset}"));
        match fallocate(self.file(), FallocateFlags::ZERO_RANGE, offset, len) {
            // Not all file systems support it.
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
            outcome => outcome?,
        }
        self.model(offset, len).fill(0);
        Ok(())
    }

    fn allocate(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        let keeps = self.random.random_bool(0.5);
        self.tell(format!("allocate {len} B at {offset}, keeping the size: {keeps}"));
        let mode = if keeps { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        fallocate(self.file(), mode, offset, len)?;
        if !keeps {
            self.model(offset, len);
        }
        Ok(())
    }

    fn write_mapped(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        let len = self.within(offset, len);
        if len == 0 {
            return Ok(());
        }
        self.tell(format!("write {len} B at {offset} through a mapping"));
        let new = self.new_bytes(offset, len);
        Mapping::new(self.file(), offset + len)?.write(offset, &new)?;
        self.model(offset, len).copy_from_slice(&new);
        Ok(())
    }

    fn read_mapped(&mut self, offset: u64, len: u64) -> anyhow::Result<()> {
        let len = self.within(offset, len);
        if len == 0 {
            return Ok(());
        }
        self.tell(format!("read {len} B at {offset} through a mapping"));
        let mut read = vec![0; usize::try_from(len)?];
        Mapping::new(self.file(), offset + len)?.read(offset, &mut read)?;
        same(&read, self.model(offset, len), offset)
    }

    fn append(&mut self, len: u64) -> anyhow::Result<()> {
        let size = self.bytes.len() as u64;
        let len = len.min(MAX_SIZE - size.min(MAX_SIZE));
        self.tell(format!("append {len} B"));
        let new = self.new_bytes(size, len);
        File::options().append(true).open(&self.path)?.write_all(&new)?;
        self.model(size, len).copy_from_slice(&new);
        Ok(())
    }

    fn reopen(&mut self) -> anyhow::Result<()> {
        let which = self.random.random_range(0..3_usize);
        self.tell(format!("close and open descriptor {which}"));
        match self.files.get_mut(which) {
            Some(file) => *file = open(&self.path)?,
            None => self.direct = open_direct(&self.path)?,
        }
        let size = self.file().metadata()?.len();
        ensure!(size == self.bytes.len() as u64, "{size} B instead of {} B", self.bytes.len());
        Ok(())
    }

    fn check_all(&mut self, when: &str) -> anyhow::Result<()> {
        self.tell("read all".into());
        let read = std::fs::read(&self.path)?;
        ensure!(read.len() == self.bytes.len(), "{} B, not {} B", read.len(), self.bytes.len());
        same(&read, &self.bytes, 0).context(when.to_owned())
    }
}

/// Fails with the first difference between two byte ranges.
fn same(read: &[u8], wanted: &[u8], offset: u64) -> anyhow::Result<()> {
    let differ = read.iter().zip(wanted).position(|(read, wanted)| read != wanted);
    if let Some(at) = differ {
        let (got, due) = (read[at], wanted[at]);
        bail!("the byte at {} is {got} instead of {due}", offset + at as u64);
    }
    Ok(())
}
