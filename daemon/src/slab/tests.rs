use std::collections::BTreeSet;

use proptest::prelude::*;
use rackpool_shm::metadata::MetadataLayout;
use rackpool_shm::{Mapping, file};
use rackpool_sync::SplitMix64;

use super::*;

mod fixed;
mod reserve;
mod swaps;

const FRAMES: u32 = 16;

fn page_size() -> PageSize {
    PageSize::from_bytes(64 << 10).unwrap()
}

struct Fixture {
    _folder: tempfile::TempDir,
    metadata: Arc<RackMetadata>,
    marks: Marks,
    slab: Slab,
}

impl Fixture {
    fn new() -> Self {
        Self::from_page(100)
    }

    fn from_page(first: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let layout = MetadataLayout::new(page_size(), FRAMES);
        let file = file::create(&folder.path().join("metadata"), layout.bytes()).unwrap();
        let mapping = Mapping::new(&file, layout.bytes()).unwrap();
        let metadata = Arc::new(RackMetadata::new(mapping, layout).unwrap());
        for index in 0..FRAMES {
            let word = PageWord::free(PageId(first + index));
            metadata.word(FrameId(index)).unwrap().store(word.raw(), Ordering::Relaxed);
        }
        let bytes = Marks::bytes(page_size(), FRAMES);
        let file = file::create(&folder.path().join("marks"), bytes).unwrap();
        let memory = Arc::new(Mapping::new(&file, bytes).unwrap());
        let marks = Marks::new(memory, page_size(), FRAMES).unwrap();
        let adopted = Slab::adopt(Arc::clone(&metadata), marks.clone(), page_size(), PageId(first));
        let slab = adopted.unwrap();
        Self { _folder: folder, metadata, marks, slab }
    }

    fn restart(&mut self) {
        self.restart_from(100);
    }

    fn restart_from(&mut self, first: u32) {
        let (metadata, marks) = (Arc::clone(&self.metadata), self.marks.clone());
        self.slab = Slab::adopt(metadata, marks, page_size(), PageId(first)).unwrap();
    }

    fn alloc(&mut self, bytes: u64) -> Option<GlobalAddr> {
        let candidate = self.slab.peek(bytes).unwrap()?;
        self.slab.commit(candidate, None).unwrap().then_some(candidate.addr)
    }

    fn free(&mut self, addr: GlobalAddr) -> Result<(), NotFreed> {
        self.slab.free(addr, ObjectHolder::DAEMON).unwrap()
    }

    fn drain(&mut self) {
        for frame in self.slab.take_newly_leaving() {
            self.slab.quiesced(frame).unwrap();
        }
    }
}

impl Slab {
    /// Returns true if this daemon still makes a store.
    pub(super) fn lives(&self) -> bool {
        match self.stores_left.get() {
            None => true,
            Some(left) => {
                self.stores_left.set(Some(left.saturating_sub(1)));
                left > 0
            }
        }
    }
}

#[test]
fn a_candidate_that_is_not_committed_is_free_after_a_restart() {
    let mut fixture = Fixture::new();
    let candidate = fixture.slab.peek(64).unwrap().unwrap();
    assert!(!fixture.slab.is_allocated(candidate.addr));
    fixture.restart();
    assert!(!fixture.slab.is_allocated(candidate.addr));
    assert_eq!(fixture.alloc(64), Some(candidate.addr));
}

#[test]
fn freeing_twice_or_beside_an_object_is_refused() {
    let mut fixture = Fixture::new();
    let addr = fixture.alloc(64).unwrap();
    assert_eq!(fixture.free(addr.add(16).unwrap()), Err(NotFreed::NotAllocated));
    assert_eq!(fixture.free(addr), Ok(()));
    assert_eq!(fixture.free(addr), Err(NotFreed::NotAllocated));
    assert_eq!(fixture.free(GlobalAddr::NULL), Err(NotFreed::NotAllocated));
    assert_eq!(fixture.free(GlobalAddr::from_raw(u64::MAX)), Err(NotFreed::NotAllocated));
}

#[test]
fn runs_have_consecutive_pages_and_come_back_whole() {
    let mut fixture = Fixture::new();
    let run = fixture.alloc(3 * (64 << 10)).unwrap();
    let page = run.page(page_size()).unwrap();
    for index in 0..3 {
        let LocalPage { word, usage, .. } = fixture.slab.lookup(PageId(page.0 + index)).unwrap();
        assert!(word.is_writable());
        let expected = PageUse::Run { index, pages: 3 };
        assert_eq!(PageUse::from_raw(usage, page_size()), expected);
    }
    let middle = GlobalAddr::new(PageId(page.0 + 1), 0, page_size()).unwrap();
    assert_eq!(fixture.free(middle), Err(NotFreed::NotAllocated));
    assert_eq!(fixture.free(run), Ok(()));
    fixture.drain();
    assert_eq!(fixture.slab.free_frames(), FRAMES);
    assert_eq!(fixture.alloc(16 * (64 << 10)).map(|addr| addr.raw()), Some(100 << 16));
    assert_eq!(fixture.alloc(16), None, "the rack is full");
}

#[test]
fn a_page_whose_objects_are_all_free_can_be_used_for_another_size() {
    let mut fixture = Fixture::new();
    let all: Vec<_> = std::iter::from_fn(|| fixture.alloc(4096)).collect();
    assert_eq!(all.len(), 16 * FRAMES as usize);
    for addr in all {
        fixture.free(addr).unwrap();
    }
    assert!(fixture.slab.close_empty_pages().unwrap());
    fixture.drain();
    assert_eq!(fixture.slab.free_frames(), FRAMES);
    assert!(fixture.alloc(16).is_some());
}

/// The operation during which a daemon is killed.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Alloc(u64),
    Free(usize),
    Close,
    Drain,
}

/// Executes the same operations for the same seed, so that each daemon can be killed at another
/// store.
fn live_a_while(fixture: &mut Fixture, seed: u64) -> Vec<GlobalAddr> {
    let mut random = SplitMix64::new(seed);
    let mut held = Vec::new();
    for _ in 0..40 {
        let number = random.draw() >> 33;
        match number % 8 {
            0..=3 => {
                held.extend(fixture.alloc([16, 64, 5000, 70_000, 190_000][number as usize / 8 % 5]))
            }
            4 | 5 if !held.is_empty() => {
                let addr = held.swap_remove(number as usize / 8 % held.len());
                fixture.free(addr).unwrap();
            }
            6 => fixture.drain(),
            _ => {}
        }
    }
    held
}

/// A daemon is killed before each of its stores in turn. Its successor finds every other object in
/// use; the object that was being allocated or freed is in use or not; nothing is lost.
#[test]
fn a_daemon_killed_between_any_two_stores_loses_nothing() {
    let doings = [
        Doing::Alloc(16),
        Doing::Alloc(1000),
        Doing::Alloc(70_000),
        Doing::Alloc(250_000),
        Doing::Free(0),
        Doing::Free(1),
        Doing::Free(5),
        Doing::Close,
        Doing::Drain,
    ];
    for (seed, doing) in (0..12).flat_map(|seed| doings.map(|doing| (seed, doing))) {
        for stores in 0.. {
            let mut fixture = Fixture::new();
            let mut held = live_a_while(&mut fixture, seed);
            fixture.slab.stores_left.set(Some(stores));
            let mut on_its_way = None;
            match doing {
                Doing::Alloc(bytes) => {
                    // Noted before it counts as in use.
                    let candidate = fixture.slab.peek(bytes).unwrap();
                    on_its_way = candidate.map(|candidate| candidate.addr);
                    if let Some(candidate) = candidate {
                        let _ = fixture.slab.commit(candidate, None).unwrap();
                    }
                }
                Doing::Free(index) if index < held.len() => {
                    on_its_way = Some(held.swap_remove(index));
                    fixture.free(on_its_way.unwrap()).unwrap();
                }
                Doing::Free(_) => {}
                Doing::Close => drop(fixture.slab.close_empty_pages().unwrap()),
                Doing::Drain => fixture.drain(),
            }
            let was_killed = fixture.slab.stores_left.get() == Some(0);
            fixture.restart();
            let what = format!("seed {seed}, {doing:?}, {stores} stores");
            for addr in &held {
                assert!(fixture.slab.is_allocated(*addr), "{addr} is lost: {what}");
            }
            held.extend(on_its_way.filter(|addr| fixture.slab.is_allocated(*addr)));
            for addr in held {
                assert_eq!(fixture.free(addr), Ok(()), "{what}");
            }
            assert_eq!(fixture.slab.allocated_bytes(), 0, "{what}");
            fixture.slab.close_empty_pages().unwrap();
            fixture.drain();
            assert_eq!(fixture.slab.free_frames(), FRAMES, "{what}");
            if !was_killed {
                break;
            }
        }
    }
}

/// Overwrites a page word and a slab header, and starts a daemon over them.
fn damage(fixture: &mut Fixture, frame: u32, word: PageWord, usage: PageUse) {
    fixture.metadata.word(FrameId(frame)).unwrap().store(word.raw(), Ordering::Relaxed);
    let header = fixture.metadata.header(FrameId(frame)).unwrap();
    header.set_kind(usage);
    if matches!(usage, PageUse::Run { .. }) {
        header.set_owner(None);
    }
    fixture.restart();
}

fn live(page: u32) -> PageWord {
    PageWord::free(PageId(page)).apply(PageEvent::Allocated).unwrap()
}

#[test]
fn a_run_that_claims_pages_of_others_frees_only_its_own() {
    let mut fixture = Fixture::new();
    let object = fixture.alloc(64).unwrap();
    assert_eq!(object.page(page_size()), Some(PageId(100)));
    damage(&mut fixture, 15, live(115), PageUse::Run { index: 0, pages: 3 });
    damage(&mut fixture, 14, live(99), PageUse::Run { index: 0, pages: 5 });
    // Only the pages that exist were counted, so freeing them does not underflow.
    for page in [99, 115] {
        let head = GlobalAddr::new(PageId(page), 0, page_size()).unwrap();
        assert_eq!(fixture.free(head), Ok(()));
    }
    assert!(fixture.slab.is_allocated(object));
    assert_eq!(fixture.slab.allocated_bytes(), 64);
}

#[test]
fn a_page_in_two_frames_is_in_the_one_it_was_born_in() {
    let mut fixture = Fixture::new();
    let object = fixture.alloc(64).unwrap();
    damage(&mut fixture, 5, PageWord::free(PageId(100)), PageUse::Unused);
    assert_eq!(fixture.slab.free_frames(), FRAMES - 2);
    let all: BTreeSet<_> = std::iter::from_fn(|| fixture.alloc(64)).collect();
    assert!(!all.contains(&object), "it was handed out twice");
    assert!(all.iter().all(|addr| fixture.slab.is_allocated(*addr)));
}

#[test]
fn page_0_and_ids_at_the_end_are_no_trap() {
    let mut fixture = Fixture::new();
    damage(&mut fixture, 3, PageWord::free(PageId(0)), PageUse::Unused);
    damage(&mut fixture, 4, PageWord::free(PageId(u32::MAX)), PageUse::Unused);
    assert_eq!(fixture.slab.free_frames(), FRAMES - 1);
    assert!(fixture.alloc(20 * (64 << 10)).is_none());
    let all: Vec<_> = std::iter::from_fn(|| fixture.alloc(64 << 10)).collect();
    assert_eq!(all.len(), FRAMES as usize - 1);
    assert!(all.iter().all(|addr| !addr.is_null()));
    damage(&mut fixture, 4, live(u32::MAX), PageUse::Run { index: 0, pages: 2 });
    let head = GlobalAddr::new(PageId(u32::MAX), 0, page_size()).unwrap();
    assert_eq!(fixture.free(head), Ok(()));
}

#[test]
fn an_object_in_a_frozen_page_is_not_taken_back() {
    let mut fixture = Fixture::new();
    let object = fixture.alloc(64).unwrap();
    let frozen = live(100).apply(PageEvent::Frozen).unwrap();
    let class = SizeClass::for_bytes(64, page_size()).unwrap();
    damage(&mut fixture, 0, frozen, PageUse::Slab(class));
    assert!(fixture.slab.is_allocated(object), "it can be read");
    assert_eq!(fixture.free(object), Err(NotFreed::Moving));
    assert_eq!(fixture.slab.allocated_bytes(), 64);
}

#[test]
fn bits_behind_the_last_object_hide_no_object() {
    let mut fixture = Fixture::new();
    let first = fixture.alloc(32 << 10).unwrap();
    let class = SizeClass::for_bytes(32 << 10, page_size()).unwrap();
    fixture.metadata.bitmap(FrameId(0), class).unwrap()[0]
        .store(u64::MAX << 2 | 1, Ordering::Relaxed);
    fixture.restart();
    assert_eq!(fixture.slab.allocated_bytes(), 32 << 10);
    let second = fixture.alloc(32 << 10).unwrap();
    assert_eq!(second.page(page_size()), first.page(page_size()), "the page has room for two");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Compared with a plain set, with restarts in between: no objects overlap, none are lost.
    #[test]
    fn behaves_like_a_set_of_ranges(steps in proptest::collection::vec((0_u8..10, 1_u64..200_000), 1..200)) {
        let mut fixture = Fixture::new();
        let mut held: Vec<(GlobalAddr, u64)> = Vec::new();
        for (kind, number) in steps {
            match kind {
                0..=5 => if let Some(addr) = fixture.alloc(number) {
                    held.push((addr, number));
                },
                6..=8 if !held.is_empty() => {
                    let (addr, _) = held.swap_remove(usize::try_from(number).unwrap() % held.len());
                    prop_assert_eq!(fixture.free(addr), Ok(()));
                }
                9 => fixture.restart(),
                _ => fixture.drain(),
            }
            let mut end = 0;
            for (addr, bytes) in held.iter().copied().collect::<BTreeSet<_>>() {
                prop_assert!(fixture.slab.is_allocated(addr));
                prop_assert!(addr.raw() >= end, "objects overlap");
                end = addr.raw() + bytes;
            }
        }
        for (addr, _) in held {
            prop_assert_eq!(fixture.free(addr), Ok(()));
        }
        prop_assert_eq!(fixture.slab.allocated_bytes(), 0);
        fixture.slab.close_empty_pages().unwrap();
        fixture.drain();
        prop_assert_eq!(fixture.slab.free_frames(), FRAMES);
    }
}
