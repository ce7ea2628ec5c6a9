use std::collections::BTreeSet;

use proptest::prelude::*;
use rackpool_shm::metadata::MetadataLayout;
use rackpool_shm::{Mapping, file};

use super::*;

const FRAMES: u32 = 16;

fn page_size() -> PageSize {
    PageSize::from_bytes(64 << 10).unwrap()
}

struct Fixture {
    _folder: tempfile::TempDir,
    metadata: Arc<RackMetadata>,
    slab: Slab,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let layout = MetadataLayout::new(page_size(), FRAMES);
        let file = file::create(&folder.path().join("metadata"), layout.bytes()).unwrap();
        let mapping = Mapping::new(&file, layout.bytes()).unwrap();
        let metadata = Arc::new(RackMetadata::new(mapping, layout).unwrap());
        for index in 0..FRAMES {
            let word = PageWord::free(PageId(100 + index));
            metadata.word(FrameId(index)).unwrap().store(word.raw(), Ordering::Relaxed);
        }
        let slab = Slab::adopt(Arc::clone(&metadata), page_size(), PageId(100)).unwrap();
        Self { _folder: folder, metadata, slab }
    }

    fn restart(&mut self) {
        self.slab = Slab::adopt(Arc::clone(&self.metadata), page_size(), PageId(100)).unwrap();
    }

    fn alloc(&mut self, bytes: u64) -> Option<GlobalAddr> {
        let candidate = self.slab.peek(bytes).unwrap()?;
        self.slab.commit(candidate).unwrap();
        Some(candidate.addr)
    }

    fn free(&mut self, addr: GlobalAddr) -> Result<(), NotAllocated> {
        self.slab.free(addr).unwrap()
    }

    fn drain(&mut self) {
        for frame in self.slab.take_leaving() {
            self.slab.drained(frame).unwrap();
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
    assert_eq!(fixture.free(addr.add(16).unwrap()), Err(NotAllocated));
    assert_eq!(fixture.free(addr), Ok(()));
    assert_eq!(fixture.free(addr), Err(NotAllocated));
    assert_eq!(fixture.free(GlobalAddr::NULL), Err(NotAllocated));
    assert_eq!(fixture.free(GlobalAddr::from_raw(u64::MAX)), Err(NotAllocated));
}

#[test]
fn runs_have_consecutive_pages_and_come_back_whole() {
    let mut fixture = Fixture::new();
    let run = fixture.alloc(3 * (64 << 10)).unwrap();
    let page = run.page(page_size()).unwrap();
    for index in 0..3 {
        let (_, word, usage) = fixture.slab.lookup(PageId(page.0 + index)).unwrap();
        assert!(word.is_writable());
        let expected = PageUse::Run { index, pages: 3 };
        assert_eq!(PageUse::from_raw(usage, page_size()), expected);
    }
    let middle = GlobalAddr::new(PageId(page.0 + 1), 0, page_size()).unwrap();
    assert_eq!(fixture.free(middle), Err(NotAllocated));
    assert_eq!(fixture.free(run), Ok(()));
    fixture.drain();
    assert_eq!(fixture.slab.free_frames(), FRAMES);
    assert_eq!(fixture.alloc(16 * (64 << 10)).map(|addr| addr.raw()), Some(100 << 16));
    assert_eq!(fixture.alloc(16), None, "the rack is full");
}

#[test]
fn a_run_cut_short_by_a_crash_is_undone() {
    for after in 1..3 {
        let mut fixture = Fixture::new();
        fixture.slab.crash_in_commit_run(PageId(100), 3, after);
        fixture.restart();
        fixture.drain();
        assert_eq!(fixture.slab.free_frames(), FRAMES, "after {after} pages");
        assert_eq!(fixture.slab.allocated_bytes(), 0);
    }
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Against a plain set, with restarts in between: nothing overlaps, nothing is lost.
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
