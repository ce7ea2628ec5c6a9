//! A volume in the memory of one process, shared with the table's tests: the heap detects misuse,
//! and stops and kills clients at every memory operation.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers of tests are small")]

#[path = "../../../kv/tests/support/mod.rs"]
pub mod table;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rackpool_client::{PublishCas, RootError, WriteRequest};
use rackpool_fs::{
    Caller, Capacity, FileType, FsError, HeldSeat, Ino, NewNode, Volume, VolumeMemory,
};
use rackpool_kv::{CasError, GlobalAddr, Memory, ReadRequest, Table};

use table::heap::{Heap, HeapError};
use table::reservations::HeapReservation;

/// The heap, and the roots.
#[derive(Clone, Debug)]
pub struct TestVolumeMemory {
    pub heap: Arc<Heap>,
    roots: Arc<Mutex<BTreeMap<String, GlobalAddr>>>,
    bytes: u64,
    /// Shared by all mounts.
    has_reserve: Arc<AtomicBool>,
    /// Bytes that count as used without being used.
    ballast: Arc<AtomicU64>,
}

/// The size of a mount's reserve in bytes.
const RESERVE: u64 = 32 << 10;

impl TestVolumeMemory {
    pub fn new(bytes: u64) -> Self {
        let (roots, has_reserve, ballast) = (Arc::default(), Arc::default(), Arc::default());
        Self { heap: Arc::new(Heap::new(bytes)), roots, bytes, has_reserve, ballast }
    }

    /// Limits the free bytes beside the reserve; `None` removes the limit.
    pub fn leave_free(&self, bytes: Option<u64>) {
        self.ballast.store(0, Ordering::Relaxed);
        let free = self.limit().saturating_sub(self.used() + RESERVE);
        let ballast = bytes.map_or(0, |bytes| free.saturating_sub(bytes));
        self.ballast.store(ballast, Ordering::Relaxed);
    }

    /// The most bytes that may be in use. The heap itself may be full earlier, since it reuses
    /// freed memory only for the same size.
    fn limit(&self) -> u64 {
        self.bytes / 2
    }

    fn expect_room(&self, bytes: u64) -> Result<(), HeapError> {
        let reserve = if self.has_reserve.load(Ordering::Relaxed) { RESERVE } else { 0 };
        let wanted = self.used() + bytes + reserve;
        if wanted > self.limit() { Err(HeapError::Full) } else { Ok(()) }
    }

    /// Opens the volume of all tests, which never waits for other mounts.
    pub fn mount(&self) -> Volume<Self> {
        let volume = Volume::open_or_create(self.clone(), "test").unwrap();
        volume.with_lock_wait(std::time::Duration::ZERO)
    }

    /// The address of the volume's superblock.
    pub fn superblock(&self) -> GlobalAddr {
        self.roots.lock().unwrap()["fs:test"]
    }

    /// The volume's table.
    pub fn table(&self) -> Table<Self> {
        let mut bytes = [0; 24];
        self.heap.read(self.superblock(), &mut bytes).unwrap();
        let addr = u64::from_le_bytes(*bytes.last_chunk().unwrap());
        Table::open(self.clone(), GlobalAddr::from_raw(addr)).unwrap()
    }

    /// Gives the claim of a file to the first mount that has it open.
    pub fn claim(&self, ino: Ino) {
        let key = [&b"i"[..], &ino.0.to_be_bytes()].concat();
        let (mut handle, mut value) = (self.table().handle(), Vec::new());
        assert!(handle.get(&key, &mut value).unwrap());
        // After the tag of a plain value: the claim, the count of opens, the first of them.
        value.copy_within(1 + 116..1 + 126, 1 + 104);
        handle.put(&key, &value).unwrap();
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.heap.live().iter().sum::<u64>() + self.ballast.load(Ordering::Relaxed)
    }
}

/// The whole words around some bytes: the heap has no smaller unit.
fn around(addr: GlobalAddr, len: usize) -> (GlobalAddr, usize, usize) {
    let before = usize::try_from(addr.raw() % 8).unwrap();
    let whole = (before + len).next_multiple_of(8);
    (GlobalAddr::from_raw(addr.raw() - before as u64), before, whole)
}

impl Memory for TestVolumeMemory {
    type Error = HeapError;
    type Reservation = HeapReservation;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, HeapError> {
        self.expect_room(bytes)?;
        self.heap.allocate(bytes)
    }

    fn free(&self, addr: GlobalAddr) -> Result<(), HeapError> {
        self.heap.free(addr)
    }

    fn reserve(&self, bytes: u64) -> Result<HeapReservation, HeapError> {
        self.expect_room(bytes)?;
        self.heap.reserve(bytes)
    }

    fn tombstone(&self) -> Result<HeapReservation, HeapError> {
        self.heap.tombstone()
    }

    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<HeapReservation>, HeapError> {
        self.heap.take(place, object)
    }

    fn publish(
        &self,
        reservation: &mut HeapReservation,
        link: &PublishCas,
    ) -> Result<u64, CasError<HeapError>> {
        self.heap.publish(reservation, link)
    }

    fn resolve(&self, reservation: &mut HeapReservation, published: bool) {
        self.heap.resolve(reservation, published);
    }

    fn abort(&self, reservation: &mut HeapReservation) {
        self.heap.abort(reservation);
    }

    fn finish(&self, reservation: HeapReservation) -> Result<(), HeapError> {
        self.heap.finish(reservation)
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), HeapError> {
        let (first, before, whole) = around(addr, into.len());
        let mut words = vec![0; whole];
        self.heap.read(first, &mut words)?;
        into.copy_from_slice(&words[before..before + into.len()]);
        Ok(())
    }

    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), HeapError> {
        let (first, before, whole) = around(addr, from.len());
        if (before, whole) == (0, from.len()) {
            return self.heap.write(addr, from);
        }
        let mut words = vec![0; whole];
        self.heap.read(first, &mut words)?;
        words[before..before + from.len()].copy_from_slice(from);
        self.heap.write(first, &words)
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
        self.heap.compare_and_swap(addr, expected, new)
    }

    fn is_unallocated(&self, error: &HeapError) -> bool {
        self.heap.is_unallocated(error)
    }

    fn is_lost(&self, _: &HeapError) -> bool {
        false
    }

    fn page_bytes(&self) -> u64 {
        self.heap.page_bytes()
    }

    fn is_near(&self, addr: GlobalAddr) -> bool {
        self.heap.is_near(addr)
    }
}

impl VolumeMemory for TestVolumeMemory {
    type Seat = HeapReservation;

    fn sit(
        &self,
        seat: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<HeldSeat<HeapReservation>>, HeapError> {
        let reservation = self.heap.take(seat, object)?;
        Ok(reservation
            .map(|seat| HeldSeat { token: rackpool_kv::ReservedObject::token(&seat), seat }))
    }

    fn leave(&self, seat: HeapReservation) {
        self.heap.finish(seat).unwrap();
    }

    fn keep_reserve(&self, _: &HeapReservation) -> bool {
        let fits = self.used() + RESERVE <= self.limit();
        self.has_reserve.fetch_or(fits, Ordering::Relaxed) || fits
    }

    fn release_reserve(&self, _: &HeapReservation) -> bool {
        self.has_reserve.swap(false, Ordering::Relaxed)
    }

    fn write_batch(&self, writes: &[WriteRequest<'_>]) -> Result<(), HeapError> {
        writes.iter().try_for_each(|write| self.write(write.addr, write.from))
    }

    fn capacity(&self) -> Result<Capacity, HeapError> {
        Ok(Capacity { total: self.limit(), free: self.limit().saturating_sub(self.used()) })
    }

    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, RootError> {
        Ok(self.roots.lock().unwrap().get(name).copied())
    }

    fn set_root(&self, name: &str, addr: GlobalAddr) -> Result<Option<GlobalAddr>, RootError> {
        Ok(Some(*self.roots.lock().unwrap().entry(name.into()).or_insert(addr)))
    }

    fn is_full(error: &HeapError) -> bool {
        matches!(error, HeapError::Full)
    }
}

pub const ROOT: Caller = Caller::new(0, 0);

/// Creates a file.
pub fn file(volume: &Volume<TestVolumeMemory>, parent: Ino, name: &[u8]) -> Ino {
    volume.create(parent, name, NewNode::File, 0o644, ROOT).unwrap().ino
}

/// Creates a directory.
pub fn directory(volume: &Volume<TestVolumeMemory>, parent: Ino, name: &[u8]) -> Ino {
    volume.create(parent, name, NewNode::Directory, 0o755, ROOT).unwrap().ino
}

/// The names in a directory, without `.` and `..`, sorted.
pub fn names(volume: &Volume<TestVolumeMemory>, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
    let mut names = Vec::new();
    volume.read_dir(ino, 2, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })?;
    names.sort();
    Ok(names)
}

/// Walks all directories; panics if their counts are wrong.
pub fn check(volume: &Volume<TestVolumeMemory>, label: &str) {
    let mut links: BTreeMap<Ino, u32> = BTreeMap::new();
    let mut rest = vec![Ino::ROOT];
    while let Some(ino) = rest.pop() {
        let (mut entries, mut inner) = (0, 0);
        for name in names(volume, ino).unwrap() {
            let attr = volume.lookup(ino, &name).unwrap();
            entries += 1;
            if attr.kind == FileType::Directory {
                inner += 1;
                rest.push(attr.ino);
            } else {
                *links.entry(attr.ino).or_default() += 1;
            }
        }
        let attr = volume.attr(ino).unwrap();
        assert_eq!((attr.nlink, attr.size), (2 + inner, 4096 + 64 * entries), "{label}: {ino:?}");
    }
    for (ino, count) in links {
        assert_eq!(volume.attr(ino).unwrap().nlink, count, "{label}: {ino:?}");
    }
}

/// Removes everything in a directory.
pub fn remove_all(volume: &Volume<TestVolumeMemory>, ino: Ino) {
    for name in names(volume, ino).unwrap() {
        let attr = volume.lookup(ino, &name).unwrap();
        if attr.kind == FileType::Directory {
            remove_all(volume, attr.ino);
            volume.rmdir(ino, &name).unwrap();
        } else {
            volume.unlink(ino, &name).unwrap();
        }
    }
}

/// The allocations after a mount without faults has removed everything.
pub fn emptied(memory: &TestVolumeMemory) -> Vec<u64> {
    let volume = memory.mount();
    volume.sweep().unwrap();
    remove_all(&volume, Ino::ROOT);
    volume.sweep().unwrap();
    volume.close().unwrap();
    let mut live = memory.heap.live();
    live.sort_unstable();
    live
}
