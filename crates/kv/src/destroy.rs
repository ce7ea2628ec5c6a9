use std::collections::BTreeSet;

use rackpool_client::GlobalAddr;

use crate::bucket::{slot_addr, slots_in};
use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::segment::SegmentRef;
use crate::slot::{SlotKind, SlotWord};
use crate::table::Table;

impl<M: Memory> Table<M> {
    /// Gives all memory of the table back to the pool, except what clients that were killed in
    /// the middle of an operation left behind. No other client may use the table during this or
    /// later: nothing keeps one from doing so.
    pub fn destroy(self) -> Result<(), KvError<M::Error>> {
        let mut handle = self.handle();
        let layout = self.shared.layout;
        let memory = &self.shared.memory;
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
            for slot in slots.iter().filter(|slot| slot.kind() == SlotKind::Live) {
                memory.free(slot.object().addr).map_err(KvError::Memory)?;
            }
            segments.insert(segment.addr());
            at += handle.suffixes_of(segment);
        }
        while let Some(segment) = handle.pop_segment()? {
            segments.insert(segment);
        }
        for addr in segments.into_iter().chain([layout.directory, layout.addr]) {
            memory.free(addr).map_err(KvError::Memory)?;
        }
        Ok(())
    }
}

impl<M: Memory> Handle<M> {
    fn read_slots(&self, segment: SegmentRef) -> Result<Vec<SlotWord>, KvError<M::Error>> {
        let mut bytes = vec![0; self.shared.layout.shape.slots() * 8];
        let addr: GlobalAddr = slot_addr(segment.addr(), 0);
        self.shared.memory.read(addr, &mut bytes).map_err(KvError::Memory)?;
        Ok(slots_in(&bytes).collect())
    }
}
