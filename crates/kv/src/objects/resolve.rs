use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::condition::Condition;
use crate::layout::object::EntryObject;
use crate::layout::slot::SlotWord;
use crate::memory::words::{CasOutcome, read_word, swap_word};
use crate::memory::{CasError, Memory};

impl<M: Memory> Handle<M> {
    /// Resolves a linked object with a condition, unless another client has done so; `owner` is its
    /// token. Returns whether the object counts. Only its publisher may rely on the result; other
    /// clients must read the slot again.
    pub(crate) fn decide_condition(
        &self,
        object: GlobalAddr,
        owner: u64,
        condition: Condition,
    ) -> Result<bool, KvError<M::Error>> {
        let memory = &self.shared.memory;
        // The replaced object is not freed before this is resolved.
        let unlinked = EntryObject::stamp_addr(condition.word.object().addr);
        let decision = match read_word(memory, unlinked) {
            Ok(stamp) if stamp == condition.stamp => 0,
            Ok(_) => !owner,
            // Nothing shows what was replaced. Aborted, the object stands for what is lost.
            Err(KvError::Memory(error)) if memory.is_lost(&error) => !owner,
            Err(error) => {
                let now = read_word(memory, object)?;
                return if now == owner { Err(error) } else { Ok(now != !owner) };
            }
        };
        loop {
            match memory.compare_and_swap(object, owner, decision) {
                // Only the publisher frees an aborted object. So, for the publisher, any owner word
                // other than `!owner` means that the object counted.
                Ok(found) => {
                    return Ok(if found == owner { decision == 0 } else { found != !owner });
                }
                Err(CasError::Indeterminate) => {}
                Err(CasError::GivenUp(_)) => return Err(KvError::OutcomeUnknown),
                Err(CasError::Failed(error)) => return Err(KvError::Memory(error)),
            }
        }
    }

    /// Whether this client's own linked object, with this token and a condition, counts, after an
    /// attempt to resolve it failed. `None`: unresolved, or the object cannot be read.
    #[cold]
    pub(crate) fn decided_by_others(&self, object: GlobalAddr, token: u64) -> Option<bool> {
        let memory = &self.shared.memory;
        let mut now = [0; 8];
        match memory.read(object, &mut now) {
            Ok(()) => {
                Some(u64::from_le_bytes(now)).filter(|now| *now != token).map(|now| now != !token)
            }
            // Another client replaced the object and freed it; its page is gone. So the object had
            // been resolved, and counted: only its publisher frees an aborted one.
            Err(error) if memory.is_unallocated(&error) => Some(true),
            Err(_) => None,
        }
    }

    /// Makes a slot that points to an aborted object point to the object that it stands for.
    pub(crate) fn restore(
        &self,
        at: GlobalAddr,
        word: SlotWord,
        condition: Condition,
    ) -> Result<CasOutcome, KvError<M::Error>> {
        let restored = word.pointing_like(condition.word);
        swap_word(&self.shared.memory, at, word.raw(), restored.raw())
    }
}
