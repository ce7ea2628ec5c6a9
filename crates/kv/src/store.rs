use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::find::{Intent, Located};
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::Memory;
use crate::object::Object;
use crate::slot::{ObjectRef, SlotKind, SlotWord};
use crate::words::{Swap, read_word, swap_word};

/// When a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Always,
    IfAbsent,
    IfPresent,
}

/// Whether a value was stored, and what was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) done: bool,
    pub(crate) was_present: bool,
}

/// A key and the value to store, with the object made of them, if there is one already. It belongs
/// to the operation until a slot points to it.
pub(crate) struct Draft<'a> {
    pub(crate) hash: KeyHash,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) object: Option<ObjectRef>,
}

impl<M: Memory> Handle<M> {
    /// A draft without an object.
    pub(crate) fn new_draft<'a>(
        &self,
        key: &'a [u8],
        value: &'a [u8],
    ) -> Result<Draft<'a>, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        let max = self.shared.memory.page_bytes();
        match Object::bytes_for(key, value).map(|bytes| bytes as u64) {
            Some(bytes) if bytes <= max => Ok(Draft { hash, key, value, object: None }),
            _ => {
                let bytes = (Object::HEADER + key.len()) as u64 + value.len() as u64;
                Err(KvError::TooLarge { bytes, max })
            }
        }
    }

    /// The hash of a key, if it is one.
    pub(crate) fn hash(key: &[u8]) -> Result<KeyHash, KvError<M::Error>> {
        if key.is_empty() || key.len() > usize::from(u16::MAX) {
            return Err(KvError::KeyLength { bytes: key.len() });
        }
        Ok(KeyHash::of(key))
    }

    /// The draft's object, made now if need be.
    pub(crate) fn object_of(
        &mut self,
        draft: &mut Draft<'_>,
    ) -> Result<ObjectRef, KvError<M::Error>> {
        if let Some(object) = draft.object {
            return Ok(object);
        }
        let object = self.write_object(draft.hash, draft.key, draft.value)?;
        draft.object = Some(object);
        Ok(object)
    }

    /// Frees the object that a finished operation did not link.
    pub(crate) fn discard(&mut self, draft: &Draft<'_>) {
        if let Some(object) = draft.object {
            self.free(object.addr);
        }
    }

    /// Stores a value as `rule` says.
    pub(crate) fn store(
        &mut self,
        key: &[u8],
        value: &[u8],
        rule: Rule,
    ) -> Result<Stored, KvError<M::Error>> {
        let mut draft = self.new_draft(key, value)?;
        let result = self.try_store(&mut draft, rule);
        self.discard(&draft);
        result
    }

    fn try_store(
        &mut self,
        draft: &mut Draft<'_>,
        rule: Rule,
    ) -> Result<Stored, KvError<M::Error>> {
        loop {
            let located = self.locate(draft.hash, draft.key, Intent::Write)?;
            let (at, word, was_present) = match located {
                Located::Live(_) if rule == Rule::IfAbsent => {
                    return Ok(Stored { done: false, was_present: true });
                }
                Located::Absent(_) if rule == Rule::IfPresent => {
                    return Ok(Stored { done: false, was_present: false });
                }
                Located::Live(slot) => (slot.at, slot.word, true),
                Located::Absent(miss) => match miss.vacancy {
                    Some(vacancy) => (vacancy.at, vacancy.word, false),
                    None => {
                        self.make_room(&miss, draft.hash)?;
                        continue;
                    }
                },
            };
            if self.link(at, word, draft)? {
                if was_present {
                    self.retire(word);
                }
                return Ok(Stored { done: true, was_present });
            }
        }
    }

    /// Makes the slot at `at` point to the draft's object if it still is `word`. The object is the
    /// table's then, and no longer the draft's.
    pub(crate) fn link(
        &mut self,
        at: GlobalAddr,
        word: SlotWord,
        draft: &mut Draft<'_>,
    ) -> Result<bool, KvError<M::Error>> {
        let new = word.pointing(self.object_of(draft)?, draft.hash);
        match self.swap_slot(at, word, new) {
            Ok(done) => {
                if done {
                    draft.object = None;
                }
                Ok(done)
            }
            Err(error) => {
                if matches!(error, KvError::OutcomeUnknown) {
                    // The slot may point to it, or may have.
                    draft.object = None;
                    self.unreclaimed += 1;
                }
                Err(error)
            }
        }
    }

    /// Changes a slot if it still is `word`; says whether it did.
    pub(crate) fn swap_slot(
        &self,
        at: GlobalAddr,
        word: SlotWord,
        new: SlotWord,
    ) -> Result<bool, KvError<M::Error>> {
        let memory = &self.shared.memory;
        match swap_word(memory, at, word.raw(), new.raw())? {
            Swap::Done => Ok(true),
            Swap::Lost => Ok(false),
            Swap::Unknown => {
                // An error of this read must not hide that the outcome is unknown.
                let now = read_word(memory, at).map_err(|_| KvError::OutcomeUnknown)?;
                let now = SlotWord::from_raw(now);
                let mine = new.kind() == SlotKind::Live;
                match now.changes_since(word) {
                    0 if now.is_unchanged(word) => Ok(false),
                    // Only this handle could point the slot to its own object; but anybody's
                    // deletion looks like this one.
                    1 if now.is_unchanged(new) && mine => Ok(true),
                    1 if !now.is_unchanged(new) => Ok(false),
                    _ => Err(KvError::OutcomeUnknown),
                }
            }
        }
    }

    /// Deletes a key; says whether it was there.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<bool, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        loop {
            let Located::Live(slot) = self.locate(hash, key, Intent::Write)? else {
                return Ok(false);
            };
            match self.swap_slot(slot.at, slot.word, slot.word.deleted()) {
                Ok(true) => {
                    self.retire(slot.word);
                    return Ok(true);
                }
                Ok(false) => {}
                Err(error) => {
                    if matches!(error, KvError::OutcomeUnknown) {
                        self.unreclaimed += 1;
                    }
                    return Err(error);
                }
            }
        }
    }
}
