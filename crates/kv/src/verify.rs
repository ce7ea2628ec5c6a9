use rackpool_client::GlobalAddr;

use crate::bucket::word_at;
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
pub(crate) enum Verdict {
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
    ) -> Result<Verdict, KvError<M::Error>> {
        Ok(match self.peek(at, word, segment, hash)? {
            Peek::Whole(parts, now) if self.scratch[parts.key.clone()] == *key => {
                Verdict::Same(LiveSlot { at, word: now, value: parts.value })
            }
            Peek::Whole(_, now) => Verdict::OtherKey(now),
            Peek::Changed => Verdict::Changed,
            Peek::Stale => Verdict::Stale,
            Peek::Damaged => Verdict::Damaged,
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
        let object = word.object();
        let mut bytes = object.whole_bytes().unwrap_or(Object::HEADER);
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
                let now = SlotWord::from_raw(read_word(&self.shared.memory, at)?);
                let gone =
                    !now.is_unchanged(word) || (now.is_frozen() && !self.confirm(hash, segment)?);
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
            return Ok(match Object::decode(&self.scratch[..bytes]) {
                Some(parts) => Peek::Whole(parts, now),
                None => Peek::Damaged,
            });
        }
    }

    /// The length of the large object whose header is in the scratch bytes.
    fn large_bytes(&self) -> Option<usize> {
        let whole = Object::len_in(&self.scratch)?;
        let fits = whole as u64 <= self.shared.memory.page_bytes();
        (fits && whole > ObjectRef::MAX_WHOLE).then_some(whole)
    }
}
