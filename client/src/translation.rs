//! What a thread remembers of pages: where they lie and what may be accessed there.

use rackpool_model::{FrameId, PageId, PageSize, PageWord, RackId};
use rackpool_shm::metadata::PageUse;

const ENTRIES: usize = 4096;

/// Where a page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this rack's memory, as long as the page word is this.
    Local { frame: FrameId, word: PageWord },
    /// In another rack's memory.
    Remote { home: RackId },
}

/// A page's place and use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub(crate) page: PageId,
    pub(crate) place: Place,
    /// The raw word of what the page is used for.
    pub(crate) usage: u64,
}

impl Translation {
    /// What the page is used for.
    pub(crate) fn page_use(&self, page_size: PageSize) -> PageUse {
        PageUse::from_raw(self.usage, page_size)
    }
}

/// A direct-mapped cache of translations, private to one thread. With pages of 2 MiB it covers
/// 8 GiB of pages in use at a time; a miss costs one message.
#[derive(Debug)]
pub(crate) struct Translations(Box<[Option<Translation>]>);

impl Translations {
    pub(crate) fn new() -> Self {
        Self(vec![None; ENTRIES].into_boxed_slice())
    }

    const fn index(page: PageId) -> usize {
        page.0 as usize & (ENTRIES - 1)
    }

    /// What is known of the page.
    #[inline]
    pub(crate) fn get(&self, page: PageId) -> Option<Translation> {
        self.0[Self::index(page)].filter(|known| known.page == page)
    }

    /// Remembers a page.
    pub(crate) fn insert(&mut self, translation: Translation) {
        self.0[Self::index(translation.page)] = Some(translation);
    }

    /// Forgets a page.
    pub(crate) fn remove(&mut self, page: PageId) {
        let entry = &mut self.0[Self::index(page)];
        if entry.is_some_and(|known| known.page == page) {
            *entry = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(page: u32) -> Translation {
        Translation { page: PageId(page), place: Place::Remote { home: RackId(1) }, usage: 0 }
    }

    #[test]
    fn a_colliding_page_replaces_and_is_not_mistaken() {
        let mut cache = Translations::new();
        cache.insert(remote(5));
        let other = 5 + u32::try_from(ENTRIES).unwrap();
        assert_eq!(cache.get(PageId(other)), None);
        cache.insert(remote(other));
        assert_eq!(cache.get(PageId(5)), None);
        cache.remove(PageId(5));
        assert_eq!(cache.get(PageId(other)), Some(remote(other)));
        cache.remove(PageId(other));
        assert_eq!(cache.get(PageId(other)), None);
    }
}
