//! Memory of one process, word by word, that notices misuse.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rackpool_kv::{CasError, GlobalAddr, Memory, ReadRequest};

use super::scheduler::{Fault, Scheduler};

const PAGE_BYTES: u64 = 2 << 20;
/// The smallest allocation; what one entry of `owners` stands for.
const LINE: u64 = 64;
const POISON: u64 = 0xdddd_dddd_dddd_dddd;

#[derive(Debug, thiserror::Error)]
pub enum HeapError {
    #[error("no memory is left")]
    Full,
    #[error("there is no memory at {0:#x}")]
    Outside(u64),
}

/// Freed memory is poisoned and used again at once, last freed first. Writing to memory that is
/// not allocated, freeing twice and leaving the heap are panics; reading freed memory is not.
#[derive(Debug)]
pub struct Heap {
    words: Vec<AtomicU64>,
    /// For each line the address of the allocation it belongs to, or 0.
    owners: Vec<AtomicU64>,
    state: Mutex<State>,
    scheduler: OnceLock<Arc<Scheduler>>,
    /// Words that may never get a value back which they had before, and which bits count.
    watched: Mutex<BTreeMap<u64, Watched>>,
    /// The size of allocations whose words, but for the first line, are watched.
    pub watched_size: u64,
    pub far: bool,
}

#[derive(Debug)]
struct Watched {
    mask: u64,
    values: Vec<u64>,
}

/// All of a slot but its frozen bit and its pins.
const SLOT_MASK: u64 = (1 << 61) - 1;

#[derive(Debug, Default)]
struct State {
    used: u64,
    free: BTreeMap<u64, Vec<u64>>,
    live: BTreeMap<u64, u64>,
}

impl Heap {
    pub fn new(bytes: u64) -> Self {
        let zeros = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: zeros(bytes / 8),
            owners: zeros(bytes / LINE),
            state: Mutex::default(),
            scheduler: OnceLock::new(),
            watched: Mutex::default(),
            watched_size: 0,
            far: false,
        }
    }

    /// From now on `scheduler` decides who may use the memory.
    pub fn schedule(&self, scheduler: Arc<Scheduler>) {
        self.scheduler.set(scheduler).unwrap();
    }

    /// The sizes of everything that is allocated.
    pub fn live(&self) -> Vec<u64> {
        self.state.lock().unwrap().live.values().copied().collect()
    }

    /// All lines that are allocated.
    pub fn live_lines(&self) -> Vec<u64> {
        let state = self.state.lock().unwrap();
        let lines = |(addr, size): (&u64, &u64)| (*addr..addr + size).step_by(LINE as usize);
        state.live.iter().flat_map(lines).collect()
    }

    fn index(addr: u64, unit: u64) -> usize {
        usize::try_from(addr.checked_sub(PAGE_BYTES).expect("below the heap") / unit).unwrap()
    }

    /// A scheduling point; `operation` says whether a memory operation begins.
    fn step(&self, operation: bool) -> Fault {
        match self.scheduler.get() {
            Some(scheduler) => scheduler.step(operation),
            None => Fault::None,
        }
    }

    /// From now on the word at `addr` may not get any value twice.
    pub fn watch(&self, addr: u64) {
        let values = Vec::new();
        self.watched.lock().unwrap().insert(addr, Watched { mask: u64::MAX, values });
    }

    fn note(&self, addr: u64, word: u64) {
        if self.watched_size == 0 {
            return;
        }
        let mut watched = self.watched.lock().unwrap();
        let start = self.owners[Self::index(addr, LINE)].load(Ordering::Acquire);
        let size = self.state.lock().unwrap().live.get(&start).copied();
        if size == Some(self.watched_size) && addr - start >= LINE {
            let new = Watched { mask: SLOT_MASK, values: Vec::new() };
            watched.entry(addr).or_insert(new);
        }
        let Some(Watched { mask, values }) = watched.get_mut(&addr) else { return };
        let word = word & *mask;
        if values.last() != Some(&word) {
            assert!(!values.contains(&word), "{word:#x} came back at {addr:#x}: {values:x?}");
            values.push(word);
        }
    }

    fn check_writable(&self, addr: u64, bytes: u64) {
        let owner = |at| self.owners[Self::index(at, LINE)].load(Ordering::Acquire);
        let first = owner(addr);
        assert_ne!(first, 0, "write to free memory at {addr:#x}");
        assert_eq!(owner(addr + bytes - 1), first, "write across allocations at {addr:#x}");
    }
}

impl Memory for Heap {
    type Error = HeapError;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, HeapError> {
        assert!((16..=PAGE_BYTES).contains(&bytes));
        self.step(true);
        let size = bytes.next_power_of_two().max(LINE);
        let mut state = self.state.lock().unwrap();
        let addr = match state.free.entry(size).or_default().pop() {
            Some(addr) => addr,
            None => {
                let at = (PAGE_BYTES + state.used).next_multiple_of(size);
                state.used = at + size - PAGE_BYTES;
                if state.used > self.words.len() as u64 * 8 {
                    return Err(HeapError::Full);
                }
                at
            }
        };
        state.live.insert(addr, size);
        for line in (addr..addr + size).step_by(LINE as usize) {
            self.owners[Self::index(line, LINE)].store(addr, Ordering::Release);
        }
        Ok(GlobalAddr::from_raw(addr))
    }

    fn free(&self, addr: GlobalAddr) -> Result<(), HeapError> {
        self.step(true);
        let addr = addr.raw();
        let mut state = self.state.lock().unwrap();
        let size = state.live.remove(&addr);
        let size = size.unwrap_or_else(|| panic!("free of {addr:#x}, which is not allocated"));
        for line in (addr..addr + size).step_by(LINE as usize) {
            self.owners[Self::index(line, LINE)].store(0, Ordering::Release);
        }
        for word in (addr..addr + size).step_by(8) {
            self.words[Self::index(word, 8)].store(POISON, Ordering::Release);
        }
        state.free.entry(size).or_default().push(addr);
        Ok(())
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), HeapError> {
        self.step(true);
        let mut at = addr.raw();
        assert!(at.is_multiple_of(8));
        let end = PAGE_BYTES + self.words.len() as u64 * 8;
        if at < PAGE_BYTES || at + into.len() as u64 > end {
            return Err(HeapError::Outside(at));
        }
        for bytes in into.chunks_mut(8) {
            let word = self.words[Self::index(at, 8)].load(Ordering::Acquire).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
            at += 8;
            self.step(false);
        }
        Ok(())
    }

    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), HeapError> {
        self.step(true);
        let mut at = addr.raw();
        assert!(at.is_multiple_of(8));
        self.check_writable(at, from.len() as u64);
        for bytes in from.chunks(8) {
            let place = &self.words[Self::index(at, 8)];
            let mut word = place.load(Ordering::Relaxed).to_le_bytes();
            word[..bytes.len()].copy_from_slice(bytes);
            self.note(at, u64::from_le_bytes(word));
            place.store(u64::from_le_bytes(word), Ordering::Release);
            at += 8;
            self.step(false);
        }
        Ok(())
    }

    fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), HeapError> {
        reads.iter_mut().try_for_each(|read| self.read(read.addr, read.into))
    }

    fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, CasError<HeapError>> {
        let fault = self.step(true);
        assert!(addr.raw().is_multiple_of(8));
        self.check_writable(addr.raw(), 8);
        if fault == Fault::Unapplied {
            return Err(CasError::Indeterminate);
        }
        let place = &self.words[Self::index(addr.raw(), 8)];
        let found = place.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
        if found.is_ok() {
            self.note(addr.raw(), new);
        }
        if fault == Fault::Applied {
            return Err(CasError::Indeterminate);
        }
        Ok(found.unwrap_or_else(|found| found))
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES
    }

    fn is_near(&self, _: GlobalAddr) -> bool {
        !self.far
    }
}
