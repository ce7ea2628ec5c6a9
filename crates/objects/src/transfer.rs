//! The transfer of an object from another rack, in the pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::{AccessError, Extent, GlobalAddr, PinnedBytesMut, PinnedWords, Pool, RackId};
use rackpool_kv::{Handle, now_ms};

use crate::chain::Transfer;
use crate::checksum::Checksum;
use crate::error::StoreError;
use crate::layout::filling::Filling;
use crate::layout::head::{Head, HeadLayout, at};
use crate::layout::keys::Keys;
use crate::store::{PlacedHead, Store, find};
use crate::wait::Pauses;

/// The longest read from a replica in bytes. Before the next one the program looks whether the
/// replica is still there.
const LONGEST_READ: u64 = 4 << 20;
/// After this time without a sign of life the program that fills the source counts as gone. A
/// program gives such a sign each millisecond or so; a busy host may let it wait for a core for
/// some tens of them.
const SILENT: Duration = Duration::from_millis(100);
/// After this time a source that does not grow is left, though its program lives: it may wait for
/// this one. If it waits for a program that was killed, it has left that one by then, and goes on.
const STALLED: Duration = Duration::from_millis(400);

/// The words of a replica that change while it is filled.
#[derive(Debug)]
pub(crate) struct Progress {
    words: PinnedWords<Arc<Pool>, 2>,
    extents: u32,
    /// The length of the object.
    len: u64,
}

impl Progress {
    /// Of a replica in whose head the words of all extents are.
    pub(crate) fn begin(
        head: &PinnedBytesMut<Arc<Pool>>,
        layout: HeadLayout,
        extents: u32,
        len: u64,
    ) -> Result<Self, StoreError> {
        let progress = Self { words: head.words(layout.last_use())?, extents, len };
        progress.store(0);
        Ok(progress)
    }

    /// Stores that the first `done` bytes are there, and that the program lives.
    pub(crate) fn store(&self, done: u64) {
        self.words.store([now_ms(), Filling::of(self.extents, done, self.len).encode()]);
    }
}

/// Where the bytes of an object lie, one extent after the other.
#[derive(Debug)]
pub(crate) struct Memory(Vec<Extent>);

impl Memory {
    /// Of an object or a replica; `extents` is 0 if its bytes are in the head.
    pub(crate) fn of(
        store: &Store,
        layout: HeadLayout,
        addr: GlobalAddr,
        head: &Head,
        extents: u32,
    ) -> Result<Self, StoreError> {
        let head = Head { extents, ..*head };
        let memory = Self(if extents == 0 {
            vec![Extent { addr: at(addr, layout.body()), bytes: head.len() }]
        } else {
            store.read_extents(addr, &head, layout)?
        });
        let bytes = memory.0.iter().fold(0_u64, |sum, extent| sum.saturating_add(extent.bytes));
        if bytes < head.len() { Err(StoreError::Damaged { addr }) } else { Ok(memory) }
    }

    /// The parts with the bytes from `from` up to `end`.
    pub(crate) fn parts(&self, from: u64, end: u64) -> impl Iterator<Item = Extent> {
        let mut begin = 0_u64;
        self.0.iter().filter_map(move |extent| {
            let (start, stop) = (begin, begin.saturating_add(extent.bytes));
            begin = stop;
            let (first, last) = (start.max(from), stop.min(end));
            (first < last)
                .then(|| Extent { addr: at(extent.addr, first - start), bytes: last - first })
        })
    }
}

/// The replica of another rack from which bytes come.
#[derive(Debug)]
struct Source {
    table: Handle<Arc<Pool>>,
    replica: PlacedHead,
    /// Known once its program has allocated it.
    memory: Option<Memory>,
    /// What its head said at the last look.
    words: (u64, Filling),
    /// When the look before saw a change of the words, and when one with more bytes.
    lived: Instant,
    grew: Instant,
}

impl Source {
    /// The replica of a rack, if it is one of this object.
    fn open(
        store: &Store,
        keys: &Keys,
        object: &PlacedHead,
        rack: RackId,
    ) -> Result<Option<Self>, StoreError> {
        let Some(mut table) = store.replica_table_if_any(rack)? else { return Ok(None) };
        let found = find(&mut table, keys.object(), &mut Vec::new())?;
        let head = Head { rack, extents: 0, ..object.head };
        let Some(replica) = found.filter(|found| found.head == head) else { return Ok(None) };
        let (words, now) = ((0, Filling::default()), Instant::now());
        Ok(Some(Self { table, replica, memory: None, words, lived: now, grew: now }))
    }

    /// How many bytes are there; `None` if the replica is not.
    fn look(
        &mut self,
        store: &Store,
        keys: &Keys,
        layout: HeadLayout,
    ) -> Result<Option<u64>, StoreError> {
        let PlacedHead { place, head } = self.replica;
        let words = store.filling_of(place.addr, layout)?;
        // If the replica is gone, these are other words.
        if find(&mut self.table, keys.object(), &mut Vec::new())? != Some(self.replica) {
            return Ok(None);
        }
        let Filling { extents: Some(extents), .. } = words.1 else { return Ok(Some(0)) };
        if self.memory.is_none() {
            self.memory = Some(Memory::of(store, layout, place.addr, &head, extents)?);
        }
        if words != self.words {
            self.lived = Instant::now();
        }
        if words.1 != self.words.1 {
            self.grew = Instant::now();
        }
        self.words = words;
        Ok(Some(words.1.bytes(head.len())))
    }

    fn is_alive(&self) -> bool {
        self.lived.elapsed() < SILENT && self.grew.elapsed() < STALLED
    }
}

/// The transfer of an object into a replica of this rack.
pub(crate) struct PoolTransfer<'a> {
    store: &'a Store,
    keys: &'a Keys,
    object: &'a PlacedHead,
    layout: HeadLayout,
    bytes: &'a mut PinnedBytesMut<Arc<Pool>>,
    progress: Progress,
    source: Option<Source>,
    checksum: Checksum,
    /// How many bytes were brought.
    done: u64,
    /// How many of them came from a replica.
    pub(crate) followed: u64,
}

impl<'a> PoolTransfer<'a> {
    /// Of an object that may be freed meanwhile, from the replica of the rack `source` as far as
    /// that goes.
    pub(crate) fn new(
        store: &'a Store,
        keys: &'a Keys,
        object: &'a PlacedHead,
        source: Option<RackId>,
        bytes: &'a mut PinnedBytesMut<Arc<Pool>>,
        progress: Progress,
    ) -> Self {
        let layout = HeadLayout::of(keys.id_len());
        // The object itself will do if the replica can't be found.
        let source = source.and_then(|rack| Source::open(store, keys, object, rack).ok().flatten());
        let (checksum, done, followed) = (Checksum::new(), 0, 0);
        Self { store, keys, object, layout, bytes, progress, source, checksum, done, followed }
    }

    /// Reads the bytes from the first one that is missing up to `end`. After an error some of them
    /// were brought.
    fn read(&mut self, memory: &Memory, end: u64) -> Result<(), AccessError> {
        let Self { bytes, progress, checksum, done, .. } = self;
        for part in memory.parts(*done, end) {
            let first = usize::try_from(*done).unwrap_or(usize::MAX);
            let len = usize::try_from(part.bytes).unwrap_or(usize::MAX);
            bytes.read_from(first, part.addr, len, |piece| {
                checksum.update(piece);
                *done += piece.len() as u64;
                progress.store(*done);
            })?;
        }
        Ok(())
    }

    /// Waits until the source has more bytes than this replica. Returns how many it has; `None` if
    /// there is no source, it is gone, or it does not grow.
    fn wait(&mut self) -> Result<Option<u64>, StoreError> {
        let Some(source) = &mut self.source else { return Ok(None) };
        let mut pauses = Pauses::default();
        loop {
            let begin = Instant::now();
            self.store.check_in_use()?;
            match source.look(self.store, self.keys, self.layout) {
                Ok(Some(there)) if there > self.done => return Ok(Some(there)),
                Ok(Some(_)) if source.is_alive() => {}
                // It may be that only its rack is away.
                Ok(_) | Err(_) => return Ok(None),
            }
            // The program behind this one sees that this one lives.
            self.progress.store(self.done);
            std::thread::sleep(pauses.next(begin.elapsed()));
        }
    }
}

impl Transfer for PoolTransfer<'_> {
    type Error = StoreError;

    fn follow(&mut self) -> Result<bool, StoreError> {
        let there = self.wait()?;
        let (Some(there), Some(mut source)) = (there, self.source.take()) else {
            return Ok(false);
        };
        let Some(memory) = source.memory.take() else { return Ok(false) };
        let begin = self.done;
        let end = there.min(begin.saturating_add(LONGEST_READ));
        let read = self.read(&memory, end);
        self.followed += self.done - begin;
        match read {
            Ok(()) => {
                self.source = Some(Source { memory: Some(memory), ..source });
                Ok(self.done < self.object.head.len())
            }
            // A piece may still land, so the memory can't be filled from elsewhere.
            Err(error @ AccessError::Daemon(_)) => Err(error.into()),
            Err(_) => Ok(false),
        }
    }

    fn has_followed(&self) -> bool {
        self.followed > 0
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        let PlacedHead { place, head } = self.object;
        if self.done == head.len() {
            return Ok(());
        }
        let memory = Memory::of(self.store, self.layout, place.addr, head, head.extents)?;
        Ok(self.read(&memory, head.len())?)
    }

    fn is_right(&self) -> bool {
        self.checksum.clone().finish() == self.object.head.checksum
    }

    fn restart(&mut self) -> Result<(), StoreError> {
        (self.source, self.checksum, self.done, self.followed) = (None, Checksum::new(), 0, 0);
        self.progress.store(0);
        Ok(())
    }
}
