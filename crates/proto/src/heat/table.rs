//! A compact hash table from page to hotness.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use rackpool_model::{Heat, PageId};

/// Marks an empty place; no page has this id.
const NONE: PageId = PageId(u32::MAX);

/// An open-addressing hash table with linear probing: 16 B a place, a load between 7/12 and 7/8
/// once it has grown, and half a byte a place for the chunk pointers: 19 to 29 B a page. Its
/// iteration order depends only on the operations executed on it.
#[derive(Debug)]
pub(super) struct Table {
    /// Invariant: a page is at its home place or after it, with no empty place in between. A chunk
    /// is allocated when its first page is stored.
    chunks: Vec<Option<Box<[Place; CHUNK]>>>,
    used: usize,
}

/// Places that are allocated at a time, 256 B: the pages in use are scattered among them.
const CHUNK: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Place {
    page: PageId,
    heat: Heat,
}

const _: () = assert!(size_of::<Place>() == 16, "16 B a place are promised");

impl Place {
    const EMPTY: Self = Self { page: NONE, heat: Heat::UNUSED };
}

impl Table {
    /// Makes an empty table with room for `pages` pages.
    pub(super) fn with_room(pages: usize) -> Self {
        Self::with_places(pages.saturating_add(pages / 7).saturating_add(1))
    }

    fn with_places(places: usize) -> Self {
        Self { chunks: vec![None; places.div_ceil(CHUNK)], used: 0 }
    }

    /// The number of places.
    const fn places(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    fn at(&self, place: usize) -> &Place {
        match &self.chunks[place / CHUNK] {
            Some(chunk) => &chunk[place % CHUNK],
            None => &Place::EMPTY,
        }
    }

    fn at_mut(&mut self, place: usize) -> &mut Place {
        let chunk =
            self.chunks[place / CHUNK].get_or_insert_with(|| Box::new([Place::EMPTY; CHUNK]));
        &mut chunk[place % CHUNK]
    }

    /// The home place of a page. The order of home places is that of the hashes, for any number of
    /// places.
    fn home(&self, page: PageId) -> usize {
        let hash = u64::from(page.0.wrapping_mul(0x9e37_79b1));
        ((u128::from(hash) * self.places() as u128) >> 32) as usize
    }

    const fn next(&self, place: usize) -> usize {
        if place + 1 == self.places() { 0 } else { place + 1 }
    }

    /// The place of a page, or the empty place where it would be inserted.
    fn find(&self, page: PageId) -> usize {
        let mut place = self.home(page);
        while self.at(place).page != page && self.at(place).page != NONE {
            place = self.next(place);
        }
        place
    }

    pub(super) fn get(&self, page: PageId) -> Option<&Heat> {
        let found = self.at(self.find(page));
        (found.page != NONE).then_some(&found.heat)
    }

    /// Returns the entry of a page, inserting it if needed. (Page [`NONE`] does not exist: its
    /// counts go to an empty place and are lost when a page is stored there.)
    pub(super) fn entry(&mut self, page: PageId) -> &mut Heat {
        let mut place = self.find(page);
        if self.at(place).page == NONE && page != NONE {
            if (self.used + 1) * 8 > self.places() * 7 {
                self.grow();
                place = self.find(page);
            }
            self.used += 1;
            *self.at_mut(place) = Place { page, heat: Heat::UNUSED };
        }
        &mut self.at_mut(place).heat
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Self::with_places(self.places() + self.places() / 2);
        for found in self.taken() {
            *larger.at_mut(larger.find(found.page)) = *found;
        }
        larger.used = self.used;
        *self = larger;
    }

    /// Removes the entry at `gap` and moves later entries to close the gap.
    fn remove(&mut self, mut gap: usize) {
        self.used -= 1;
        let mut place = self.next(gap);
        while self.at(place).page != NONE {
            let home = self.home(self.at(place).page);
            // An entry may move into the gap unless its home place is after the gap.
            let count = self.places();
            let from_home = |to: usize| (to + count - home) % count;
            if from_home(gap) < from_home(place) {
                *self.at_mut(gap) = *self.at(place);
                gap = place;
            }
            place = self.next(place);
        }
        *self.at_mut(gap) = Place::EMPTY;
    }

    /// Scans `count` places beginning at `from`, keeps the entries for which `keep` returns true,
    /// and returns the place to continue at.
    pub(super) fn retain_some(
        &mut self,
        from: usize,
        count: usize,
        keep: impl Fn(&Heat) -> bool,
    ) -> usize {
        let mut place = from % self.places();
        for _ in 0..count.min(self.places()) {
            // An entry that moves into the gap is examined too.
            while self.at(place).page != NONE && !keep(&self.at(place).heat) {
                self.remove(place);
            }
            place = self.next(place);
        }
        place
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PageId, &Heat)> {
        self.taken().map(|place| (place.page, &place.heat))
    }

    /// The occupied places.
    fn taken(&self) -> impl Iterator<Item = &Place> {
        let places = self.chunks.iter().flatten().flat_map(|chunk| chunk.iter());
        places.filter(|place| place.page != NONE)
    }

    /// The allocated size in bytes.
    pub(super) fn bytes(&self) -> usize {
        let chunks = self.chunks.iter().flatten().count() * size_of::<[Place; CHUNK]>();
        chunks + size_of_val(self.chunks.as_slice())
    }

    pub(super) const fn len(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use core::time::Duration;

    use rackpool_model::{Access, HeatRules};

    use super::*;

    /// Counts an access in a model that keeps the number of accesses.
    fn access(table: &mut Table, page: u32) {
        table.entry(PageId(page)).accessed(&HeatRules::DEFAULT, 0, Access::Read, 1);
    }

    #[test]
    fn it_is_a_map_whatever_comes_and_goes() {
        let (mut table, mut model) = (Table::with_room(0), BTreeMap::<u32, u32>::new());
        let mut random = 1_u32;
        for round in 0..60_000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let page = (random >> 16) % 700 * if round % 3 == 0 { 1 } else { 513 };
            access(&mut table, page);
            *model.entry(page).or_default() += 1;
            if round % 5_000 == 0 {
                let odd = |heat: &Heat| heat.counts().0 % 2 == 1;
                table.retain_some(round as usize, usize::MAX, odd);
                model.retain(|_, times| *times % 2 == 1);
            }
        }
        let found: BTreeMap<u32, u32> = table.iter().map(|(p, h)| (p.0, h.counts().0)).collect();
        assert_eq!(found, model);
        assert_eq!(table.len(), model.len());
        assert!(
            model.iter().all(|(p, n)| table.get(PageId(*p)).is_some_and(|h| h.counts().0 == *n))
        );
        assert!(table.get(PageId(u32::MAX - 1)).is_none());
    }

    #[test]
    fn a_page_costs_at_most_29_bytes() {
        let mut table = Table::with_room(0);
        for page in 1..=100_000 {
            access(&mut table, page);
            let bytes = table.bytes();
            assert!(page < 200 || bytes <= page as usize * 29, "{bytes} B for {page} pages");
        }
        let mut roomy = Table::with_room(100_000);
        assert!(roomy.bytes() < 100_000, "room takes next to no memory: {} B", roomy.bytes());
        (0..100_000).for_each(|page| access(&mut roomy, page));
        assert!(roomy.bytes() <= 100_000 * 19, "it did not grow");
    }

    #[test]
    fn what_is_not_wanted_is_dropped_bit_by_bit() {
        let mut table = Table::with_room(0);
        (0..1000).for_each(|page| access(&mut table, page));
        let rules = HeatRules { lifetime: Duration::from_secs(1), ..HeatRules::DEFAULT };
        let mut place = 0;
        for _ in 0..=table.places() / 64 {
            place = table.retain_some(place, 64, |heat| !heat.is_expired(&rules, 2_000_000_000));
        }
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn the_page_that_can_not_be_is_not_remembered() {
        let mut table = Table::with_room(0);
        access(&mut table, u32::MAX);
        assert_eq!((table.len(), table.iter().count()), (0, 0));
    }
}
