use rackpool_client::GlobalAddr;

use crate::bucket::{BUCKET_BYTES, BUCKET_SLOTS, slot_addr, slots_in};
use crate::error::KvError;
use crate::find::{Intent, LiveSlot, Located};
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::Memory;
use crate::object::Object;
use crate::segment::SegmentHeader;
use crate::slot::SlotWord;
use crate::store::Draft;
use crate::words::{Swap, read_word, swap_word};

impl<M: Memory> Handle<M> {
    /// Replaces the value of a key if it is `expected`; says whether it did.
    pub(crate) fn exchange(
        &mut self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        let mut draft = self.new_draft(key, new)?;
        let result = self.try_exchange(&mut draft, expected);
        self.discard(&draft);
        result
    }

    fn try_exchange(
        &mut self,
        draft: &mut Draft<'_>,
        expected: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        loop {
            let Located::Live(slot) = self.locate(draft.hash, draft.key, Intent::Write)? else {
                return Ok(false);
            };
            if self.scratch[slot.value.clone()] != *expected {
                return Ok(false);
            }
            self.object_of(draft)?;
            let done = match slot.word.pinned() {
                Some(pinned) => {
                    // When nobody knows whether the pin was set it is left where it is: the object
                    // may outlive the table, but is never freed under anybody's hands.
                    if !self.pin(&slot, pinned)? {
                        continue;
                    }
                    let slot = LiveSlot { word: pinned, ..slot };
                    let result = self.exchange_pinned(slot, draft, expected);
                    if result.is_err() {
                        // The pin may still be there.
                        self.unreclaimed += 1;
                    }
                    result?
                }
                None => {
                    let done = self.link(slot.at, slot.word, draft)?;
                    if done {
                        self.retire(slot.word);
                    }
                    done
                }
            };
            if done {
                return Ok(true);
            }
        }
    }

    fn pin(&mut self, slot: &LiveSlot, pinned: SlotWord) -> Result<bool, KvError<M::Error>> {
        let swap = swap_word(&self.shared.memory, slot.at, slot.word.raw(), pinned.raw())?;
        if swap == Swap::Unknown {
            self.unreclaimed += 1;
        }
        Ok(swap == Swap::Done)
    }

    /// The part of an exchange in which this handle holds the object that is to be replaced: its
    /// memory is not used for anything else, so that a slot which points to it holds this value,
    /// however long the handle was stopped.
    fn exchange_pinned(
        &mut self,
        mut slot: LiveSlot,
        draft: &mut Draft<'_>,
        expected: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        let object = slot.word.object();
        // Until it was pinned the object may have been replaced by another one at its address.
        let equal = self.holds(object.addr, draft.key, expected)?;
        loop {
            let done =
                if equal { self.link(slot.at, slot.word, draft)? } else { self.unpin(&slot)? };
            if done {
                if equal {
                    self.hand_over(object.addr, slot.word.pins() - 1);
                }
                return Ok(equal);
            }
            match self.find_object(draft.hash, object.addr)? {
                Some((at, word)) => slot = LiveSlot { at, word, value: 0..0 },
                None => {
                    self.leave(object.addr);
                    return Ok(false);
                }
            }
        }
    }

    /// Takes this handle's pin off a linked object.
    fn unpin(&mut self, slot: &LiveSlot) -> Result<bool, KvError<M::Error>> {
        let new = slot.word.unpinned();
        match swap_word(&self.shared.memory, slot.at, slot.word.raw(), new.raw())? {
            Swap::Done => Ok(true),
            Swap::Lost => Ok(false),
            Swap::Unknown => {
                self.unreclaimed += 1;
                Ok(true)
            }
        }
    }

    /// Whether the pinned object at `addr` has this key and value.
    fn holds(
        &mut self,
        addr: GlobalAddr,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        let bytes = Object::HEADER + key.len() + value.len();
        if self.scratch.len() < bytes {
            self.scratch.resize(bytes, 0);
        }
        let into = &mut self.scratch[..Object::HEADER];
        self.shared.memory.read(addr, into).map_err(KvError::Memory)?;
        if Object::len_in(into) != Some(bytes) {
            return Ok(false);
        }
        let into = &mut self.scratch[..bytes];
        self.shared.memory.read(addr, into).map_err(KvError::Memory)?;
        let Some(parts) = Object::decode(&self.scratch[..bytes]) else {
            return Ok(false);
        };
        Ok(self.scratch[parts.key] == *key && self.scratch[parts.value] == *value)
    }

    /// The slot that points to a pinned object, not frozen when seen; `None` when it is no longer
    /// linked. A slot that does can only be the one that was pinned, wherever it has moved to.
    fn find_object(
        &mut self,
        hash: KeyHash,
        object: GlobalAddr,
    ) -> Result<Option<(GlobalAddr, SlotWord)>, KvError<M::Error>> {
        loop {
            let segment = self.segment(hash)?;
            let memory = &self.shared.memory;
            let mut found = None;
            let mut frozen = false;
            for bucket in self.shared.layout.shape.path(hash).buckets() {
                let mut line = [0; BUCKET_BYTES];
                let first = *bucket as usize * BUCKET_SLOTS;
                let addr = slot_addr(segment.addr(), first);
                memory.read(addr, &mut line).map_err(KvError::Memory)?;
                for (index, word) in slots_in(&line).enumerate() {
                    frozen |= word.is_frozen();
                    if word.may_hold(hash) && word.object().addr == object {
                        found = Some((slot_addr(segment.addr(), first + index), word));
                    }
                }
            }
            let tag = read_word(memory, SegmentHeader::tag_addr(segment.addr()))?;
            if tag != segment.tag(hash) {
                self.refresh(hash, segment)?;
            } else if frozen {
                self.reshape(segment, hash)?;
            } else {
                return Ok(found);
            }
        }
    }
}
