//! Freeing: into the thread's magazines, or back to the daemon.

use rackpool_model::{GlobalAddr, SizeClass};
use rackpool_ring::magazines::{Kept, capacity};
use rackpool_shm::access::Intent;
use rackpool_shm::metadata::PageUse;

use crate::deadline::Retries;
use crate::thread::{Target, Thread};
use crate::translation::{Place, Translation};
use crate::{AccessError, FreeError};

/// Objects at least this large go back to the daemon at once when they belong to another rack.
const PROMPT_BYTES: u64 = 4096;

impl Thread {
    /// Takes an object back.
    pub(crate) fn free(&mut self, addr: GlobalAddr) -> Result<(), FreeError> {
        self.free_noting(addr, None)
    }

    /// Takes an object back; the draft record that speaks of it ends right after the object is
    /// noted, with nothing in between.
    #[inline]
    pub(crate) fn free_noting(
        &mut self,
        addr: GlobalAddr,
        record: Option<u8>,
    ) -> Result<(), FreeError> {
        match self.window.in_use(addr) {
            Some(class) => self.keep(addr, class, record),
            None => self.free_anywhere(addr, record),
        }
    }

    /// The same for an object that is not small, or in a page that is not known, not there any
    /// more, or in another rack.
    #[cold]
    fn free_anywhere(&mut self, addr: GlobalAddr, record: Option<u8>) -> Result<(), FreeError> {
        let target = self.target(addr, 1)?;
        let retries = Retries::within(self.connection.request_timeout());
        loop {
            // Where a page lies may have changed since it was remembered, what it is used for too if
            // it was freed and allocated anew: an object is only taken back on fresh knowledge.
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
            let Place::Local { .. } = translation.place else {
                return self.give_back(addr, class.bytes() >= PROMPT_BYTES, record);
            };
            let checked = self.check_allocated(addr, &translation, class);
            // The bits were this page's if it is there now: else another one's may have been looked at.
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
            return self.keep(addr, class, record);
        }
    }

    /// Whether a page of this rack has the word that was said of it.
    fn is_there(&self, translation: &Translation) -> bool {
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
    fn check_allocated(
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

    /// Puts a local object that is in use into its magazine.
    fn keep(
        &mut self,
        addr: GlobalAddr,
        class: SizeClass,
        record: Option<u8>,
    ) -> Result<(), FreeError> {
        let class = usize::from(class.index());
        loop {
            match self.magazines.keep(class, addr.raw()) {
                Kept::Noted => break,
                Kept::Twice => return Err(FreeError::NotAllocated(addr)),
                Kept::Full => {
                    let drained = self.drain_magazine(class, capacity(class) / 2);
                    drained.map_err(|error| FreeError::Access(error.into()))?;
                }
            }
        }
        if let Some(record) = record {
            self.end_record(record);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
