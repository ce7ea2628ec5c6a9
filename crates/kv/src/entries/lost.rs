//! Entries whose memory is lost with that of its rack. Reads of their keys fail, scans skip them,
//! and a put or a delete replaces them.

use rackpool_client::GlobalAddr;

use crate::entries::find::{LiveSlot, Located, LookupIntent};
use crate::entries::verify::Peek;
use crate::entry::Form;
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::slot_addr;
use crate::layout::slot::{SlotKind, SlotWord};
use crate::memory::Memory;

/// A slot with an entry whose memory is lost.
#[derive(Clone, Copy, Debug)]
pub struct LostEntry {
    at: GlobalAddr,
    word: SlotWord,
}

impl<M: Memory> Handle<M> {
    /// The entries whose memory is lost. Their keys are unknown.
    ///
    /// ```
    /// use rackpool_kv::{Handle, KvError, Memory};
    ///
    /// /// Lets the keys of lost entries count as absent. Returns how many there were.
    /// fn forget_lost<M: Memory>(handle: &mut Handle<M>) -> Result<u64, KvError<M::Error>> {
    ///     let lost = handle.lost_entries()?;
    ///     handle.remove_lost(&lost)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Handle::scan`].
    pub fn lost_entries(&mut self) -> Result<Vec<LostEntry>, KvError<M::Error>> {
        let (mut lost, mut at) = (Vec::new(), 0);
        while let Some(hash) = self.suffix_at(at) {
            let segment = self.resolve(hash)?;
            let slots = self.read_slots(segment)?;
            if slots.iter().any(|slot| slot.is_frozen()) {
                self.reshape(segment, hash)?;
                continue;
            }
            let mut found = Vec::new();
            for (index, word) in slots.into_iter().enumerate() {
                let at = slot_addr(segment.addr(), index);
                if word.kind() == SlotKind::Live
                    && matches!(self.peek(at, word, segment, hash)?, Peek::Lost)
                {
                    found.push(LostEntry { at, word });
                }
            }
            if self.confirm(hash, segment)? {
                lost.append(&mut found);
                at += self.suffixes_of(segment);
            }
        }
        Ok(lost)
    }

    /// Removes lost entries, as far as they are still in their slots. Returns how many it removed.
    ///
    /// # Errors
    /// As [`Handle::delete`].
    pub fn remove_lost(&mut self, lost: &[LostEntry]) -> Result<u64, KvError<M::Error>> {
        let mut removed = 0;
        for LostEntry { at, word } in lost {
            removed += u64::from(self.unlink(&LiveSlot::damaged(*at, *word))?);
        }
        Ok(removed)
    }

    /// Stores `value` in the place of an entry that can't be read and that may be that of `key`: a
    /// slot has 8 bits of its key's hash. Returns whether it did: if not, there is none. Nobody
    /// finds the key absent meanwhile.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn replace_unreadable(
        &mut self,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        loop {
            let slot = match self.locate(Self::hash(key)?, key, LookupIntent::Replace)? {
                Located::Live(slot) if slot.is_damaged => slot,
                Located::Live(_) | Located::Absent(_) => return Ok(false),
            };
            let place = (slot.at, slot.word);
            if self.is_published(&slot)? && self.put_into(place, key, Form::PLAIN, value)? {
                return Ok(true);
            }
        }
    }
}
