//! Removal of a table at a place, part by part: docs/design/kv.md, "Removal".

use rackpool_client::{GlobalAddr, PublishCas, PublishMode};

use crate::error::KvError;
use crate::handle::Handle;
use crate::handle::table::Table;
use crate::layout::bucket::word_at;
use crate::layout::header::{CreationStage, DecodedHeader, TableHeader};
use crate::layout::segment::{SegmentRef, TableLayout};
use crate::layout::slot::SlotKind;
use crate::layout::spare_block::{SparePlace, SpareSegments};
use crate::lifecycle::create::read_header;
use crate::memory::words::{CasOutcome, read_word, swap_word};
use crate::memory::{CasError, Memory, ReservedObject};
use crate::objects::reclaim::clear_owner;

/// About the number of entries that are deleted between two steps of a scan.
const STEP: usize = 256;

impl<M: Memory + Clone> Table<M> {
    /// Removes the table whose address is in the word at `place`, and everything in it; the word is
    /// 0 then. Does nothing if it is 0 before. The caller ensures that no other client uses the
    /// table or calls this during the call or later; the table does not check it.
    ///
    /// A kill during the call leaks nothing: the next call removes what is left. Only this call can
    /// be made on a table of which parts are removed.
    ///
    /// ```
    /// use rackpool_kv::{GlobalAddr, KvError, Memory, Table, TableOptions};
    ///
    /// fn demo<M: Memory + Clone>(pool: M, place: GlobalAddr) -> Result<(), KvError<M::Error>> {
    ///     let table = Table::open_or_create_at(pool.clone(), place, &TableOptions::default())?;
    ///     table.handle().put(b"for", b"a moment")?;
    ///     Table::remove_at(pool, place)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`KvError::InUse`] if a client has borrowed a segment, or if what a killed client was doing
    /// is not resolved yet: call again. Otherwise damaged parts, or the memory's own error; then
    /// the parts that are not removed yet stay for the next call.
    pub fn remove_at(memory: M, place: GlobalAddr) -> Result<(), KvError<M::Error>> {
        loop {
            let Some(addr) = linked(read_word(&memory, place)?, place)? else { return Ok(()) };
            match read_word(&memory, addr)? {
                TableHeader::MAGIC => {
                    let DecodedHeader { layout, stage } = read_header(&memory, addr)?;
                    // A table is used once it is complete.
                    if stage.is_complete() {
                        Self::with_layout(memory.clone(), layout).handle().remove_entries()?;
                    }
                    let (open, removed) = (TableHeader::MAGIC, TableHeader::REMOVED);
                    while swap_word(&memory, addr, open, removed)? == CasOutcome::Unknown {}
                }
                TableHeader::REMOVED => {
                    let mut header = [0; TableHeader::FIXED];
                    memory.read(addr, &mut header).map_err(KvError::Memory)?;
                    let DecodedHeader { layout, stage } =
                        TableHeader::decode_removed(addr, &header)?;
                    Parts { memory: &memory, layout }.remove(stage, place)?;
                }
                // As in `open_or_create_at`: the owner word goes before the magic number comes.
                0 => drop(swap_word(&memory, addr, 0, TableHeader::MAGIC)?),
                owner => clear_owner(&memory, addr, owner)?,
            }
        }
    }
}

impl<M: Memory> Handle<M> {
    /// Deletes all entries. No killed client needs a word of the segments afterwards.
    fn remove_entries(&mut self) -> Result<(), KvError<M::Error>> {
        let mut cursor = 0;
        loop {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            cursor = self.scan(cursor, STEP, |key, _| keys.push(key.to_vec()))?;
            for key in keys {
                self.remove(&key, None)?;
            }
            if cursor == 0 {
                break;
            }
        }
        // No scan visits the entries whose memory is lost.
        let lost = self.lost_entries()?;
        self.remove_lost(&lost)?;
        let in_use = KvError::InUse { addr: self.shared.layout.addr };
        let mut at = 0;
        while let Some(hash) = self.suffix_at(at) {
            let segment = self.resolve(hash)?;
            // A mark is the evidence of a deletion whose client was killed.
            let slots = self.read_slots(segment)?;
            if slots.iter().any(|slot| slot.kind() == SlotKind::Live || slot.is_marked()) {
                return Err(in_use);
            }
            at += self.suffixes_of(segment);
        }
        let segments = self.segments()?;
        if segments.taken + segments.marked > 0 { Err(in_use) } else { Ok(()) }
    }
}

/// A table without entries, whose header says that it is being removed.
struct Parts<'a, M> {
    memory: &'a M,
    layout: TableLayout,
}

impl<M: Memory> Parts<'_, M> {
    /// Frees each part, after those that it leads to. Each is unlinked and freed in one step, from
    /// the only word that names it.
    fn remove(&self, stage: CreationStage, place: GlobalAddr) -> Result<(), KvError<M::Error>> {
        let Self { memory, layout } = *self;
        let at = TableHeader::directory_at(layout.addr);
        let directory = linked(layout.directory.raw(), at)?;
        if let Some(directory) = directory {
            if stage.has_directory() {
                self.remove_segments()?;
            }
            // In a directory whose creation was interrupted the first entry is its owner word.
            self.settle_owner(directory)?;
        }
        let blocks = self.blocks()?;
        for block in &blocks {
            for (at, place) in block.places() {
                match place {
                    Some(SparePlace::Empty) => {}
                    Some(SparePlace::Segment(segment)) => {
                        self.unlink(at, segment.raw(), segment, |token| token)?;
                    }
                    Some(SparePlace::Taken) => return Err(KvError::InUse { addr: layout.addr }),
                    None => return Err(KvError::Corrupt { what: "spare segments", addr: at }),
                }
            }
        }
        for pair in blocks.windows(2).rev() {
            if let [before, block] = pair {
                let at = SpareSegments::word_addr(before.addr, SpareSegments::NEXT);
                self.unlink(at, block.addr.raw(), block.addr, |token| token)?;
            }
        }
        if let Some(directory) = directory {
            self.unlink(at, directory.raw(), directory, |token| token)?;
        }
        // The header's owner word is its magic number, which is no token.
        unlink(memory, place, layout.addr.raw(), layout.addr, |token| token)
    }

    /// Frees the segments in the directory.
    fn remove_segments(&self) -> Result<(), KvError<M::Error>> {
        let Self { memory, layout } = *self;
        let mut directory = vec![0; 8 << layout.max_depth];
        memory.read(layout.directory, &mut directory).map_err(KvError::Memory)?;
        for (at, index) in (0..1 << layout.max_depth).zip(0..) {
            let segment = SegmentRef::from_raw(word_at(&directory, index));
            if segment.is_removed() {
                return Err(KvError::InUse { addr: layout.addr });
            }
            if !segment.is_none() {
                let at = layout.entry_addr(at);
                self.unlink(at, segment.raw(), segment.addr(), SegmentRef::removed_by)?;
            }
        }
        Ok(())
    }

    /// The blocks of spare segments.
    fn blocks(&self) -> Result<Vec<SpareSegments>, KvError<M::Error>> {
        let mut blocks = Vec::with_capacity(1);
        let mut addr = TableHeader::spare_segments_addr(self.layout.addr);
        while blocks.len() < SpareSegments::MAX_BLOCKS {
            let mut bytes = [0; SpareSegments::BYTES];
            self.memory.read(addr, &mut bytes).map_err(KvError::Memory)?;
            blocks.push(SpareSegments { addr, bytes });
            let at = SpareSegments::word_addr(addr, SpareSegments::NEXT);
            match linked(word_at(&bytes, SpareSegments::NEXT), at)? {
                None => return Ok(blocks),
                Some(next) => addr = next,
            }
        }
        Err(KvError::Corrupt { what: "spare segments", addr })
    }

    /// [`unlink`], of an object that begins with its owner word.
    fn unlink(
        &self,
        at: GlobalAddr,
        word: u64,
        object: GlobalAddr,
        removed: impl Fn(u64) -> u64,
    ) -> Result<(), KvError<M::Error>> {
        self.settle_owner(object)?;
        unlink(self.memory, at, word, object, removed)
    }

    fn settle_owner(&self, object: GlobalAddr) -> Result<(), KvError<M::Error>> {
        match read_word(self.memory, object)? {
            0 => Ok(()),
            owner => clear_owner(self.memory, object, owner),
        }
    }
}

/// Takes `object` out of the word at `at`, which is `word` and becomes 0, and frees it. In between
/// the word is what `removed` makes of a token. If the client is killed, its daemon does the rest.
fn unlink<M: Memory>(
    memory: &M,
    at: GlobalAddr,
    word: u64,
    object: GlobalAddr,
    removed: impl Fn(u64) -> u64,
) -> Result<(), KvError<M::Error>> {
    let mut tombstone = memory.tombstone().map_err(KvError::Memory)?;
    let new = removed(tombstone.token());
    let link = PublishCas {
        addr: at,
        expected: word,
        new,
        mask: u64::MAX,
        replaced: Some(object),
        mode: PublishMode::Settle(0),
    };
    let result = loop {
        match memory.publish(&mut tombstone, &link) {
            Ok(found) if found == word => break Ok(()),
            Ok(_) => break Err(KvError::InUse { addr: at }),
            Err(CasError::Failed(error)) => break Err(KvError::Memory(error)),
            Err(CasError::GivenUp(_)) => break Err(KvError::OutcomeUnknown),
            Err(CasError::Indeterminate) => {}
        }
        // No other client changes a word that holds this token.
        match read_word(memory, at).map(|now| now == new) {
            Ok(is_done) => {
                memory.resolve(&mut tombstone, is_done);
                if is_done {
                    break Ok(());
                }
            }
            Err(error) => break Err(error),
        }
    };
    memory.finish(tombstone).map_err(KvError::Memory)?;
    result
}

/// The object that a word at `at` leads to.
fn linked<E>(word: u64, at: GlobalAddr) -> Result<Option<GlobalAddr>, KvError<E>> {
    match word {
        0 => Ok(None),
        // The token of a removal whose client was killed. The daemon makes it 0.
        token if token >> 48 != 0 => Err(KvError::InUse { addr: at }),
        addr => Ok(Some(GlobalAddr::from_raw(addr))),
    }
}
