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
pub(crate) struct Translations(Box<[Entry; ENTRIES]>);

/// One translation, packed so that a hit is one comparison and one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Entry {
    /// 0 in an empty entry.
    page: u32,
    /// [`REMOTE`] for a page of another rack.
    frame: u32,
    /// The page word, or the home of a page of another rack.
    word: u64,
    usage: u64,
}

const REMOTE: u32 = u32::MAX;
const EMPTY: Entry = Entry { page: 0, frame: REMOTE, word: 0, usage: 0 };

impl Translations {
    pub(crate) fn new() -> Self {
        let entries = vec![EMPTY; ENTRIES].into_boxed_slice();
        // The vector has exactly that many entries.
        Self(entries.try_into().unwrap_or_else(|_| Box::new([EMPTY; ENTRIES])))
    }

    const fn index(page: PageId) -> usize {
        page.0 as usize & (ENTRIES - 1)
    }

    /// The frame and page word of a page known to be in this rack.
    #[inline]
    pub(crate) fn local(&self, page: PageId) -> Option<(FrameId, PageWord)> {
        let entry = &self.0[Self::index(page)];
        if entry.page != page.0 || entry.frame == REMOTE {
            return None;
        }
        Some((FrameId(entry.frame), PageWord::from_raw(entry.word)))
    }

    /// What is known of the page.
    pub(crate) fn get(&self, page: PageId) -> Option<Translation> {
        let Entry { page: known, frame, word, usage } = self.0[Self::index(page)];
        if known != page.0 {
            return None;
        }
        let place = match frame {
            REMOTE => Place::Remote { home: RackId(u16::try_from(word).unwrap_or(u16::MAX)) },
            frame => Place::Local { frame: FrameId(frame), word: PageWord::from_raw(word) },
        };
        Some(Translation { page, place, usage })
    }

    /// Remembers a page.
    pub(crate) fn insert(&mut self, translation: Translation) {
        let Translation { page, place, usage } = translation;
        let (frame, word) = match place {
            Place::Local { frame, word } => (frame.0, word.raw()),
            Place::Remote { home } => (REMOTE, u64::from(home.0)),
        };
        self.0[Self::index(page)] = Entry { page: page.0, frame, word, usage };
    }

    /// Forgets a page.
    pub(crate) fn remove(&mut self, page: PageId) {
        let entry = &mut self.0[Self::index(page)];
        if entry.page == page.0 {
            *entry = EMPTY;
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
    fn both_places_survive_packing() {
        let mut cache = Translations::new();
        let word = PageWord::from_raw(77);
        let place = Place::Local { frame: FrameId(9), word };
        let local = Translation { page: PageId(6), place, usage: 3 };
        cache.insert(local);
        cache.insert(remote(7));
        assert_eq!(cache.get(PageId(6)), Some(local));
        assert_eq!(cache.local(PageId(6)), Some((FrameId(9), word)));
        assert_eq!(cache.get(PageId(7)), Some(remote(7)));
        assert_eq!(cache.local(PageId(7)), None);
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
