//! A direct-mapped table of pages that grows with its use.

use std::mem::MaybeUninit;

/// Initial number of entries: with pages of 2 MiB, enough for 8 GiB in use at a time.
const ENTRIES_AT_FIRST: usize = 1 << 12;
/// Initial number of entries of a small table.
const FEW: usize = 1 << 6;
/// Largest number of entries: more than a million pages, 2 TiB at 2 MiB each.
const ENTRIES_AT_MOST: usize = 1 << 21;

/// A direct-mapped table from page to `V`. An insertion may displace another page. The table
/// doubles when the number of displaced pages exceeds half the number of entries.
///
/// ```
/// use rackpool_shm::page_map::PageMap;
/// let mut map = PageMap::new();
/// map.insert(7, "here");
/// assert_eq!(map.get(7), Some(&"here"));
/// map.remove(7);
/// assert_eq!(map.get(7), None);
/// ```
#[derive(Debug)]
pub struct PageMap<V: Copy> {
    /// Invariants: the length is `mask + 1`, and all low bits of `mask` are set. Entry `i` holds
    /// either a page whose low bits are `i`, with its value, or the page number `!i`, which no
    /// lookup searches there.
    entries: Box<[PageMapEntry<V>]>,
    mask: usize,
    displaced: usize,
}

/// Aligned so that a small entry lies in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct PageMapEntry<V: Copy> {
    page: u64,
    value: MaybeUninit<V>,
}

impl<V: Copy> PageMapEntry<V> {
    const fn empty(index: usize) -> Self {
        Self { page: !(index as u64), value: MaybeUninit::uninit() }
    }
}

impl<V: Copy> PageMap<V> {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::with_entries(ENTRIES_AT_FIRST)
    }

    /// An empty table for few pages; it grows like any other.
    #[must_use]
    pub fn small() -> Self {
        Self::with_entries(FEW)
    }

    /// `count` must be a power of two.
    fn with_entries(count: usize) -> Self {
        Self {
            entries: (0..count).map(PageMapEntry::empty).collect(),
            mask: count - 1,
            displaced: 0,
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low bits are meant")]
    const fn index(&self, page: u64) -> usize {
        page as usize & self.mask
    }

    /// The value of the page with this number.
    #[inline]
    #[must_use]
    pub fn get(&self, page: u64) -> Option<&V> {
        // SAFETY: the invariant of `entries`: a masked index is below their number.
        let entry = unsafe { self.entries.get_unchecked(self.index(page)) };
        if entry.page != page {
            return None;
        }
        // SAFETY: the invariant of `entries`: the entry holds a page, so it has a value.
        Some(unsafe { entry.value.assume_init_ref() })
    }

    fn is_empty(&self, index: usize) -> bool {
        self.index(self.entries[index].page) != index
    }

    /// Inserts a page or replaces its value.
    pub fn insert(&mut self, page: u64, value: V) {
        let index = self.index(page);
        if self.entries[index].page != page && !self.is_empty(index) {
            self.displaced += 1;
            if self.displaced > self.entries.len() / 2 && self.entries.len() < ENTRIES_AT_MOST {
                self.grow();
            }
        }
        let index = self.index(page);
        self.entries[index] = PageMapEntry { page, value: MaybeUninit::new(value) };
    }

    #[cold]
    fn grow(&mut self) {
        let mut twice = Self::with_entries(self.entries.len() * 2);
        for index in (0..self.entries.len()).filter(|index| !self.is_empty(*index)) {
            let entry = self.entries[index];
            twice.entries[twice.index(entry.page)] = entry;
        }
        *self = twice;
    }

    /// Removes a page.
    pub fn remove(&mut self, page: u64) {
        let index = self.index(page);
        if self.entries[index].page == page {
            self.entries[index] = PageMapEntry::empty(index);
        }
    }
}

impl<V: Copy> Default for PageMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_colliding_page_replaces_and_is_not_mistaken() {
        let mut map = PageMap::new();
        let other = 5 + ENTRIES_AT_FIRST as u64;
        map.insert(5, 'a');
        assert_eq!(map.get(other), None);
        map.insert(other, 'b');
        assert_eq!((map.get(5), map.get(other)), (None, Some(&'b')));
        map.remove(5);
        assert_eq!(map.get(other), Some(&'b'));
        map.remove(other);
        assert_eq!(map.get(other), None);
        assert_eq!(map.get(u64::MAX), None);
    }

    #[test]
    fn a_million_pages_are_all_remembered_after_a_few_rounds() {
        let mut map = PageMap::new();
        let pages = 1_000_000_u64;
        // Used as a cache: a missing page is looked up elsewhere and inserted.
        let misses: Vec<usize> = (0..12)
            .map(|_| {
                let missing: Vec<u64> = (0..pages).filter(|p| map.get(*p) != Some(p)).collect();
                missing.iter().for_each(|page| map.insert(*page, *page));
                missing.len()
            })
            .collect();
        assert_eq!(misses.last(), Some(&0), "{misses:?}");
        assert!(map.entries.len() <= ENTRIES_AT_MOST);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert(u64, u32),
        Remove(u64),
    }

    /// Pages that collide in tables of every size reached here, and the page numbers that mark
    /// empty entries.
    fn page() -> impl Strategy<Value = u64> {
        let near = prop_oneof![Just(0), Just(63), Just(64), Just(127), 0_u64..300];
        let far = prop_oneof![Just(0), 0_u64..5, Just(1 << 40)];
        let page = (near, far).prop_map(|(low, high)| low + high * 256);
        prop_oneof![4 => page.clone(), 1 => page.prop_map(|page| !page)]
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let insert = (page(), any::<u32>()).prop_map(|(page, value)| Step::Insert(page, value));
        let step = prop_oneof![4 => insert, 1 => page().prop_map(Step::Remove)];
        proptest::collection::vec(step, 1..600)
    }

    /// The model of the table: the inserted pages, without those that a later page of the same
    /// entry displaced.
    struct Known {
        entries: usize,
        displaced: usize,
        pages: Vec<(u64, u32)>,
    }

    impl Known {
        fn meets(&self, one: u64, other: u64) -> bool {
            one % self.entries as u64 == other % self.entries as u64
        }

        fn insert(&mut self, page: u64, value: u32) {
            let displaces = |known: &Self| {
                known.pages.iter().any(|(other, _)| *other != page && known.meets(page, *other))
            };
            if displaces(self) {
                self.displaced += 1;
                if self.displaced > self.entries / 2 {
                    self.entries *= 2;
                    self.displaced = 0;
                }
            }
            let entries = self.entries as u64;
            self.pages.retain(|(other, _)| page % entries != other % entries);
            self.pages.push((page, value));
        }

        fn get(&self, page: u64) -> Option<&u32> {
            self.pages.iter().find(|(other, _)| *other == page).map(|(_, value)| value)
        }
    }

    proptest! {
        #[test]
        fn behaves_like_what_was_inserted_last(steps in steps()) {
            let mut map = PageMap::small();
            let mut known = Known { entries: FEW, displaced: 0, pages: Vec::new() };
            let mut seen = Vec::new();
            for step in steps {
                let page = match step {
                    Step::Insert(page, value) => {
                        map.insert(page, value);
                        known.insert(page, value);
                        page
                    }
                    Step::Remove(page) => {
                        map.remove(page);
                        known.pages.retain(|(other, _)| *other != page);
                        page
                    }
                };
                seen.push(page);
                prop_assert_eq!(map.entries.len(), known.entries);
                for page in seen.iter().flat_map(|page| [*page, !*page, page ^ 64]) {
                    prop_assert_eq!(map.get(page), known.get(page), "page {:#x}", page);
                }
            }
        }
    }
}
