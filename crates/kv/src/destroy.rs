use std::collections::BTreeSet;

use rackpool_client::GlobalAddr;

use crate::bucket::{slot_addr, slots_in, word_at};
use crate::error::KvError;
use crate::handle::Handle;
use crate::header::TableHeader;
use crate::memory::Memory;
use crate::segment::SegmentRef;
use crate::shelf::{Place, ShelfBlock};
use crate::slot::SlotWord;
use crate::table::Table;
use crate::words::read_word;

impl<M: Memory> Table<M> {
    /// Gives all memory of the table back to the pool. No other client may use the table during
    /// this or later: nothing keeps one from doing so.
    ///
    /// ```
    /// use rackpool_kv::{KvError, Memory, Options, Table};
    ///
    /// fn demo<M: Memory>(pool: M) -> Result<(), KvError<M::Error>> {
    ///     let table = Table::create(pool, &Options::default())?;
    ///     table.handle().put(b"for", b"a moment")?;
    ///     table.destroy()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`KvError::InUse`] if another client is splitting a segment, or was killed doing so a moment
    /// ago: the table is as before then. Else damaged parts or the memory's own error: then some of
    /// its memory may be left behind.
    pub fn destroy(self) -> Result<(), KvError<M::Error>> {
        let mut handle = self.handle();
        let layout = self.shared.layout;
        let memory = &self.shared.memory;
        let blocks = handle.shelf()?;
        let mut places = blocks.iter().flat_map(ShelfBlock::places);
        if places.any(|(_, place)| place == Some(Place::Taken)) {
            return Err(KvError::InUse { addr: layout.addr });
        }
        // From here on nobody opens it.
        memory.write(layout.addr, &[0; 8]).map_err(KvError::Memory)?;
        let mut segments = BTreeSet::new();
        let mut at = 0;
        while let Some(hash) = handle.suffix_at(at) {
            let segment = handle.resolve(hash)?;
            let slots = handle.read_slots(segment)?;
            if slots.iter().any(|slot| slot.is_frozen()) {
                // Somebody was killed while splitting it.
                handle.reshape(segment, hash)?;
                continue;
            }
            // A publisher that was killed may not have come to it.
            let (mut moving, unsettled) = handle.read_heads(&slots)?;
            handle.settle_heads(&mut moving, &unsettled)?;
            for entry in moving {
                memory.free(entry.word.object().addr).map_err(KvError::Memory)?;
            }
            at += handle.suffixes_of(segment);
        }
        // Also such as a split has left there that was not finished.
        let mut directory = vec![0; 8 << layout.max_depth];
        memory.read(layout.directory, &mut directory).map_err(KvError::Memory)?;
        for index in 0..1 << layout.max_depth {
            let segment = SegmentRef::from_raw(word_at(&directory, index));
            if !segment.is_none() {
                handle.settle_owner(segment.addr())?;
                segments.insert(segment.addr());
            }
        }
        // Reshaping may have changed the shelf.
        for block in handle.shelf()? {
            if block.addr != TableHeader::shelf_addr(layout.addr) {
                handle.settle_owner(block.addr)?;
                segments.insert(block.addr);
            }
            for (at, place) in block.places() {
                let Some(Place::Segment(segment)) = place else { continue };
                handle.settle_owner(segment)?;
                if !segments.insert(segment) {
                    return Err(KvError::Corrupt { what: "shelf", addr: at });
                }
            }
        }
        for addr in segments.into_iter().chain([layout.directory, layout.addr]) {
            memory.free(addr).map_err(KvError::Memory)?;
        }
        Ok(())
    }
}

impl<M: Memory> Handle<M> {
    /// Makes sure that a segment, or a part of the shelf, counts as published.
    fn settle_owner(&self, at: GlobalAddr) -> Result<(), KvError<M::Error>> {
        match read_word(&self.shared.memory, at)? {
            0 => Ok(()),
            owner => self.clear_owner(at, owner),
        }
    }

    fn read_slots(&self, segment: SegmentRef) -> Result<Vec<SlotWord>, KvError<M::Error>> {
        let mut bytes = vec![0; self.shared.layout.shape.slots() * 8];
        let addr: GlobalAddr = slot_addr(segment.addr(), 0);
        self.shared.memory.read(addr, &mut bytes).map_err(KvError::Memory)?;
        Ok(slots_in(&bytes).collect())
    }
}
