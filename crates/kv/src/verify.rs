use rackpool_client::GlobalAddr;

use crate::bucket::word_at;
use crate::condition::Condition;
use crate::entry::Form;
use crate::error::KvError;
use crate::find::LiveSlot;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::{Memory, ReadRequest};
use crate::object::{Object, Parts};
use crate::segment::{SegmentHeader, SegmentRef};
use crate::slot::{ObjectRef, SlotWord};
use crate::words::read_word;

/// What a slot with the right fingerprint turned out to be.
pub(crate) enum SlotCheck {
    /// The key's slot, as it is now.
    Same(LiveSlot),
    /// Another key's, for the rest of the segment's life.
    OtherKey(SlotWord),
    /// The slot changed.
    Changed,
    /// The segment's memory has another life.
    Stale,
    /// The slot did not change, but what it points to is no object.
    Damaged,
}

/// What a read of an object gave.
pub(crate) enum Peek {
    /// The object is in the scratch bytes; the slot still pointed to it afterwards.
    Whole(Parts, SlotWord),
    Changed,
    Stale,
    Damaged,
}

/// What a look at an object's header gave.
pub(crate) enum Glance {
    /// What its entry is; the slot still pointed to it afterwards.
    Form(Form),
    /// It is not settled what the object stands for, or it makes no sense: a [`Peek`] tells.
    Unclear,
    Changed,
    Stale,
}

/// What a linked object stands for.
enum Standing {
    Itself,
    /// It does not count, and the slot is frozen.
    For(ObjectRef),
    /// Something was done about it.
    Unclear,
}

/// Damaged ones may lead to each other.
const MAX_FOLLOWED: u32 = 64;

impl<M: Memory> Handle<M> {
    /// Reads the object that `word`, read at `at`, points to, and compares its key.
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
                let lot = Object::lot_in(&self.scratch);
                let (value, form) = (parts.value, parts.form);
                SlotCheck::Same(LiveSlot { at, word: now, value, form, lot })
            }
            Peek::Whole(_, now) => SlotCheck::OtherKey(now),
            Peek::Changed => SlotCheck::Changed,
            Peek::Stale => SlotCheck::Stale,
            Peek::Damaged => SlotCheck::Damaged,
        })
    }

    /// Reads the object that `word`, read at `at`, points to, then the slot and the segment's tag
    /// again: if neither changed, the object was linked all the while. `hash` is of any key that
    /// the segment may hold.
    #[inline]
    pub(crate) fn peek(
        &mut self,
        at: GlobalAddr,
        word: SlotWord,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Peek, KvError<M::Error>> {
        let mut object = word.object();
        let mut bytes = object.whole_bytes().unwrap_or(Object::HEADER);
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
                // The object may have been freed, and its page with it, before it was read.
                let gone = self.was_replaced(at, word, hash, segment)?;
                return if gone { Ok(Peek::Changed) } else { Err(KvError::Memory(error)) };
            }
            let now = SlotWord::from_raw(word_at(&now, 0));
            if word_at(&life, 0) != segment.tag(hash) {
                return Ok(Peek::Stale);
            }
            if !now.is_unchanged(word) {
                return Ok(Peek::Changed);
            }
            if object.whole_bytes().is_none() && bytes == Object::HEADER {
                match self.large_bytes() {
                    Some(whole) => bytes = whole,
                    None => return Ok(Peek::Damaged),
                }
                continue;
            }
            let Some(parts) = Object::decode(&self.scratch[..bytes]) else {
                return Ok(Peek::Damaged);
            };
            if Object::owner_in(&self.scratch) == 0 {
                return Ok(Peek::Whole(parts, now));
            }
            let standing = match self.standing_for(object, &parts, at, now) {
                // The same may happen before its owner word is swapped.
                Err(KvError::Memory(_)) if self.was_replaced(at, word, hash, segment)? => {
                    Standing::Unclear
                }
                standing => standing?,
            };
            match standing {
                Standing::Itself => return Ok(Peek::Whole(parts, now)),
                // One stands for one that counts, or that stood for such a one.
                Standing::For(other) if followed < MAX_FOLLOWED => object = other,
                Standing::For(_) => return Ok(Peek::Damaged),
                Standing::Unclear => return Ok(Peek::Changed),
            }
            followed += 1;
            bytes = object.whole_bytes().unwrap_or(Object::HEADER);
        }
    }

    /// Reads only what the object that `word`, read at `at`, points to says of its form, as
    /// [`peek`](Self::peek) reads all of it. Nothing of it is checked but that it was linked.
    pub(crate) fn glance(
        &mut self,
        at: GlobalAddr,
        word: SlotWord,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Glance, KvError<M::Error>> {
        let object = word.object();
        let mut head = [0; Object::HEADER];
        if let Some(glance) = self.look_at(object.addr, &mut head, (at, word), (segment, hash))? {
            return Ok(glance);
        }
        let Some(expiry) = Object::expiry_at(&head) else { return Ok(Glance::Unclear) };
        let kind = Object::kind_in(&head);
        let Some(expiry) = expiry else { return Ok(Glance::Form(Form { kind, expires_ms: 0 })) };
        // Reads are of whole words, and objects have room for them.
        let (mut words, skipped) = ([0; 2 * Object::EXPIRY], expiry % 8);
        let used = if skipped == 0 { Object::EXPIRY } else { words.len() };
        let addr = GlobalAddr::from_raw(object.addr.raw() + (expiry - skipped) as u64);
        let into = &mut words[..used];
        if let Some(glance) = self.look_at(addr, into, (at, word), (segment, hash))? {
            return Ok(glance);
        }
        let (low, high) = (word_at(&words, 0), word_at(&words, 1));
        let bits = u128::from(high) << 64 | u128::from(low);
        #[expect(clippy::cast_possible_truncation, reason = "the word that begins there")]
        let expires_ms = (bits >> (8 * skipped)) as u64;
        Ok(Glance::Form(Form { kind, expires_ms }))
    }

    /// Reads some bytes of an object, then the slot and the segment's tag again; nothing if neither
    /// changed.
    fn look_at(
        &mut self,
        addr: GlobalAddr,
        into: &mut [u8],
        (at, word): (GlobalAddr, SlotWord),
        (segment, hash): (SegmentRef, KeyHash),
    ) -> Result<Option<Glance>, KvError<M::Error>> {
        let (mut now, mut life) = ([0; 8], [0; 8]);
        let read = self.shared.memory.read_batch(&mut [
            ReadRequest { addr, into },
            ReadRequest { addr: at, into: &mut now },
            ReadRequest { addr: SegmentHeader::tag_addr(segment.addr()), into: &mut life },
        ]);
        if let Err(error) = read {
            let gone = self.was_replaced(at, word, hash, segment)?;
            return if gone { Ok(Some(Glance::Changed)) } else { Err(KvError::Memory(error)) };
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

    /// Whether the slot that was `word` points to something else now, or counts no more.
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

    /// What the object in the scratch bytes, to which the slot `now` pointed, stands for if its
    /// owner word is not 0. It is decided first if it has a condition, and unlinked if it does not
    /// count.
    #[cold]
    fn standing_for(
        &self,
        object: ObjectRef,
        parts: &Parts,
        at: GlobalAddr,
        now: SlotWord,
    ) -> Result<Standing, KvError<M::Error>> {
        let owner = Object::owner_in(&self.scratch);
        let Some(condition) = Object::condition_in(&self.scratch, parts) else {
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

    /// The length of the large object whose header is in the scratch bytes.
    fn large_bytes(&self) -> Option<usize> {
        let whole = Object::len_in(&self.scratch)?;
        let fits = whole as u64 <= self.shared.memory.page_bytes();
        (fits && whole > ObjectRef::MAX_WHOLE).then_some(whole)
    }
}
