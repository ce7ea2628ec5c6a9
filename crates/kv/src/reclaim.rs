use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::{Draft, Memory};
use crate::object::Object;
use crate::slot::ObjectRef;
use crate::words::{Swap, swap_word};

impl<M: Memory> Handle<M> {
    /// Writes what is staged into a new object, or into that of a draft, which only this handle
    /// knows. The object gets this lot, or one of its own.
    pub(crate) fn write_object(
        &mut self,
        draft: Option<M::Draft>,
        lot: Option<u32>,
    ) -> Result<(ObjectRef, M::Draft), KvError<M::Error>> {
        let memory = &self.shared.memory;
        let bytes = self.staging.len();
        let least = (bytes as u64).max(ObjectRef::ALIGN);
        let draft = match draft {
            Some(draft) => draft,
            None => memory.allocate_draft(least).map_err(KvError::Memory)?,
        };
        Object::set_token(&mut self.staging, draft.token(), lot);
        let addr = draft.addr();
        let Some(object) = ObjectRef::new(addr, bytes) else {
            self.finish(draft);
            return Err(KvError::Address { addr });
        };
        if let Err(error) = memory.write(addr, &self.staging) {
            self.finish(draft);
            return Err(KvError::Memory(error));
        }
        Ok((object, draft))
    }

    /// Ends a draft: what is reachable by nobody goes back.
    pub(crate) fn finish(&mut self, draft: M::Draft) {
        // The operation this belongs to is done: its caller must not take it for failed.
        if self.shared.memory.finish(draft).is_err() {
            self.unreclaimed += 1;
        }
    }

    /// Clears the owner word of a published object, which was `owner` when it was linked: a random
    /// word that is in no other memory, so that this harms nobody however late it is.
    pub(crate) fn clear_owner(
        &self,
        object: GlobalAddr,
        owner: u64,
    ) -> Result<(), KvError<M::Error>> {
        clear_owner(&self.shared.memory, object, owner)
    }
}

/// The same, without a handle.
pub(crate) fn clear_owner<M: Memory>(
    memory: &M,
    object: GlobalAddr,
    owner: u64,
) -> Result<(), KvError<M::Error>> {
    while swap_word(memory, object, owner, 0)? == Swap::Unknown {}
    Ok(())
}
