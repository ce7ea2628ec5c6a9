use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::{CasError, Memory};
use crate::object::Object;
use crate::slot::SlotWord;
use crate::words::{Swap, read_word, swap_word};

/// What a compare-and-put has found, as its object tells it: only if the object that it unlinked
/// is the very one that it has read, its own one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The slot before.
    pub(crate) word: SlotWord,
    /// The stamp of the object that was read.
    pub(crate) stamp: u64,
}

impl Condition {
    pub(crate) const BYTES: usize = 16;

    /// Whether an owner word says that the object does not count: the complement of a token.
    pub(crate) const fn is_aborted(owner: u64) -> bool {
        owner >> 63 != 0
    }
}

impl<M: Memory> Handle<M> {
    /// Decides whether a linked object with a condition counts, unless somebody has; `owner` is
    /// its token. Says so to whoever published it; others look again.
    pub(crate) fn decide_condition(
        &self,
        object: GlobalAddr,
        owner: u64,
        condition: Condition,
    ) -> Result<bool, KvError<M::Error>> {
        let memory = &self.shared.memory;
        // Nobody frees what was unlinked before this is decided.
        let unlinked = Object::stamp_addr(condition.word.object().addr);
        let decision = match read_word(memory, unlinked) {
            Ok(stamp) if stamp == condition.stamp => 0,
            Ok(_) => !owner,
            Err(error) => {
                let now = read_word(memory, object)?;
                return if now == owner { Err(error) } else { Ok(now != !owner) };
            }
        };
        loop {
            match memory.compare_and_swap(object, owner, decision) {
                // An object that was aborted is freed by its publisher only.
                Ok(found) => {
                    return Ok(if found == owner { decision == 0 } else { found != !owner });
                }
                Err(CasError::Indeterminate) => {}
                Err(CasError::GivenUp(_)) => return Err(KvError::OutcomeUnknown),
                Err(CasError::Failed(error)) => return Err(KvError::Memory(error)),
            }
        }
    }

    /// Whether the own object, with this token and a condition, counts: what was decided about it,
    /// though deciding it here has failed. It was linked. `None`: nothing yet, or nobody can tell.
    #[cold]
    pub(crate) fn decided_by_others(&self, object: GlobalAddr, token: u64) -> Option<bool> {
        let memory = &self.shared.memory;
        let mut now = [0; 8];
        match memory.read(object, &mut now) {
            Ok(()) => {
                Some(u64::from_le_bytes(now)).filter(|now| *now != token).map(|now| now != !token)
            }
            // Whoever replaced it has freed it, its page is gone. It was decided before, and not
            // against it: one that was aborted is freed by its publisher only.
            Err(error) if memory.is_unallocated(&error) => Some(true),
            Err(_) => None,
        }
    }

    /// Makes a slot that points to an aborted object point to what that stands for.
    pub(crate) fn restore(
        &self,
        at: GlobalAddr,
        word: SlotWord,
        condition: Condition,
    ) -> Result<Swap, KvError<M::Error>> {
        let restored = word.pointing_like(condition.word);
        swap_word(&self.shared.memory, at, word.raw(), restored.raw())
    }
}
