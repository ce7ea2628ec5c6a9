//! The hotness of many pages in little memory.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use rackpool_model::{Heat, PageId};

/// No page has this id.
const NONE: PageId = PageId(u32::MAX);

/// An open table with linear probing: 16 B a place, 7 of 12 to 7 of 8 places in use when it has
/// grown, and half a byte for where each is, so 19 to 29 B a page. In the order of its places it
/// depends on nothing but what was done with it.
#[derive(Debug)]
pub(super) struct Table {
    /// Invariant: a page stands at its home or behind it, with no empty place in between. A chunk
    /// is made when the first page stands in it: room takes no memory before.
    chunks: Vec<Option<Box<[Place; CHUNK]>>>,
    used: usize,
}

/// Places that are made at a time, 256 B: pages that are used lie scattered among them.
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
    /// An empty table with room for so many pages.
    pub(super) fn with_room(pages: usize) -> Self {
        Self::with_places(pages.saturating_add(pages / 7).saturating_add(1))
    }

    fn with_places(places: usize) -> Self {
        Self { chunks: vec![None; places.div_ceil(CHUNK)], used: 0 }
    }

    /// How many places there are.
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

    /// Where a page stands if nothing is in its way: the order of homes is that of the hashes,
    /// whatever the number of places.
    fn home(&self, page: PageId) -> usize {
        let hash = u64::from(page.0.wrapping_mul(0x9e37_79b1));
        ((u128::from(hash) * self.places() as u128) >> 32) as usize
    }

    const fn next(&self, place: usize) -> usize {
        if place + 1 == self.places() { 0 } else { place + 1 }
    }

    /// The place of a page, or the empty one where it would stand.
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

    /// The hotness of a page, which is known from now on. (There is no page [`NONE`]: what is
    /// counted of it is lost with the next page that takes the place.)
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

    /// Empties a place and closes the gap.
    fn remove(&mut self, mut gap: usize) {
        self.used -= 1;
        let mut place = self.next(gap);
        while self.at(place).page != NONE {
            let home = self.home(self.at(place).page);
            // It may move into the gap unless its home lies behind that.
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

    /// Looks at `count` places from `from` on and keeps the pages that `keep` wants; where to go
    /// on.
    pub(super) fn retain_some(
        &mut self,
        from: usize,
        count: usize,
        keep: impl Fn(&Heat) -> bool,
    ) -> usize {
        let mut place = from % self.places();
        for _ in 0..count.min(self.places()) {
            // What moves into the gap is looked at too.
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

    /// The places in which a page stands.
    fn taken(&self) -> impl Iterator<Item = &Place> {
        let places = self.chunks.iter().flatten().flat_map(|chunk| chunk.iter());
        places.filter(|place| place.page != NONE)
    }

    /// What is there of it, in bytes.
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

    /// Counts an access, remembered by how often there were some.
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
