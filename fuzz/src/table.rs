//! The hash table over memory that another client damages.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rackpool_kv::{
    CasError, GlobalAddr, Handle, KvError, Memory, PublishCas, PublishMode, ReservedObject, Table,
    TableOptions,
};

use crate::Input;

const PAGE_BYTES: u64 = 64 << 10;
const BASE: u64 = PAGE_BYTES;
const BYTES: u64 = 256 << 10;
const LINE: u64 = 64;
const POISON: u8 = 0xdd;
/// The most memory operations that any operation on so small a table needs; one that exceeds them
/// does not end.
const MAX_OPERATIONS: u64 = 200_000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum HeapError {
    #[error("no memory is left")]
    Full,
    #[error("there is no memory at {0:#x}")]
    Outside(u64),
}

/// Memory of one process. Freed memory is poisoned and never reused.
#[derive(Debug)]
pub(crate) struct Heap {
    state: Mutex<State>,
    /// Memory operations since the last call of the table.
    operations: AtomicU64,
    /// Tokens drawn so far.
    tokens: AtomicU64,
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    used: u64,
    live: BTreeMap<u64, u64>,
}

impl Heap {
    pub(crate) fn new() -> Self {
        let state = State { bytes: Vec::new(), used: 0, live: BTreeMap::new() };
        Self { state: Mutex::new(state), operations: AtomicU64::new(0), tokens: AtomicU64::new(0) }
    }

    /// Starts counting operations again, to detect a call that does not end.
    pub(crate) fn start_anew(&self) {
        self.operations.store(0, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let operations = self.operations.fetch_add(1, Ordering::Relaxed);
        assert!(operations < MAX_OPERATIONS, "an endless loop");
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The bytes at an address, if all of them are allocated or, for reads (`live` false), were
    /// once.
    fn at(&mut self, addr: GlobalAddr, len: usize, live: bool) -> Result<&mut [u8], HeapError> {
        let outside = || HeapError::Outside(addr.raw());
        let end = addr.raw().checked_add(len as u64).ok_or_else(outside)?;
        if live {
            let below = self.live.range(..=addr.raw()).next_back();
            below.filter(|(at, size)| *at + *size >= end).ok_or_else(outside)?;
        }
        let first = addr.raw().checked_sub(BASE).ok_or_else(outside)?;
        let first = usize::try_from(first).map_err(|_| outside())?;
        self.bytes.get_mut(first..).and_then(|rest| rest.get_mut(..len)).ok_or_else(outside)
    }
}

/// An object to which nothing points yet.
#[derive(Debug)]
pub(crate) struct HeapReservation {
    addr: GlobalAddr,
    token: u64,
    /// The word out of which it was borrowed; null if none.
    place: GlobalAddr,
    /// Set once published, to the compare-and-swap that published it.
    published: Option<PublishCas>,
    /// Set once the publication counts.
    counts: bool,
}

impl ReservedObject for HeapReservation {
    fn addr(&self) -> GlobalAddr {
        self.addr
    }

    fn token(&self) -> u64 {
        self.token
    }
}

impl Memory for Heap {
    type Error = HeapError;
    type Reservation = HeapReservation;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, HeapError> {
        let mut state = self.state();
        let size = bytes.next_power_of_two().max(LINE);
        let at = (BASE + state.used).next_multiple_of(size);
        if at + size > BASE + BYTES {
            return Err(HeapError::Full);
        }
        state.used = at + size - BASE;
        let used = usize::try_from(state.used).unwrap();
        state.bytes.resize(used, POISON);
        state.live.insert(at, size);
        Ok(GlobalAddr::from_raw(at))
    }

    fn free(&self, addr: GlobalAddr) -> Result<(), HeapError> {
        let mut state = self.state();
        let size = state.live.get(&addr.raw()).copied().ok_or(HeapError::Outside(addr.raw()))?;
        state.at(addr, usize::try_from(size).unwrap(), true)?.fill(POISON);
        state.live.remove(&addr.raw());
        Ok(())
    }

    fn reserve(&self, bytes: u64) -> Result<HeapReservation, HeapError> {
        let addr = self.allocate(bytes)?;
        Ok(HeapReservation { addr, ..self.tombstone()? })
    }

    fn tombstone(&self) -> Result<HeapReservation, HeapError> {
        // A new token each time, with different values in both halves.
        let token = (self.tokens.fetch_add(1, Ordering::Relaxed) + 1) * 0x1_0000_0001;
        let token = token | 1 << 48;
        let place = GlobalAddr::NULL;
        Ok(HeapReservation { addr: place, token, place, published: None, counts: false })
    }

    fn publish(
        &self,
        reservation: &mut HeapReservation,
        link: &PublishCas,
    ) -> Result<u64, CasError<HeapError>> {
        let found = self.compare_and_swap(link.addr, link.expected, link.new)?;
        if found == link.expected {
            reservation.published = Some(*link);
            if !matches!(link.mode, PublishMode::Compare(_)) {
                self.resolve(reservation, true);
            }
        }
        Ok(found)
    }

    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<HeapReservation>, HeapError> {
        let reservation = HeapReservation { addr: object, place, ..self.tombstone()? };
        match self.compare_and_swap(place, object.raw(), reservation.token) {
            Ok(found) => Ok((found == object.raw()).then_some(reservation)),
            Err(_) => Err(HeapError::Outside(place.raw())),
        }
    }

    fn resolve(&self, reservation: &mut HeapReservation, published: bool) {
        reservation.counts = published;
        if published && !reservation.addr.is_null() {
            // The object may be damaged.
            let _ = self.compare_and_swap(reservation.addr, reservation.token, 0);
        }
    }

    fn abort(&self, reservation: &mut HeapReservation) {
        reservation.published = None;
    }

    fn finish(&self, reservation: HeapReservation) -> Result<(), HeapError> {
        let unwanted = match reservation.published {
            Some(link) if reservation.counts => link.replaced,
            Some(_) => None,
            None => Some(reservation.addr).filter(|addr| !addr.is_null()),
        };
        if !reservation.place.is_null() {
            let back = unwanted.map_or(0, GlobalAddr::raw);
            let swapped = self.compare_and_swap(reservation.place, reservation.token, back);
            return swapped.map(drop).map_err(|_| HeapError::Outside(reservation.place.raw()));
        }
        if let Some(PublishCas { addr, new, mode: PublishMode::Settle(word), .. }) =
            reservation.published
        {
            // Only damage changes the word.
            let _ = self.compare_and_swap(addr, new, word);
        }
        unwanted.map_or(Ok(()), |unwanted| self.free(unwanted))
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), HeapError> {
        into.copy_from_slice(self.state().at(addr, into.len(), false)?);
        Ok(())
    }

    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), HeapError> {
        self.state().at(addr, from.len(), true)?.copy_from_slice(from);
        Ok(())
    }

    fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, CasError<HeapError>> {
        let mut state = self.state();
        let word = state.at(addr, 8, true).map_err(CasError::Failed)?;
        let found = u64::from_le_bytes(word.try_into().unwrap());
        if found == expected {
            word.copy_from_slice(&new.to_le_bytes());
        }
        Ok(found)
    }

    fn is_unallocated(&self, error: &HeapError) -> bool {
        matches!(error, HeapError::Outside(_))
    }

    fn is_lost(&self, _: &HeapError) -> bool {
        false
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES
    }

    fn is_near(&self, addr: GlobalAddr) -> bool {
        addr.raw() & LINE == 0
    }
}

/// All values that were ever stored under each key, and the present ones; a deleted key has no
/// present value.
#[derive(Default)]
struct Model {
    ever: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    now: BTreeMap<Vec<u8>, Vec<u8>>,
    is_damaged: bool,
}

impl Model {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.ever.entry(key.to_vec()).or_default().push(value.to_vec());
        self.now.insert(key.to_vec(), value.to_vec());
    }

    /// Without damage the table behaves like a map. With damage a key may be missing or an
    /// operation refused, but any value found was once stored under that key.
    fn found(&self, key: &[u8], value: Option<&[u8]>) {
        if !self.is_damaged {
            assert_eq!(value, self.now.get(key).map(Vec::as_slice), "{key:?}");
        } else if let Some(value) = value {
            let ever = self.ever.get(key).is_some_and(|ever| ever.iter().any(|old| old == value));
            assert!(ever, "{value:?} was never stored under {key:?}");
        }
    }

    /// Checks a failed operation: without damage the only reason is that all memory is in use.
    fn failed(&mut self, error: &KvError<HeapError>) {
        let is_full = matches!(error, KvError::Memory(HeapError::Full) | KvError::TableFull { .. });
        assert!(self.is_damaged || is_full, "{error}");
    }
}

/// Operations on a small table, with damage to its header, directory, segments and objects in
/// between: no operation panics or loops, and no value is invented.
pub fn table(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let heap = Arc::new(Heap::new());
    let options = TableOptions { max_depth: 4, segment_bytes: 256 };
    let Ok(table) = Table::create(Arc::clone(&heap), &options) else { panic!("no table") };
    let table = table.with_lock_wait(Duration::ZERO);
    let addr = table.addr();
    let mut handle = table.handle();
    let mut model = Model::default();
    while !input.is_empty() {
        heap.start_anew();
        match input.below(16) {
            0..=8 => operate(&mut input, &mut handle, &mut model),
            9 => {
                let mut seen = Vec::new();
                let scanned = handle.for_each(|key, value| {
                    seen.push((key.to_vec(), value.to_vec()));
                });
                seen.iter().for_each(|(key, value)| model.found(key, Some(value)));
                match scanned {
                    Err(error) => model.failed(&error),
                    Ok(()) => assert!(model.is_damaged || seen.len() == model.now.len()),
                }
            }
            10 => {
                // Another client, without cached state.
                match Table::open(Arc::clone(&heap), addr) {
                    Ok(table) => handle = table.with_lock_wait(Duration::ZERO).handle(),
                    Err(error) => model.failed(&error),
                }
            }
            _ => poke(&mut input, &heap, &mut model),
        }
    }
    heap.start_anew();
    match table.destroy() {
        Err(error) => model.failed(&error),
        Ok(()) => assert!(model.is_damaged || heap.state().live.is_empty(), "something is left"),
    }
}

fn poke(input: &mut Input<'_>, heap: &Heap, model: &mut Model) {
    let mut state = heap.state();
    let lines = state.used / LINE;
    let line = u64::from(input.short()) % lines.max(1);
    let offset = u64::from(input.byte());
    let xor = input.byte();
    let at = GlobalAddr::from_raw(BASE + line * LINE + offset % LINE);
    match offset / LINE {
        // One byte, or one word: a flipped bit, a pointer elsewhere.
        0 | 1 => {
            let Ok(found) = state.at(at, 1, true) else { return };
            found[0] ^= xor;
            model.is_damaged |= xor != 0;
        }
        2 => {
            let at = GlobalAddr::from_raw(at.raw() & !7);
            let Ok(found) = state.at(at, 8, true) else { return };
            found.copy_from_slice(&input.word().to_le_bytes());
            model.is_damaged = true;
        }
        // A copy of another place: a word that was once valid.
        _ => {
            let from = BASE + u64::from(input.short()) % lines.max(1) * LINE + u64::from(xor & 56);
            let Ok(word) = state.at(GlobalAddr::from_raw(from), 8, false) else { return };
            let word: [u8; 8] = (&*word).try_into().unwrap();
            let at = GlobalAddr::from_raw(at.raw() & !7);
            let Ok(found) = state.at(at, 8, true) else { return };
            found.copy_from_slice(&word);
            model.is_damaged = true;
        }
    }
}

fn operate(input: &mut Input<'_>, handle: &mut Handle<Arc<Heap>>, model: &mut Model) {
    let number = input.byte();
    // Keys that contain their length; values of one cache line, of several, and large ones.
    let key = vec![number; usize::from(number % 7) + 1];
    let kind = input.byte();
    let length = [3, 60, 900, 3000][usize::from(kind >> 6)];
    let value = vec![input.byte(); length];
    let known = model.now.get(&key).cloned();
    let result = match kind % 8 {
        0..=2 => handle.put(&key, &value).map(|_| true),
        3 => handle.insert(&key, &value),
        4 => handle.update(&key, &value),
        5 => handle.compare_and_put(&key, known.as_deref(), &value),
        6 => match handle.delete(&key) {
            Ok(was_there) => {
                assert!(model.is_damaged || was_there == known.is_some());
                model.now.remove(&key);
                Ok(false)
            }
            Err(error) => Err(error),
        },
        _ => {
            let mut found = Vec::new();
            match handle.get(&key, &mut found) {
                Ok(is_there) => {
                    model.found(&key, is_there.then_some(&found[..]));
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        }
    };
    match result {
        Ok(true) => model.put(&key, &value),
        Ok(false) => {}
        Err(error) => {
            // Refused, and yet possibly done before a later step failed.
            model.ever.entry(key).or_default().push(value);
            model.failed(&error);
        }
    }
}
