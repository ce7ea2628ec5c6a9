//! A table's memory in one process, word by word, which detects misuse.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rackpool_kv::{CasError, GlobalAddr, Memory, PublishCas, PublishMode, ReadRequest};

use super::reservations::{HeapReservation, Phase, Reservations};
use super::scheduler::{Fault, Scheduler};
use super::trouble::Troubles;

const PAGE_BYTES: u64 = 2 << 20;
/// The smallest allocation, which is what one entry of `owners` covers.
const LINE: u64 = 64;
const POISON: u64 = 0xdddd_dddd_dddd_dddd;

#[derive(Debug, thiserror::Error)]
pub enum HeapError {
    #[error("no memory is left")]
    Full,
    #[error("there is no memory at {0:#x}")]
    Outside(u64),
    #[error("the rack is away")]
    Away,
    #[error("nothing is allocated at {0:#x}")]
    Gone(u64),
    #[error("the memory at {0:#x} is lost")]
    Lost(u64),
}

/// Freed memory is poisoned, except its first word, and reused at once, last freed first. Writing
/// to memory that is not allocated, freeing twice, and addresses outside the heap are panics.
/// Reading freed memory is not.
#[derive(Debug)]
pub struct Heap {
    words: Vec<AtomicU64>,
    /// For each line the address of its allocation, or 0.
    owners: Vec<AtomicU64>,
    state: Mutex<State>,
    scheduler: OnceLock<Arc<Scheduler>>,
    pub(super) reservations: Reservations,
    pub(super) roots: Mutex<BTreeMap<String, GlobalAddr>>,
    /// Words that must never return to an earlier value, with the bits that count.
    watched: Mutex<BTreeMap<u64, Watched>>,
    /// The watched words that name segments.
    pub(super) entries: Mutex<Vec<u64>>,
    /// The size of allocations whose words, but for the first line, are watched.
    pub watched_size: u64,
    pub far: bool,
    /// Whether reading freed memory is an error, as in a page without any allocated object.
    pub closes: bool,
    /// The faults to inject.
    pub troubles: Troubles,
    /// The number of segments of small tables that can still be allocated.
    pub segments_left: AtomicU64,
    has_lost: AtomicBool,
}

#[derive(Debug)]
struct Watched {
    mask: u64,
    values: Vec<u64>,
}

/// All of a slot but its frozen bit.
const SLOT_MASK: u64 = (1 << 63) - 1;

#[derive(Debug, Default)]
struct State {
    used: u64,
    free: BTreeMap<u64, Vec<u64>>,
    live: BTreeMap<u64, u64>,
    /// Lines that are lost.
    lost: BTreeSet<u64>,
}

impl Heap {
    pub fn new(bytes: u64) -> Self {
        let zeros = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            words: zeros(bytes / 8),
            owners: zeros(bytes / LINE),
            state: Mutex::default(),
            scheduler: OnceLock::new(),
            reservations: Reservations::default(),
            roots: Mutex::default(),
            watched: Mutex::default(),
            entries: Mutex::default(),
            watched_size: 0,
            far: false,
            closes: false,
            troubles: Troubles::default(),
            segments_left: AtomicU64::new(u64::MAX),
            has_lost: AtomicBool::new(false),
        }
    }

    /// The number of reservations that are not finished.
    pub fn unfinished(&self) -> i64 {
        self.reservations.unfinished.load(Ordering::Relaxed)
    }

    /// Sets the scheduler that decides which client may use the memory.
    pub fn schedule(&self, scheduler: Arc<Scheduler>) {
        self.scheduler.set(scheduler).unwrap();
    }

    /// The sizes of all allocations.
    pub fn live(&self) -> Vec<u64> {
        self.state.lock().unwrap().live.values().copied().collect()
    }

    /// The addresses of all allocated lines.
    pub fn live_lines(&self) -> Vec<u64> {
        let state = self.state.lock().unwrap();
        let lines = |(addr, size): (&u64, &u64)| (*addr..addr + size).step_by(LINE as usize);
        state.live.iter().flat_map(lines).collect()
    }

    fn index(addr: u64, unit: u64) -> usize {
        usize::try_from(addr.checked_sub(PAGE_BYTES).expect("below the heap") / unit).unwrap()
    }

    fn is_closed(&self, addr: u64) -> bool {
        self.closes && self.owners[Self::index(addr, LINE)].load(Ordering::Acquire) == 0
    }

    /// From now on the line at this address is lost.
    pub fn lose(&self, addr: GlobalAddr) {
        self.state.lock().unwrap().lost.insert(addr.raw());
        self.has_lost.store(true, Ordering::Release);
    }

    fn is_lost(&self, addr: u64) -> bool {
        let line = addr / LINE * LINE;
        self.has_lost.load(Ordering::Acquire) && self.state.lock().unwrap().lost.contains(&line)
    }

    /// A scheduling point; `operation` says whether a memory operation begins.
    pub(super) fn step(&self, operation: bool) -> Fault {
        if operation {
            let fault = self.troubles.step();
            if fault != Fault::None {
                return fault;
            }
        }
        match self.scheduler.get() {
            Some(scheduler) => scheduler.step(operation),
            None => Fault::None,
        }
    }

    /// The addresses of all allocations of a size.
    pub fn live_of(&self, size: u64) -> Vec<u64> {
        let state = self.state.lock().unwrap();
        state.live.iter().filter(|(_, live)| **live == size).map(|(addr, _)| *addr).collect()
    }

    /// The values that a watched word has had.
    pub fn values(&self, addr: u64) -> Vec<u64> {
        self.watched.lock().unwrap().get(&addr).map_or(Vec::new(), |word| word.values.clone())
    }

    /// From now on the word at `addr` must never return to an earlier value.
    pub fn watch(&self, addr: u64) {
        let values = self.peek(addr).into_iter().collect();
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

    /// The word at `addr`, without a scheduling step; `None` outside of the heap.
    pub(super) fn peek(&self, addr: u64) -> Option<u64> {
        let index = usize::try_from(addr.checked_sub(PAGE_BYTES)? / 8).ok()?;
        Some(self.words.get(index)?.load(Ordering::Acquire))
    }

    /// Swaps the word at `addr`, without a scheduling step.
    pub(super) fn poke(&self, addr: u64, expected: u64, new: u64) {
        let place = &self.words[Self::index(addr, 8)];
        if place.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.note(addr, new);
        }
    }

    /// Repeats a swap from or to a token until its outcome is known; returns whether it was made.
    fn swap_surely(&self, addr: u64, expected: u64, new: u64) -> bool {
        let mut asked_before = false;
        loop {
            match self.compare_and_swap(GlobalAddr::from_raw(addr), expected, new) {
                Ok(found) => return found == expected || (asked_before && found == new),
                Err(_) => asked_before = true,
            }
        }
    }

    /// Called when memory is freed. Only segments that were never published are freed, and their
    /// words may then be reused. No client frees other segments.
    fn forget_watched(&self, addr: u64, size: u64) {
        if size != self.watched_size {
            return;
        }
        let published = super::published_segments(self, &self.entries.lock().unwrap());
        assert!(
            super::scheduler::me().is_none() || !published.contains(&addr),
            "{addr:#x} is freed"
        );
        self.watched.lock().unwrap().retain(|word, _| !(addr..addr + size).contains(word));
    }

    /// Frees an allocation, without a scheduling step.
    pub(super) fn release(&self, addr: u64) {
        let size = self.state.lock().unwrap().live.get(&addr).copied();
        size.into_iter().for_each(|size| self.forget_watched(addr, size));
        let mut state = self.state.lock().unwrap();
        let size = state.live.remove(&addr);
        let size = size.unwrap_or_else(|| panic!("free of {addr:#x}, which is not allocated"));
        if state.lost.contains(&addr) {
            return;
        }
        for line in (addr..addr + size).step_by(LINE as usize) {
            self.owners[Self::index(line, LINE)].store(0, Ordering::Release);
        }
        for word in (addr + 8..addr + size).step_by(8) {
            self.words[Self::index(word, 8)].store(POISON, Ordering::Release);
        }
        state.free.entry(size).or_default().push(addr);
    }

    /// Stores the settled word in the link of a published tombstone.
    fn settle(&self, reservation: &HeapReservation) {
        let Some(PublishCas { addr, mask, new, mode: PublishMode::Settle(word), .. }) =
            reservation.link
        else {
            return;
        };
        let mut found = new;
        while (found ^ new) & mask == 0 {
            match self.compare_and_swap(addr, found, (found & !mask) | (word & mask)) {
                Ok(now) if now == found => return,
                Ok(now) => found = now,
                Err(_) => {}
            }
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
    type Reservation = HeapReservation;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, HeapError> {
        assert!((16..=PAGE_BYTES).contains(&bytes));
        match self.step(true) {
            Fault::Full => return Err(HeapError::Full),
            Fault::Refused => return Err(HeapError::Away),
            _ => {}
        }
        let size = bytes.next_power_of_two().max(LINE);
        if size == super::SEGMENT_BYTES {
            let order = Ordering::Relaxed;
            let left = self.segments_left.fetch_update(order, order, |left| left.checked_sub(1));
            left.map_err(|_| HeapError::Full)?;
        }
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
        self.release(addr.raw());
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> Result<HeapReservation, HeapError> {
        // A pool aligns objects to their size, and slots point to whole lines.
        assert!(bytes > LINE / 2, "{bytes} B would not be aligned to a line");
        let addr = self.allocate(bytes)?;
        Ok(self.reservations.hold(addr.raw(), 0))
    }

    fn tombstone(&self) -> Result<HeapReservation, HeapError> {
        Ok(self.reservations.hold(0, 0))
    }

    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<HeapReservation>, HeapError> {
        self.step(true);
        let reservation = self.reservations.hold(object.raw(), place.raw());
        if self.swap_surely(place.raw(), object.raw(), reservation.token) {
            return Ok(Some(reservation));
        }
        self.reservations.end(&reservation);
        self.reservations.unfinished.fetch_sub(1, Ordering::Relaxed);
        Ok(None)
    }

    fn abort(&self, reservation: &mut HeapReservation) {
        assert_eq!(reservation.phase, Phase::Undecided);
        self.reservations.disarm(reservation);
        reservation.phase = Phase::Held;
    }

    fn publish(
        &self,
        reservation: &mut HeapReservation,
        link: &PublishCas,
    ) -> Result<u64, CasError<HeapError>> {
        assert_eq!(reservation.phase, Phase::Held, "published twice");
        // A scheduling step before the record is armed. Each swap begins with one too.
        self.step(true);
        self.reservations.arm(reservation, link);
        reservation.link = Some(*link);
        let found = self.compare_and_swap(link.addr, link.expected, link.new);
        match found {
            Ok(found) => self.resolve(reservation, found == link.expected),
            Err(CasError::Indeterminate) => reservation.phase = Phase::Doubtful,
            Err(CasError::GivenUp(_) | CasError::Failed(_)) => self.resolve(reservation, false),
        }
        found
    }

    fn resolve(&self, reservation: &mut HeapReservation, published: bool) {
        if !published {
            self.reservations.disarm(reservation);
            reservation.phase = Phase::Held;
            return;
        }
        let compares =
            matches!(reservation.link, Some(PublishCas { mode: PublishMode::Compare(_), .. }));
        if compares && reservation.phase != Phase::Undecided {
            reservation.phase = Phase::Undecided;
            return;
        }
        reservation.phase = Phase::Published;
        if reservation.addr != 0 && !compares {
            // The outcome does not matter.
            let _ =
                self.compare_and_swap(GlobalAddr::from_raw(reservation.addr), reservation.token, 0);
        }
    }

    fn finish(&self, reservation: HeapReservation) -> Result<(), HeapError> {
        let fault = self.step(true);
        self.reservations.unfinished.fetch_sub(1, Ordering::Relaxed);
        if fault == Fault::Refused {
            // The record keeps its state for the daemon.
            if reservation.phase == Phase::Published {
                self.reservations.mark_made(&reservation);
            }
            return Err(HeapError::Away);
        }
        let replaced = reservation.link.and_then(|link| link.replaced).map_or(0, GlobalAddr::raw);
        let unwanted = match reservation.phase {
            Phase::Doubtful | Phase::Undecided => return Ok(()),
            Phase::Published => replaced,
            Phase::Held => reservation.addr,
        };
        if reservation.place != 0 {
            self.swap_surely(reservation.place, reservation.token, unwanted);
        } else {
            if reservation.phase == Phase::Published {
                self.reservations.mark_made(&reservation);
                self.settle(&reservation);
            }
            // The pool notes the object elsewhere first; here it is freed at once.
            if unwanted != 0 {
                self.release(unwanted);
            }
        }
        self.reservations.end(&reservation);
        Ok(())
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), HeapError> {
        if self.step(true) == Fault::Refused {
            return Err(HeapError::Away);
        }
        let mut at = addr.raw();
        assert!(at.is_multiple_of(8));
        let end = PAGE_BYTES + self.words.len() as u64 * 8;
        if at < PAGE_BYTES || at + into.len() as u64 > end {
            return Err(HeapError::Outside(at));
        }
        if self.is_closed(at) {
            return Err(HeapError::Gone(at));
        }
        if self.is_lost(at) {
            return Err(HeapError::Lost(at));
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
        let fault = self.step(true);
        if fault == Fault::Refused {
            return Err(HeapError::Away);
        }
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
        if fault == Fault::Done { Err(HeapError::Away) } else { Ok(()) }
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
        if fault == Fault::Unapplied {
            return Err(CasError::Indeterminate);
        }
        if fault == Fault::Refused {
            return Err(CasError::Failed(HeapError::Away));
        }
        if self.is_closed(addr.raw()) {
            return Err(CasError::Failed(HeapError::Gone(addr.raw())));
        }
        if self.is_lost(addr.raw()) {
            return Err(CasError::Failed(HeapError::Lost(addr.raw())));
        }
        let place = &self.words[Self::index(addr.raw(), 8)];
        // A swap that fails changes nothing, wherever it goes. The owner is read before the word,
        // since another thread may change the word and free the memory at any time.
        let is_free = self.owners[Self::index(addr.raw(), LINE)].load(Ordering::Acquire) == 0;
        if place.load(Ordering::Acquire) == expected {
            assert!(!is_free, "a swap in free memory at {addr}");
        }
        let found = place.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
        if found.is_ok() {
            self.note(addr.raw(), new);
        }
        if matches!(fault, Fault::Applied | Fault::Done) {
            return Err(CasError::Indeterminate);
        }
        Ok(found.unwrap_or_else(|found| found))
    }

    fn is_unallocated(&self, error: &HeapError) -> bool {
        matches!(error, HeapError::Gone(_))
    }

    fn is_lost(&self, error: &HeapError) -> bool {
        matches!(error, HeapError::Lost(_))
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES
    }

    /// In a far heap each third line is near.
    fn is_near(&self, addr: GlobalAddr) -> bool {
        !self.far || (addr.raw() / LINE).is_multiple_of(3)
    }
}
