use rackpool_client::{GlobalAddr, ReadRequest};

use crate::entries::find::LiveSlot;
use crate::entry::Form;
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::word_at;
use crate::layout::condition::Condition;
use crate::layout::hash::KeyHash;
use crate::layout::object::{EntryObject, ObjectParts};
use crate::layout::segment::{SegmentHeader, SegmentRef};
use crate::layout::slot::{ObjectRef, SlotWord};
use crate::memory::Memory;
use crate::memory::words::read_word;

/// The result of checking a slot with a matching fingerprint.
pub(crate) enum SlotCheck {
    /// The slot is the key's; the word is as of the second read.
    Same(LiveSlot),
    /// The slot is another key's, for the rest of the segment's life.
    OtherKey(SlotWord),
    /// The slot changed between the two reads.
    Changed,
    /// The segment's memory has been reused in another life.
    Stale,
    /// The slot did not change, but points to bytes that are no object.
    Damaged,
    /// The slot did not change, but the memory of its object is lost.
    Lost,
}

/// The result of reading an object.
pub(crate) enum Peek {
    /// The object is in the scratch buffer. The slot still pointed to it afterwards.
    Whole(ObjectParts, SlotWord),
    Changed,
    Stale,
    Damaged,
    /// The slot did not change, but the memory of its object is lost.
    Lost,
}

/// The result of reading an object's header.
pub(crate) enum Glance {
    /// The form of the entry. The slot still pointed to the object afterwards.
    Form(Form),
    /// The object is unresolved or undecodable: use a [`Peek`].
    Unclear,
    Changed,
    Stale,
}

/// The object that a linked object stands for.
enum Standing {
    Itself,
    /// Another one: the linked object is aborted, and its slot is frozen.
    For(ObjectRef),
    /// The object was unresolved, and an attempt was made to resolve or unlink it: read again.
    Unclear,
}

/// The most aborted objects to follow. Damaged ones may refer to each other.
const MAX_FOLLOWED: u32 = 64;

impl<M: Memory> Handle<M> {
    /// Reads the object that `word`, which was read at `at`, points to, and compares its key.
    #[inline]
    pub(crate) fn verify(
        &mut self,
        at: GlobalAddr,
        word: SlotWord,
        segment: SegmentRef,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<SlotCheck, KvError<M::Error>> {
        Ok(match self.peek(at, word, segment, hash)? {
            Peek::Whole(parts, now) if self.scratch[parts.key.clone()] == *key => {
                let lot = EntryObject::lot_in(&self.scratch);
                let (value, form) = (parts.value, parts.form);
                SlotCheck::Same(LiveSlot { at, word: now, value, form, lot, is_damaged: false })
            }
            Peek::Whole(_, now) => SlotCheck::OtherKey(now),
            Peek::Changed => SlotCheck::Changed,
            Peek::Stale => SlotCheck::Stale,
            Peek::Damaged => SlotCheck::Damaged,
            Peek::Lost => SlotCheck::Lost,
        })
    }

    /// Reads the object that `word`, which was read at `at`, points to, then the slot and the
    /// segment's tag again. If neither changed, the object was linked throughout. `hash` is that of
    /// any key that belongs to the segment.
    #[inline]
    pub(crate) fn peek(
        &mut self,
        at: GlobalAddr,
        word: SlotWord,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Peek, KvError<M::Error>> {
        let mut object = word.object();
        let mut bytes = object.whole_bytes().unwrap_or(EntryObject::HEADER);
        let mut followed = 0;
        loop {
            if self.scratch.len() < bytes {
                self.scratch.resize(bytes, 0);
            }
            let (mut now, mut life) = ([0; 8], [0; 8]);
            let read = self.shared.memory.read_batch(&mut [
                ReadRequest { addr: object.addr, into: &mut self.scratch[..bytes] },
                ReadRequest { addr: at, into: &mut now },
                ReadRequest { addr: SegmentHeader::tag_addr(segment.addr()), into: &mut life },
            ]);
            if let Err(error) = read {
                // Another client may have freed the object, and its page, before this read.
                let gone = self.was_replaced(at, word, hash, segment)?;
                return match gone {
                    true => Ok(Peek::Changed),
                    // The slot was read just now, so it is the object that is lost.
                    false if self.shared.memory.is_lost(&error) => Ok(Peek::Lost),
                    false => Err(KvError::Memory(error)),
                };
            }
            let now = SlotWord::from_raw(word_at(&now, 0));
            if word_at(&life, 0) != segment.tag(hash) {
                return Ok(Peek::Stale);
            }
            if !now.is_unchanged(word) {
                return Ok(Peek::Changed);
            }
            if object.whole_bytes().is_none() && bytes == EntryObject::HEADER {
                match self.large_bytes() {
                    Some(whole) => bytes = whole,
                    None => return Ok(Peek::Damaged),
                }
                continue;
            }
            let Some(parts) = EntryObject::decode(&self.scratch[..bytes]) else {
                return Ok(Peek::Damaged);
            };
            if EntryObject::owner_in(&self.scratch) == 0 {
                return Ok(Peek::Whole(parts, now));
            }
            let standing = match self.standing_for(object, &parts, at, now) {
                // The object may also be freed before its condition is resolved here.
                Err(KvError::Memory(_)) if self.was_replaced(at, word, hash, segment)? => {
                    Standing::Unclear
                }
                standing => standing?,
            };
            match standing {
                Standing::Itself => return Ok(Peek::Whole(parts, now)),
                // An aborted object stands for one that counts, or for another aborted one.
                Standing::For(other) if followed < MAX_FOLLOWED => object = other,
                Standing::For(_) => return Ok(Peek::Damaged),
                Standing::Unclear => return Ok(Peek::Changed),
            }
            followed += 1;
            bytes = object.whole_bytes().unwrap_or(EntryObject::HEADER);
        }
    }

    /// Like [`peek`](Self::peek), but reads only the kind and the expiry of the object. It checks
    /// that the object was linked, not that its content is intact.
    pub(crate) fn glance(
        &mut self,
        at: GlobalAddr,
        word: SlotWord,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Glance, KvError<M::Error>> {
        let object = word.object();
        let mut head = [0; EntryObject::HEADER];
        if let Some(glance) = self.look_at(object.addr, &mut head, at, word, segment, hash)? {
            return Ok(glance);
        }
        let Some(expiry) = EntryObject::expiry_at(&head) else { return Ok(Glance::Unclear) };
        let kind = EntryObject::kind_in(&head);
        let Some(expiry) = expiry else { return Ok(Glance::Form(Form { kind, expires_ms: 0 })) };
        // Reads whole words, for which every object has room.
        let (mut words, skipped) = ([0; 2 * EntryObject::EXPIRY], expiry % 8);
        let used = if skipped == 0 { EntryObject::EXPIRY } else { words.len() };
        let addr = GlobalAddr::from_raw(object.addr.raw() + (expiry - skipped) as u64);
        let into = &mut words[..used];
        if let Some(glance) = self.look_at(addr, into, at, word, segment, hash)? {
            return Ok(glance);
        }
        let (low, high) = (word_at(&words, 0), word_at(&words, 1));
        let bits = u128::from(high) << 64 | u128::from(low);
        #[expect(clippy::cast_possible_truncation, reason = "the word that begins there")]
        let expires_ms = (bits >> (8 * skipped)) as u64;
        Ok(Glance::Form(Form { kind, expires_ms }))
    }

    /// Reads some bytes of an object, then the slot and the segment's tag again; `None` if neither
    /// changed.
    fn look_at(
        &mut self,
        addr: GlobalAddr,
        into: &mut [u8],
        at: GlobalAddr,
        word: SlotWord,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Option<Glance>, KvError<M::Error>> {
        let (mut now, mut life) = ([0; 8], [0; 8]);
        let read = self.shared.memory.read_batch(&mut [
            ReadRequest { addr, into },
            ReadRequest { addr: at, into: &mut now },
            ReadRequest { addr: SegmentHeader::tag_addr(segment.addr()), into: &mut life },
        ]);
        if let Err(error) = read {
            let gone = self.was_replaced(at, word, hash, segment)?;
            return match gone {
                true => Ok(Some(Glance::Changed)),
                false if self.shared.memory.is_lost(&error) => Ok(Some(Glance::Unclear)),
                false => Err(KvError::Memory(error)),
            };
        }
        let now = SlotWord::from_raw(word_at(&now, 0));
        Ok(if word_at(&life, 0) != segment.tag(hash) {
            Some(Glance::Stale)
        } else if !now.is_unchanged(word) || now.is_frozen() {
            Some(Glance::Changed)
        } else {
            None
        })
    }

    /// Whether the slot that was `word` has changed, or its segment has been replaced.
    #[cold]
    fn was_replaced(
        &mut self,
        at: GlobalAddr,
        word: SlotWord,
        hash: KeyHash,
        segment: SegmentRef,
    ) -> Result<bool, KvError<M::Error>> {
        let now = SlotWord::from_raw(read_word(&self.shared.memory, at)?);
        Ok(!now.is_unchanged(word) || (now.is_frozen() && !self.confirm(hash, segment)?))
    }

    /// Determines what the object in the scratch buffer, with an owner word that is not 0, stands
    /// for; the slot `now` pointed to it. An object with a condition is resolved first; an aborted
    /// one is unlinked, unless the slot is frozen.
    #[cold]
    fn standing_for(
        &self,
        object: ObjectRef,
        parts: &ObjectParts,
        at: GlobalAddr,
        now: SlotWord,
    ) -> Result<Standing, KvError<M::Error>> {
        let owner = EntryObject::owner_in(&self.scratch);
        let Some(condition) = EntryObject::condition_in(&self.scratch, parts) else {
            return Ok(Standing::Itself);
        };
        if !Condition::is_aborted(owner) {
            self.decide_condition(object.addr, owner, condition)?;
        } else if now.is_frozen() {
            return Ok(Standing::For(condition.word.object()));
        } else {
            self.restore(at, now, condition)?;
        }
        Ok(Standing::Unclear)
    }

    /// The length in bytes of the large object whose header is in the scratch buffer.
    fn large_bytes(&self) -> Option<usize> {
        let whole = EntryObject::len_in(&self.scratch)?;
        let fits = whole as u64 <= self.shared.memory.page_bytes();
        let is_large =
            whole > ObjectRef::MAX_WHOLE || EntryObject::extended_value_at(&self.scratch).is_some();
        (fits && is_large).then_some(whole)
    }
}
