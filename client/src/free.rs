//! Freeing: into the thread's magazines, or back to the daemon.
//!
//! A small object of this rack is noted in a magazine, then its mark is taken: of two threads that
//! free it one gets the mark, and the other one strikes its note out. docs/design/marks.md.

use rackpool_model::{FrameId, GlobalAddr, PageWord, SizeClass};
use rackpool_ring::magazines::capacity;
use rackpool_shm::access::Intent;
use rackpool_shm::marks::Mark;
use rackpool_shm::metadata::PageUse;
use rackpool_shm::window::Taken;

use crate::deadline::Retries;
use crate::thread::{Target, Thread, may_enter};
use crate::translation::{Place, Translation};
use crate::{AccessError, FreeError};

/// Objects at least this large go back to the daemon at once when they belong to another rack.
const PROMPT_BYTES: u64 = 4096;

impl Thread {
    /// Takes an object back.
    pub(crate) fn free(&mut self, addr: GlobalAddr) -> Result<(), FreeError> {
        self.free_noting(addr, None)
    }

    /// Takes an object back; the reservation record that speaks of it ends right after the object
    /// is noted, with nothing in between.
    #[inline]
    pub(crate) fn free_noting(
        &mut self,
        addr: GlobalAddr,
        record: Option<u8>,
    ) -> Result<(), FreeError> {
        let note = |class: SizeClass| self.magazines.keep(usize::from(class.index()), addr.raw());
        match self.window.take_back(addr, self.connection.holder, note) {
            Taken::Noted => {
                self.end_record_of(record);
                Ok(())
            }
            Taken::Twice(class) => self.refuse_twice(addr, class),
            Taken::Unknown => self.free_anywhere(addr, record),
        }
    }

    fn end_record_of(&mut self, record: Option<u8>) {
        if let Some(record) = record {
            self.end_record(record);
        }
    }

    /// Somebody else took the object back before: this thread's note of it goes.
    #[cold]
    fn refuse_twice(&self, addr: GlobalAddr, class: SizeClass) -> Result<(), FreeError> {
        self.magazines.withdraw(usize::from(class.index()), addr.raw());
        Err(FreeError::NotAllocated(addr))
    }

    /// The same for an object that is not small, or in a page that is not known, not there any
    /// more, or in another rack.
    #[cold]
    fn free_anywhere(&mut self, addr: GlobalAddr, record: Option<u8>) -> Result<(), FreeError> {
        let target = self.target(addr, 1)?;
        let retries = Retries::within(self.connection.request_timeout());
        loop {
            // Where a page lies may have changed since it was remembered, what it is used for too
            // if it was freed and allocated anew: an object is only taken back on fresh knowledge.
            let mut translation = self.translate_for_free(&target)?;
            if !self.is_there(&translation) {
                self.forget(target.page);
                translation = self.translate_for_free(&target)?;
            }
            let mut class = self.class_at(&target, &translation);
            if class.is_err() && !matches!(translation.place, Place::Local { .. }) {
                self.forget(target.page);
                translation = self.translate_for_free(&target)?;
                class = self.class_at(&target, &translation);
            }
            let Some(class) = class? else { return self.give_back(addr, true, record) };
            let Place::Local { frame, word } = translation.place else {
                return self.give_back(addr, class.bytes() >= PROMPT_BYTES, record);
            };
            let checked = self.check_allocated(addr, &translation, class);
            // The bits were this page's if it is there now: else another one's may have been looked
            // at.
            if !self.is_there(&translation) {
                self.forget(target.page);
                if !retries.pause() {
                    return Err(FreeError::Access(self.page_busy(addr)));
                }
                continue;
            }
            checked?;
            if capacity(usize::from(class.index())) == 0 {
                return self.give_back(addr, true, record);
            }
            return self.keep(addr, (frame, word), class, record);
        }
    }

    /// Whether a page of this rack has the word that was said of it.
    pub(crate) fn is_there(&self, translation: &Translation) -> bool {
        match translation.place {
            Place::Local { frame, word } => self.window.look(frame) == Some(word),
            Place::Remote { .. } | Place::Copied { .. } => true,
        }
    }

    fn translate_for_free(&mut self, target: &Target) -> Result<Translation, FreeError> {
        self.translate(target, Intent::Read).map_err(|error| match error {
            AccessError::NotAllocated(addr) => FreeError::NotAllocated(addr),
            other => other.into(),
        })
    }

    /// The class of the object that starts at the target; `None` for a run of pages.
    fn class_at(
        &self,
        target: &Target,
        translation: &Translation,
    ) -> Result<Option<SizeClass>, FreeError> {
        let (addr, size) = (target.addr, self.connection.page_size);
        match translation.page_use(size) {
            PageUse::Slab(class) if target.offset & (class.bytes() - 1) == 0 => Ok(Some(class)),
            PageUse::Run { index: 0, .. } if target.offset == 0 => Ok(None),
            PageUse::Slab(class) => {
                Err(FreeError::NotAnObject { addr, object_bytes: class.bytes() })
            }
            PageUse::Run { pages, .. } => {
                let object_bytes = u64::from(pages) * size.bytes();
                Err(FreeError::NotAnObject { addr, object_bytes })
            }
            PageUse::Unused => Err(FreeError::NotAllocated(addr)),
        }
    }

    /// The daemon's bitmap tells objects that were never handed out or have been taken back.
    pub(crate) fn check_allocated(
        &self,
        addr: GlobalAddr,
        translation: &Translation,
        class: SizeClass,
    ) -> Result<(), FreeError> {
        let Place::Local { frame, .. } = translation.place else { return Ok(()) };
        let object = addr.offset(self.connection.page_size) >> class.bits();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "objects of a page number at most 2^26"
        )]
        let (offset, bit) = self.connection.layout.bit(frame, class, object as u32);
        match self.connection.metadata.load(offset) {
            Ok(word) if word & bit != 0 => Ok(()),
            _ => Err(FreeError::NotAllocated(addr)),
        }
    }

    /// Puts a local object that is in use into its magazine, and takes it from the program.
    fn keep(
        &mut self,
        addr: GlobalAddr,
        place: (FrameId, PageWord),
        class: SizeClass,
        record: Option<u8>,
    ) -> Result<(), FreeError> {
        let index = usize::from(class.index());
        while !self.magazines.keep(index, addr.raw()) {
            let drained = self.drain_magazine(index, capacity(index) / 2);
            drained.map_err(|error| FreeError::Access(error.into()))?;
        }
        let holder = self.connection.holder;
        // Where the page has gone meanwhile its marks have ended: the note is all there is.
        if self.with_mark(addr, place, class, |mark| mark.take(holder)) == Some(false) {
            return self.refuse_twice(addr, class);
        }
        self.end_record_of(record);
        Ok(())
    }

    /// Does something with an object's mark, if its page is still in that frame, live or only
    /// readable.
    pub(crate) fn with_mark<R>(
        &self,
        addr: GlobalAddr,
        (frame, word): (FrameId, PageWord),
        class: SizeClass,
        work: impl FnOnce(&Mark) -> R,
    ) -> Option<R> {
        let index = addr.offset(self.connection.page_size) >> class.bits();
        let now = self.window.look(frame)?;
        if !may_enter(now, word, Intent::Read) {
            return None;
        }
        self.window.with_mark(frame, now, class, u32::try_from(index).ok()?, work)
    }
}

#[cfg(test)]
mod tests;
