//! What a thread does with its drafts and their records.

use std::marker::PhantomData;

use rackpool_ring::draft::{self, Armed, Lent};
use rackpool_shm::window::Atomic;

use super::{Draft, Link, Phase, Terms};
use crate::thread::Thread;
use crate::{AccessError, AllocError, FreeError, GlobalAddr};

impl Thread {
    pub(super) fn draft(&mut self, bytes: Option<u64>) -> Result<Draft, AllocError> {
        let record = self.drafts.take().ok_or(AllocError::TooManyDrafts)?;
        // What an earlier draft left there means nothing together with this one's object.
        if let Some(left) = self.record(record).filter(|left| !left.is_free()) {
            left.clear();
        }
        let addr = match bytes {
            Some(bytes) => match self.alloc_noting(bytes, Some(record)) {
                Ok(addr) => addr,
                Err(error) => {
                    self.end_record(record);
                    return Err(error);
                }
            },
            None => GlobalAddr::NULL,
        };
        Ok(self.draft_in(record, addr, GlobalAddr::NULL))
    }

    fn draft_in(&mut self, record: u8, addr: GlobalAddr, place: GlobalAddr) -> Draft {
        Draft {
            addr,
            token: self.drafts.token(),
            pool: self.id,
            record,
            phase: Phase::Held,
            replaced: None,
            place,
            terms: Terms::Plain,
            of_one_thread: PhantomData,
        }
    }

    /// Takes the object out of the word at `place`, if it is there.
    pub(super) fn take_out(
        &mut self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Draft>, AllocError> {
        let record = self.drafts.take().ok_or(AllocError::TooManyDrafts)?;
        let draft = self.draft_in(record, object, place);
        let lent = Lent { object: object.raw(), token: draft.token, place: place.raw() };
        if let Some(record) = self.record(record) {
            record.lend(&lent);
        }
        match self.swap_surely(place, object.raw(), draft.token) {
            Ok(true) => Ok(Some(draft)),
            Ok(false) => {
                self.end_record(record);
                Ok(None)
            }
            Err(error) => {
                self.leave_record(record);
                Err(error.into())
            }
        }
    }

    /// Swaps a word from or to a token, of which each is swapped once: so it can be done again
    /// until it is known to be done. Says whether it was.
    fn swap_surely(
        &mut self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<bool, AccessError> {
        let mut asked_before = false;
        loop {
            match self.atomic(addr, Atomic::CompareAndSwap { expected, new }) {
                Ok(found) => return Ok(found == expected || (asked_before && found == new)),
                Err(AccessError::Indeterminate(_)) => asked_before = true,
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn publish(&mut self, draft: &mut Draft, link: &Link) -> Result<u64, AccessError> {
        if draft.pool != self.id || draft.phase != Phase::Held {
            return Err(AccessError::NotADraft(draft.addr));
        }
        let armed = Armed {
            object: draft.addr.raw(),
            token: draft.token,
            link: link.addr.raw(),
            word: link.new,
            mask: link.mask,
            replaced: link.replaced.unwrap_or(GlobalAddr::NULL).raw(),
            terms: match link.terms {
                _ if !draft.place.is_null() => draft::Terms::Lent(draft.place.raw()),
                Terms::Plain => draft::Terms::Plain,
                Terms::Compare(stamp) => draft::Terms::Compare(stamp),
                Terms::Settle(word) => draft::Terms::Settle(word),
            },
        };
        let record = self.record(draft.record);
        record.ok_or(AccessError::NotADraft(draft.addr))?.arm(&armed);
        (draft.replaced, draft.terms) = (link.replaced, link.terms);
        let Link { expected, new, .. } = *link;
        let found = self.atomic(link.addr, Atomic::CompareAndSwap { expected, new });
        match found {
            Ok(found) if found == expected => self.decide(draft, true),
            // A request that was given up may still be carried out.
            Err(AccessError::Indeterminate(_) | AccessError::Daemon(_)) => {
                draft.phase = Phase::Doubtful;
            }
            _ => self.decide(draft, false),
        }
        found
    }

    /// The draft's swap was made, or will never be.
    pub(super) fn decide(&mut self, draft: &mut Draft, published: bool) {
        let compares = matches!(draft.terms, Terms::Compare(_));
        if published && compares && draft.phase != Phase::Undecided {
            draft.phase = Phase::Undecided;
        } else if published {
            draft.phase = Phase::Published;
            if !draft.addr.is_null() && !compares {
                let cleared = Atomic::CompareAndSwap { expected: draft.token, new: 0 };
                // If this fails, whoever first has to rely on the word clears it.
                let _ = self.atomic(draft.addr, cleared);
            }
        } else if draft.phase == Phase::Doubtful && !self.calls.settle(&self.connection) {
            // The swap was given up, and its daemon may still make it.
        } else if let Some(record) = self.record(draft.record) {
            record.disarm();
            draft.phase = Phase::Held;
        }
    }

    pub(super) fn finish(&mut self, draft: &Draft) -> Result<(), FreeError> {
        if draft.pool != self.id {
            return Err(AccessError::NotADraft(draft.addr).into());
        }
        if matches!(draft.phase, Phase::Doubtful | Phase::Undecided) {
            self.leave_record(draft.record);
            return Ok(());
        }
        if !draft.place.is_null() {
            return self.put_back(draft);
        }
        let unwanted = match draft.phase {
            Phase::Published => draft.replaced,
            _ => Some(draft.addr).filter(|addr| !addr.is_null()),
        };
        if draft.phase == Phase::Published
            && let Err(error) = self.settle_link(draft)
        {
            self.leave_record(draft.record);
            return Err(error.into());
        }
        let Some(unwanted) = unwanted else {
            self.end_record(draft.record);
            return Ok(());
        };
        let freed = self.free_noting(unwanted, Some(draft.record));
        match &freed {
            // It was not the program's to free.
            Err(FreeError::NotAllocated(_) | FreeError::NotAnObject { .. }) => {
                self.end_record(draft.record);
            }
            // What could not be noted goes back when the program ends.
            Err(_) => self.leave_record(draft.record),
            Ok(()) => {}
        }
        freed
    }

    /// Puts what is reachable by nobody where the draft's object was taken from.
    fn put_back(&mut self, draft: &Draft) -> Result<(), FreeError> {
        let back = match draft.phase {
            Phase::Published => draft.replaced.unwrap_or(GlobalAddr::NULL),
            _ => draft.addr,
        };
        match self.swap_surely(draft.place, draft.token, back.raw()) {
            Ok(_) => {
                self.end_record(draft.record);
                Ok(())
            }
            Err(error) => {
                self.leave_record(draft.record);
                Err(error.into())
            }
        }
    }

    /// Gives the link of a publication that was made its last value, if there is one.
    fn settle_link(&mut self, draft: &Draft) -> Result<(), AccessError> {
        if !matches!(draft.terms, Terms::Settle(_)) {
            return Ok(());
        }
        let Some(record) = self.record(draft.record) else { return Ok(()) };
        record.mark_replaced();
        let Some(armed) = record.to_settle() else { return Ok(()) };
        let mut found = armed.word;
        while let Some(settled) = armed.settled(found) {
            let swap = Atomic::CompareAndSwap { expected: found, new: settled };
            match self.atomic(GlobalAddr::from_raw(armed.link), swap) {
                Ok(now) if now == found => return Ok(()),
                Ok(now) => found = now,
                Err(AccessError::Indeterminate(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The draft's object is noted elsewhere, or nothing is left to be known of it.
    pub(crate) fn end_record(&mut self, record: u8) {
        if let Some(record) = self.record(record) {
            record.clear();
        }
        self.drafts.used &= !(1 << record);
    }

    fn leave_record(&mut self, record: u8) {
        if self.drafts.used & 1 << record != 0 {
            self.drafts.used &= !(1 << record);
            self.drafts.left |= 1 << record;
        }
    }
}
