use rackpool_client::GlobalAddr;

use crate::error::KvError;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::Memory;
use crate::object::Object;
use crate::slot::{ObjectRef, SlotWord};
use crate::words::{Swap, read_word, swap_word};

impl<M: Memory> Handle<M> {
    /// Writes a new object, which only this handle knows.
    pub(crate) fn write_object(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
    ) -> Result<ObjectRef, KvError<M::Error>> {
        let memory = &self.shared.memory;
        Object::encode(&mut self.staging, hash, key, value);
        let addr = memory.allocate(self.staging.len() as u64).map_err(KvError::Memory)?;
        let Some(object) = ObjectRef::new(addr, self.staging.len()) else {
            self.free(addr);
            return Err(KvError::Address { addr });
        };
        if let Err(error) = memory.write(addr, &self.staging) {
            self.free(addr);
            return Err(KvError::Memory(error));
        }
        Ok(object)
    }

    /// Frees an object that nobody else can know.
    pub(crate) fn free(&mut self, addr: GlobalAddr) {
        // The operation this belongs to is done: its caller must not take it for failed.
        if self.shared.memory.free(addr).is_err() {
            self.unreclaimed += 1;
        }
    }

    /// Disposes of the object of `unlinked`, a word that this handle took out of its slot: frees
    /// it, or leaves that to the last of those who hold it.
    pub(crate) fn retire(&mut self, unlinked: SlotWord) {
        self.hand_over(unlinked.object().addr, unlinked.pins());
    }

    /// Like [`retire`](Self::retire), with the number of others who hold the object.
    pub(crate) fn hand_over(&mut self, object: GlobalAddr, holders: u64) {
        if holders == 0 {
            self.free(object);
        } else {
            self.settle(object, holders << 32);
        }
    }

    /// Gives up this handle's hold on an object that is no longer linked.
    pub(crate) fn leave(&mut self, object: GlobalAddr) {
        self.settle(object, (-1i64 as u64) << 32);
    }

    /// Adds to the pins in the object's header. Those who leave subtract one each, who unlinked
    /// the object adds the number that held it: whoever makes it zero is the last one.
    fn settle(&mut self, object: GlobalAddr, amount: u64) {
        match self.try_settle(object, amount) {
            Ok(true) => self.free(object),
            Ok(false) => {}
            Err(_) => self.unreclaimed += 1,
        }
    }

    fn try_settle(&self, object: GlobalAddr, amount: u64) -> Result<bool, KvError<M::Error>> {
        let memory = &self.shared.memory;
        let at = Object::pins_addr(object);
        loop {
            let word = read_word(memory, at)?;
            let new = word.wrapping_add(amount);
            match swap_word(memory, at, word, new)? {
                Swap::Done => return Ok(new >> 32 == 0),
                Swap::Lost => {}
                // If it happened, doing it again could free the object under somebody's hands.
                Swap::Unknown => return Err(KvError::OutcomeUnknown),
            }
        }
    }
}
