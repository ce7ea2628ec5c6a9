//! Freeing: into the thread's magazines, or back to the daemon.

use rackpool_model::{GlobalAddr, SizeClass};
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::Ordering;

use crate::cache::capacity;
use crate::thread::{Target, Thread};
use crate::translation::{Place, Translation};
use crate::{AccessError, DaemonError, FreeError};

/// Objects at least this large go back to the daemon at once when they belong to another rack.
const PROMPT_BYTES: u64 = 4096;

impl Thread {
    /// Takes an object back.
    pub(crate) fn free(&mut self, addr: GlobalAddr) -> Result<(), FreeError> {
        let target = self.target(addr, 1)?;
        // Where a page lies may have changed since it was remembered, what it is used for too if
        // it was freed and allocated anew: an object is only taken back on fresh knowledge.
        let mut translation = self.translate_for_free(&target)?;
        if let Place::Local { frame, word } = translation.place
            && self.window.look(frame) != Some(word)
        {
            self.translations.remove(target.page);
            translation = self.translate_for_free(&target)?;
        }
        let mut class = self.class_at(&target, &translation);
        if class.is_err() && matches!(translation.place, Place::Remote { .. }) {
            self.translations.remove(target.page);
            translation = self.translate_for_free(&target)?;
            class = self.class_at(&target, &translation);
        }
        let Some(class) = class? else { return self.give_back(addr, true) };
        let Place::Local { .. } = translation.place else {
            return self.give_back(addr, class.bytes() >= PROMPT_BYTES);
        };
        self.check_allocated(addr, &translation, class)?;
        if capacity(class) == 0 {
            return self.give_back(addr, true);
        }
        self.keep(addr, class)
    }

    fn translate_for_free(&mut self, target: &Target) -> Result<Translation, FreeError> {
        self.translate(target).map_err(|error| match error {
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

    /// Puts a local object into its magazine.
    fn keep(&mut self, addr: GlobalAddr, class: SizeClass) -> Result<(), FreeError> {
        let index = usize::from(class.index());
        let count = self.magazines.counts[index];
        let access = |error: DaemonError| FreeError::Access(error.into());
        let slot = self.slot().map_err(access)?;
        let held = &slot.magazines[index][..usize::from(count)];
        if held.iter().any(|cell| cell.load(Ordering::Relaxed) == addr.raw()) {
            return Err(FreeError::NotAllocated(addr));
        }
        if count < capacity(class) {
            slot.magazines[index][usize::from(count)].store(addr.raw(), Ordering::Release);
            self.magazines.counts[index] = count + 1;
            return Ok(());
        }
        self.drain_magazine(class, capacity(class) / 2).map_err(access)?;
        self.keep(addr, class)
    }
}
