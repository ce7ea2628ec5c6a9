use std::collections::BTreeSet;

use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::table::Table;
use crate::handle::{Handle, TableState};
use crate::layout::bucket::{slot_addr, slots_in, word_at};
use crate::layout::hash::KeyHash;
use crate::layout::header::TableHeader;
use crate::layout::segment::SegmentRef;
use crate::layout::slot::SlotWord;
use crate::layout::spare_block::{SparePlace, SpareSegments};
use crate::memory::Memory;
use crate::memory::words::read_word;
use crate::segments::reshape::LiveEntries;

/// The result of destroying a table of which parts are unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    /// Objects that were freed.
    pub freed: u64,
    /// Objects that could not be freed: their pages are lost, or their racks are unreachable.
    pub kept: u64,
    /// Parts that could not be read. The objects that they point to are unknown.
    pub unread: u64,
}

/// A failure during the destruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// An object could not be freed.
    Kept,
    /// A part that points to objects could not be read.
    Unread,
}

/// Decides whether a failure ends the destruction.
trait Losses<E> {
    fn note(&mut self, loss: Loss, error: KvError<E>) -> Result<(), KvError<E>>;
}

/// The first failure ends the destruction.
struct NoLoss;

impl<E> Losses<E> for NoLoss {
    fn note(&mut self, _: Loss, error: KvError<E>) -> Result<(), KvError<E>> {
        Err(error)
    }
}

impl<E> Losses<E> for Destroyed {
    fn note(&mut self, loss: Loss, _: KvError<E>) -> Result<(), KvError<E>> {
        match loss {
            Loss::Kept => self.kept += 1,
            Loss::Unread => self.unread += 1,
        }
        Ok(())
    }
}

impl<M: Memory> Table<M> {
    /// Frees all memory of the table. The caller must ensure that no other client uses the table
    /// during the call or later; the table does not check it. The caller removes the table's name
    /// first, if it has one.
    ///
    /// A kill during the call leaks the memory that is not yet freed.
    ///
    /// ```
    /// use rackpool_kv::{KvError, Memory, TableOptions, Table};
    ///
    /// fn demo<M: Memory>(pool: M) -> Result<(), KvError<M::Error>> {
    ///     let table = Table::create(pool, &TableOptions::default())?;
    ///     table.handle().put(b"for", b"a moment")?;
    ///     table.destroy()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`KvError::InUse`] if another client is splitting a segment, or was killed while splitting
    /// one and its daemon has not recovered it yet: the table is unchanged. Otherwise damaged
    /// parts, or the memory's own error; then some of the table's memory may be leaked.
    pub fn destroy(self) -> Result<(), KvError<M::Error>> {
        self.dismantle(&mut NoLoss).map(drop)
    }

    /// Like [`destroy`](Self::destroy), for a table with pages that are lost or in unreachable
    /// racks: frees what can be reached, and returns how much that was.
    ///
    /// ```
    /// use rackpool_kv::{KvError, Memory, Table};
    ///
    /// fn give_up<M: Memory>(table: Table<M>) -> Result<(), KvError<M::Error>> {
    ///     let destroyed = table.destroy_reachable()?;
    ///     println!("{} objects are free, {} are not", destroyed.freed, destroyed.kept);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`KvError::InUse`], or the memory's own error at the header: the table is unchanged.
    pub fn destroy_reachable(self) -> Result<Destroyed, KvError<M::Error>> {
        let mut destroyed = Destroyed::default();
        let freed = self.dismantle(&mut destroyed)?;
        Ok(Destroyed { freed, ..destroyed })
    }

    /// Frees everything; returns the number of objects freed.
    fn dismantle(&self, losses: &mut impl Losses<M::Error>) -> Result<u64, KvError<M::Error>> {
        let mut handle = self.handle();
        let TableState { memory, layout, .. } = &*self.shared;
        let mut blocks = Vec::new();
        match handle.spare_segments() {
            Ok(found) => blocks = found,
            Err(error) => losses.note(Loss::Unread, error)?,
        }
        let mut places = blocks.iter().flat_map(SpareSegments::places);
        if places.any(|(_, place)| place == Some(SparePlace::Taken)) {
            return Err(KvError::InUse { addr: layout.addr });
        }
        // From here on the table cannot be opened.
        memory.write(layout.addr, &[0; 8]).map_err(KvError::Memory)?;
        let mut freed = 0;
        let mut at = 0;
        while let Some(hash) = handle.suffix_at(at) {
            match handle.resolve(hash) {
                Ok(segment) => {
                    if handle.free_entries(segment, hash, losses, &mut freed)? {
                        at += handle.suffixes_of(segment);
                    }
                }
                Err(error) => {
                    losses.note(Loss::Unread, error)?;
                    break;
                }
            }
        }
        let rest = handle.rest_of(losses)?;
        for addr in rest.into_iter().chain([layout.directory, layout.addr]) {
            match memory.free(addr) {
                Ok(()) => freed += 1,
                Err(error) => losses.note(Loss::Kept, KvError::Memory(error))?,
            }
        }
        Ok(freed)
    }
}

impl<M: Memory> Handle<M> {
    /// Frees the entries of a segment; false if the segment was replaced and is to be found again.
    fn free_entries(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        losses: &mut impl Losses<M::Error>,
        freed: &mut u64,
    ) -> Result<bool, KvError<M::Error>> {
        let slots = match self.read_slots(segment) {
            Ok(slots) => slots,
            Err(error) => return losses.note(Loss::Unread, error).map(|()| true),
        };
        if slots.iter().any(|slot| slot.is_frozen()) {
            // A client was killed while it split the segment.
            match self.reshape(segment, hash) {
                Ok(()) => return Ok(false),
                Err(error) => losses.note(Loss::Unread, error)?,
            }
            // A segment that could not be replaced still has its entries.
            match self.confirm(hash, segment) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => return losses.note(Loss::Unread, error).map(|()| true),
            }
        }
        self.free_slots(&slots, losses, freed).map(|()| true)
    }

    /// Frees the entries in these slots.
    fn free_slots(
        &self,
        slots: &[SlotWord],
        losses: &mut impl Losses<M::Error>,
        freed: &mut u64,
    ) -> Result<(), KvError<M::Error>> {
        // A killed publisher may have left owner words set.
        let settled = self.read_heads(slots).and_then(|LiveEntries { mut moving, unsettled }| {
            self.settle_heads(&mut moving, &unsettled)?;
            Ok(moving)
        });
        let entries = match settled {
            Ok(entries) => entries,
            // One of the objects cannot be read. Reading each one alone shows which.
            Err(_) if slots.len() > 1 => {
                return slots.chunks(1).try_for_each(|slot| self.free_slots(slot, losses, freed));
            }
            Err(error) => return losses.note(Loss::Kept, error),
        };
        for entry in entries {
            match self.shared.memory.free(entry.word.object().addr) {
                Ok(()) => *freed += 1,
                Err(error) => losses.note(Loss::Kept, KvError::Memory(error))?,
            }
        }
        Ok(())
    }

    /// The addresses of the segments and of the spare-segment blocks.
    fn rest_of(
        &self,
        losses: &mut impl Losses<M::Error>,
    ) -> Result<BTreeSet<GlobalAddr>, KvError<M::Error>> {
        let layout = self.shared.layout;
        let mut rest = BTreeSet::new();
        let mut directory = vec![0; 8 << layout.max_depth];
        match self.shared.memory.read(layout.directory, &mut directory) {
            // Includes the segments that an unfinished split left in the directory.
            Ok(()) => {
                let entries = (0..1 << layout.max_depth)
                    .map(|index| SegmentRef::from_raw(word_at(&directory, index)));
                for segment in entries.filter(|segment| !segment.is_none()) {
                    rest.insert(segment.addr());
                }
            }
            Err(error) => losses.note(Loss::Unread, KvError::Memory(error))?,
        }
        // The reshaping above may have changed the spare segments.
        let blocks = match self.spare_segments() {
            Ok(blocks) => blocks,
            Err(error) => {
                losses.note(Loss::Unread, error)?;
                Vec::new()
            }
        };
        for block in blocks {
            if block.addr != TableHeader::spare_segments_addr(layout.addr) {
                rest.insert(block.addr);
            }
            for (at, place) in block.places() {
                let Some(SparePlace::Segment(segment)) = place else { continue };
                if !rest.insert(segment) {
                    losses.note(
                        Loss::Unread,
                        KvError::Corrupt { what: "spare segments", addr: at },
                    )?;
                }
            }
        }
        let mut settled = BTreeSet::new();
        for addr in rest {
            match self.settle_owner(addr) {
                Ok(()) => drop(settled.insert(addr)),
                Err(error) => losses.note(Loss::Kept, error)?,
            }
        }
        Ok(settled)
    }

    /// Clears the owner word of a segment or of a spare-segment block.
    fn settle_owner(&self, at: GlobalAddr) -> Result<(), KvError<M::Error>> {
        match read_word(&self.shared.memory, at)? {
            0 => Ok(()),
            owner => self.clear_owner(at, owner),
        }
    }

    pub(crate) fn read_slots(
        &self,
        segment: SegmentRef,
    ) -> Result<Vec<SlotWord>, KvError<M::Error>> {
        let mut bytes = vec![0; self.shared.layout.shape.slots() * 8];
        let addr: GlobalAddr = slot_addr(segment.addr(), 0);
        self.shared.memory.read(addr, &mut bytes).map_err(KvError::Memory)?;
        Ok(slots_in(&bytes).collect())
    }
}
