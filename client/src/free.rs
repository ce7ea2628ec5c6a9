//! Freeing objects: into the thread's magazines, or back to the daemon.
//!
//! A small object of this rack is first noted in a magazine, then its mark is taken. Of two threads
//! that free the same object only one obtains the mark; the other one removes its note. See
//! docs/design/marks.md.

use rackpool_model::{FrameWord, GlobalAddr, SizeClass};
use rackpool_ring::magazines::capacity;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::marks::Mark;
use rackpool_shm::metadata::PageUse;
use rackpool_shm::window::TakeBackOutcome;

use crate::deadline::Retries;
use crate::thread::{Target, Thread, may_enter};
use crate::translation::{Place, Translation};
use crate::{AccessError, FreeError};

/// An object of another rack of at least this size (bytes) is returned at once instead of in a
/// batch.
const PROMPT_BYTES: u64 = 4096;

impl Thread {
    /// Frees an object.
    pub(crate) fn free(&mut self, addr: GlobalAddr) -> Result<(), FreeError> {
        self.free_noting(addr, None)
    }

    /// Frees an object. Clears the reservation record that names it immediately after the object is
    /// noted elsewhere, with no other step in between.
    #[inline]
    pub(crate) fn free_noting(
        &mut self,
        addr: GlobalAddr,
        record: Option<u8>,
    ) -> Result<(), FreeError> {
        let note = |class: SizeClass| self.magazines.keep(usize::from(class.index()), addr.raw());
        match self.window.take_back(addr, self.connection.holder, note) {
            TakeBackOutcome::Noted => {
                self.end_record_of(record);
                Ok(())
            }
            TakeBackOutcome::Twice(class) => self.refuse_twice(addr, class),
            TakeBackOutcome::Unknown => self.free_anywhere(addr, record),
        }
    }

    fn end_record_of(&mut self, record: Option<u8>) {
        if let Some(record) = record {
            self.end_record(record);
        }
    }

    /// Another party took the object's mark first: removes this thread's note of the object.
    #[cold]
    fn refuse_twice(&self, addr: GlobalAddr, class: SizeClass) -> Result<(), FreeError> {
        self.magazines.withdraw(usize::from(class.index()), addr.raw());
        Err(FreeError::NotAllocated(addr))
    }

    /// The slow path of a free: the object has no magazine, or its page is unknown, moved, or in
    /// another rack.
    #[cold]
    fn free_anywhere(&mut self, addr: GlobalAddr, record: Option<u8>) -> Result<(), FreeError> {
        let target = self.target(addr, 1)?;
        let retries = Retries::within(self.connection.request_timeout());
        loop {
            // The remembered place and use of the page may be stale: the page may have moved, or
            // been freed and allocated anew. An object is accepted only on a current translation.
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
            // The bit was this page's only if the page is still in the frame.
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
            return self.keep(addr, FrameWord { frame, word }, class, record);
        }
    }

    /// Returns true if the page word still has the value of the translation; always true for a page
    /// of another rack.
    pub(crate) fn is_there(&self, translation: &Translation) -> bool {
        match translation.place {
            Place::Local { frame, word } => self.window.look(frame) == Some(word),
            Place::Remote { .. } | Place::Copied { .. } | Place::Sibling { .. } => true,
        }
    }

    fn translate_for_free(&mut self, target: &Target) -> Result<Translation, FreeError> {
        self.translate(target, AccessIntent::Read).map_err(|error| match error {
            AccessError::NotAllocated(addr) => FreeError::NotAllocated(addr),
            other => other.into(),
        })
    }

    /// The size class of the object that starts at the target. Returns `None` for a fixed object
    /// and for a run of pages, which no magazine takes.
    fn class_at(
        &self,
        target: &Target,
        translation: &Translation,
    ) -> Result<Option<SizeClass>, FreeError> {
        let (addr, size) = (target.addr, self.connection.page_size);
        match translation.page_use(size) {
            PageUse::Slab(class) if target.offset & (class.bytes() - 1) == 0 => Ok(Some(class)),
            PageUse::Fixed(class) if target.offset & (class.bytes() - 1) == 0 => Ok(None),
            PageUse::Run { index: 0, .. } if target.offset == 0 => Ok(None),
            PageUse::Slab(class) | PageUse::Fixed(class) => {
                Err(FreeError::NotAnObject { addr, object_bytes: class.bytes() })
            }
            PageUse::Run { pages, .. } => {
                let object_bytes = u64::from(pages) * size.bytes();
                Err(FreeError::NotAnObject { addr, object_bytes })
            }
            PageUse::Unused => Err(FreeError::NotAllocated(addr)),
        }
    }

    /// Checks the daemon's bitmap: fails if the object was never allocated or has been returned to
    /// the daemon.
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
        let bit = self.connection.layout.bit(frame, class, object as u32);
        match self.connection.metadata.load(bit.word) {
            Ok(word) if word & bit.mask != 0 => Ok(()),
            _ => Err(FreeError::NotAllocated(addr)),
        }
    }

    /// Notes an allocated local object in its magazine, then takes its mark.
    fn keep(
        &mut self,
        addr: GlobalAddr,
        place: FrameWord,
        class: SizeClass,
        record: Option<u8>,
    ) -> Result<(), FreeError> {
        let index = usize::from(class.index());
        while !self.magazines.keep(index, addr.raw()) {
            let drained = self.drain_magazine(index, capacity(index) / 2);
            drained.map_err(|error| FreeError::Access(error.into()))?;
        }
        let holder = self.connection.holder;
        // If the page has moved meanwhile its marks have stayed behind: the note alone counts.
        if self.with_mark(addr, place, class, |mark| mark.take(holder)) == Some(false) {
            return self.refuse_twice(addr, class);
        }
        self.end_record_of(record);
        Ok(())
    }

    /// Calls `work` with an object's mark, if its page is still in that frame and may be read
    /// there. Returns `None` otherwise.
    pub(crate) fn with_mark<R>(
        &self,
        addr: GlobalAddr,
        FrameWord { frame, word }: FrameWord,
        class: SizeClass,
        work: impl FnOnce(&Mark) -> R,
    ) -> Option<R> {
        let index = addr.offset(self.connection.page_size) >> class.bits();
        let now = self.window.look(frame)?;
        if !may_enter(now, word, AccessIntent::Read) {
            return None;
        }
        self.window.with_mark(frame, now, class, u32::try_from(index).ok()?, work)
    }
}

#[cfg(test)]
mod tests;
