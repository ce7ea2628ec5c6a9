use super::*;

const PAGE: u64 = 64 << 10;

impl Fixture {
    fn alloc_fixed(&mut self, bytes: u64) -> Option<GlobalAddr> {
        let candidate = self.slab.peek_fixed(bytes).unwrap()?;
        self.slab.commit(candidate, None).unwrap().then_some(candidate.addr)
    }

    /// Extends a head until its extents have `pages` pages; returns the pages of each new extent.
    fn extend(&mut self, head: GlobalAddr, mut pages: u64) -> Vec<u32> {
        let mut parts = Vec::new();
        while pages > 0 {
            let Some(extent) = self.slab.extend(head, pages, true).unwrap() else { break };
            pages -= u64::from(extent.pages);
            parts.push(extent.pages);
        }
        parts
    }

    /// Frees the memory of the retired objects, which no process pins here.
    fn free_retired(&mut self) {
        for addr in self.slab.take_newly_retired() {
            self.slab.free_retired(addr).unwrap();
        }
    }
}

fn page_of(addr: GlobalAddr) -> PageId {
    addr.page(page_size()).unwrap()
}

#[test]
fn fixed_objects_have_pages_of_their_own_that_neither_move_nor_are_shared() {
    let mut fixture = Fixture::new();
    let (movable, fixed) = (fixture.alloc(64).unwrap(), fixture.alloc_fixed(64).unwrap());
    assert_ne!(page_of(movable), page_of(fixed));
    assert_eq!(fixture.alloc(64).map(page_of), Some(page_of(movable)));
    assert_eq!(fixture.alloc_fixed(64).map(page_of), Some(page_of(fixed)));
    assert!(fixture.slab.is_of_objects(page_of(movable)));
    assert!(!fixture.slab.is_of_objects(page_of(fixed)));
    let movable_pages: Vec<_> = fixture.slab.movable_pages(0, FRAMES).collect();
    assert_eq!(movable_pages, [page_of(movable)]);
    assert!(fixture.slab.is_fixed_object(fixed) && !fixture.slab.is_fixed_object(movable));
    assert!(fixture.slab.peek_fixed(PAGE + 1).unwrap().is_none(), "more than a page");
    let usage = fixture.slab.lookup(page_of(fixed)).unwrap().usage;
    let class = SizeClass::for_bytes(64, page_size()).unwrap();
    assert_eq!(PageUse::from_raw(usage, page_size()), PageUse::Fixed(class));
}

#[test]
fn a_freed_fixed_object_is_retired_and_its_memory_is_reused_later() {
    let mut fixture = Fixture::new();
    let object = fixture.alloc_fixed(64).unwrap();
    fixture.slab.free_retired(object).unwrap();
    assert!(fixture.slab.is_allocated(object), "it is not retired");
    assert_eq!(fixture.free(object), Ok(()));
    assert!(!fixture.slab.is_allocated(object));
    assert!(!fixture.slab.may_free(object, ObjectHolder::DAEMON));
    assert_eq!(fixture.free(object), Err(NotFreed::NotAllocated));
    assert_ne!(fixture.alloc_fixed(64), Some(object), "its memory was reused");
    // The mark outlives the daemon.
    fixture.restart();
    assert!(!fixture.slab.is_allocated(object));
    assert_eq!(fixture.free(object), Err(NotFreed::NotAllocated));
    assert_eq!(fixture.slab.take_newly_retired(), [object]);
    fixture.slab.free_retired(object).unwrap();
    assert_eq!(fixture.alloc_fixed(64), Some(object));
    assert!(fixture.slab.is_allocated(object));
}

#[test]
fn extents_belong_to_their_head_and_are_freed_with_it() {
    let mut fixture = Fixture::new();
    let head = fixture.alloc_fixed(64).unwrap();
    assert_eq!(fixture.extend(head, 3), [3]);
    assert_eq!(fixture.extend(head, 2), [2]);
    let extents = fixture.slab.extents_of(head).unwrap().to_vec();
    assert_eq!(extents.iter().map(|extent| extent.pages).collect::<Vec<_>>(), [3, 2]);
    for extent in &extents {
        assert!(!fixture.slab.is_allocated(extent.addr));
        assert_eq!(fixture.free(extent.addr), Err(NotFreed::NotAllocated));
    }
    fixture.restart();
    assert_eq!(fixture.slab.extents_of(head).unwrap(), extents);
    assert_eq!(fixture.slab.allocated_bytes(), 64 + 5 * PAGE);
    assert_eq!(fixture.free(head), Ok(()));
    assert!(fixture.slab.extents_of(head).is_err(), "a retired head is extended no more");
    fixture.restart();
    assert_eq!(fixture.slab.allocated_bytes(), 64 + 5 * PAGE, "readers may use them");
    fixture.free_retired();
    assert_eq!(fixture.slab.allocated_bytes(), 0);
    fixture.slab.close_empty_pages().unwrap();
    fixture.drain();
    assert_eq!(fixture.slab.free_frames(), FRAMES);
}

#[test]
fn what_fixed_memory_takes_is_counted_and_derived_again_after_a_restart() {
    let mut fixture = Fixture::new();
    let (head, other) = (fixture.alloc_fixed(64).unwrap(), fixture.alloc_fixed(256).unwrap());
    fixture.alloc(64).unwrap();
    assert_eq!(fixture.extend(head, 3), [3]);
    assert_eq!(fixture.extend(head, 2), [2]);
    let (objects, object_bytes, extents, extent_bytes) = (2, 64 + 256, 2, 5 * PAGE);
    let both = FixedUse { objects, object_bytes, extents, extent_bytes, ..FixedUse::default() };
    assert_eq!(fixture.slab.fixed_use(), both);
    fixture.free(head).unwrap();
    let one_retired = FixedUse { retired: 1, retired_bytes: 64 + 5 * PAGE, ..both };
    assert_eq!(fixture.slab.fixed_use(), one_retired);
    fixture.restart();
    assert_eq!(fixture.slab.fixed_use(), one_retired);
    fixture.free_retired();
    let left = FixedUse { objects: 1, object_bytes: 256, ..FixedUse::default() };
    assert_eq!(fixture.slab.fixed_use(), left);
    fixture.free(other).unwrap();
    fixture.free_retired();
    assert_eq!(fixture.slab.fixed_use(), FixedUse::default());
}

#[test]
fn only_fixed_objects_of_64_bytes_have_extents() {
    let mut fixture = Fixture::new();
    let (small, movable) = (fixture.alloc_fixed(32).unwrap(), fixture.alloc(64).unwrap());
    let run = fixture.alloc(2 * PAGE).unwrap();
    for addr in [small, movable, run, GlobalAddr::NULL, GlobalAddr::from_raw(u64::MAX)] {
        assert!(fixture.slab.extents_of(addr).is_err(), "{addr}");
    }
    let head = fixture.alloc_fixed(128).unwrap();
    assert!(fixture.slab.extents_of(head.add(64).unwrap()).is_err(), "inside of an object");
    assert_eq!(fixture.slab.extents_of(head), Ok(&[][..]));
}

/// A plain run in frames that had an extent, or a bitmap of all ones, has no owner.
#[test]
fn a_run_in_the_frames_of_an_extent_is_nobodys() {
    let mut fixture = Fixture::new();
    let head = fixture.alloc_fixed(64).unwrap();
    assert_eq!(fixture.extend(head, 15), [14], "one page has the head, and one stays");
    fixture.free(head).unwrap();
    fixture.free_retired();
    let big: Vec<_> = std::iter::from_fn(|| fixture.alloc(PAGE / 2)).collect();
    big.into_iter().for_each(|addr| fixture.free(addr).unwrap());
    fixture.slab.close_empty_pages().unwrap();
    fixture.drain();
    let run = fixture.alloc(16 * PAGE).unwrap();
    fixture.restart();
    assert_eq!(fixture.free(run), Ok(()));
}

/// Every second page of the rack is in use: no run is longer than one page.
#[test]
fn a_fragmented_rack_gives_all_of_its_pages_but_one_as_extents() {
    let mut fixture = Fixture::new();
    let pages: Vec<_> = std::iter::from_fn(|| fixture.alloc(PAGE)).collect();
    for addr in pages.iter().skip(1).step_by(2) {
        fixture.free(*addr).unwrap();
    }
    fixture.slab.close_empty_pages().unwrap();
    fixture.drain();
    let head = fixture.alloc_fixed(64).unwrap();
    assert_eq!(fixture.alloc(2 * PAGE), None, "no two free pages are neighbours");
    assert_eq!(fixture.slab.extend(head, 2, false).unwrap(), None);
    assert_eq!(fixture.extend(head, 8), [1; 6], "one page has the head, and one stays");
    assert_eq!(fixture.slab.free_frames(), 1);
    assert_eq!(fixture.alloc_fixed(128), None);
    assert!(fixture.alloc(128).is_some(), "the last page is for movable objects");
    fixture.restart();
    assert_eq!(fixture.slab.extents_of(head).unwrap().len(), 6);
}

/// An operation during which a daemon is killed.
#[derive(Clone, Copy, Debug)]
enum Doing {
    Alloc(u64),
    Extend(u64),
    Retire,
    FreeRetired,
    Drain,
}

/// Kills a daemon before each of its stores in turn. Afterwards the object is in use, retired or
/// free, and nothing else has changed.
#[test]
fn a_daemon_killed_between_any_two_stores_loses_no_fixed_object_and_no_extent() {
    let doings = [
        Doing::Alloc(16),
        Doing::Alloc(PAGE),
        Doing::Extend(1),
        Doing::Extend(4),
        Doing::Retire,
        Doing::FreeRetired,
        Doing::Drain,
    ];
    for doing in doings {
        for stores in 0.. {
            let mut fixture = Fixture::new();
            let (other, head) =
                (fixture.alloc_fixed(64).unwrap(), fixture.alloc_fixed(PAGE / 2).unwrap());
            assert_eq!((fixture.extend(other, 2), fixture.extend(head, 3)), (vec![2], vec![3]));
            if matches!(doing, Doing::FreeRetired | Doing::Drain) {
                fixture.free(head).unwrap();
            }
            if matches!(doing, Doing::Drain) {
                fixture.free_retired();
            }
            fixture.slab.stores_left.set(Some(stores));
            let mut made = None;
            match doing {
                Doing::Alloc(bytes) => {
                    let candidate = fixture.slab.peek_fixed(bytes).unwrap().unwrap();
                    made = Some(candidate.addr);
                    let _ = fixture.slab.commit(candidate, None).unwrap();
                }
                Doing::Extend(pages) => drop(fixture.slab.extend(head, pages, true).unwrap()),
                Doing::Retire => fixture.free(head).unwrap(),
                Doing::FreeRetired => fixture.free_retired(),
                Doing::Drain => fixture.drain(),
            }
            let was_killed = fixture.slab.stores_left.get() == Some(0);
            fixture.restart();
            let what = format!("{doing:?}, {stores} stores");
            let others = fixture.slab.extents_of(other).unwrap().to_vec();
            assert_eq!(others.iter().map(|one| one.pages).collect::<Vec<_>>(), [2], "{what}");
            let made = made.filter(|addr| fixture.slab.is_allocated(*addr));
            if fixture.slab.is_allocated(head) {
                let extents = fixture.slab.extents_of(head).unwrap();
                assert_eq!(extents.first().map(|one| one.pages), Some(3), "{what}");
            } else {
                assert!(
                    matches!(doing, Doing::Retire | Doing::FreeRetired | Doing::Drain),
                    "{what}"
                );
            }
            fixture.free_retired();
            for addr in [Some(other), Some(head), made].into_iter().flatten() {
                let is_there = fixture.slab.is_allocated(addr);
                assert_eq!(fixture.free(addr).is_ok(), is_there, "{what}");
            }
            fixture.free_retired();
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

/// Metadata that no daemon writes.
#[test]
fn an_extent_whose_owner_is_no_head_is_freed() {
    use rackpool_shm::extent_owner::ExtentOwner;

    let mut fixture = Fixture::new();
    let movable = fixture.alloc(64).unwrap();
    let small = fixture.alloc_fixed(16).unwrap();
    let place =
        |addr: GlobalAddr| u64::from(page_of(addr).0 - 100) * PAGE + addr.offset(page_size());
    for head in [place(movable), place(small), 15 * PAGE, u64::from(FRAMES) * PAGE, (1 << 48) - 64]
    {
        let run = fixture.alloc(2 * PAGE).unwrap();
        let frame = fixture.slab.lookup(page_of(run)).unwrap().frame;
        let owner = ExtentOwner::new(head, 0).unwrap();
        fixture.metadata.header(frame).unwrap().set_owner(Some(owner));
        fixture.restart();
        assert_eq!(fixture.slab.allocated_bytes(), 64 + 16, "{head}");
        fixture.drain();
    }
}

#[test]
fn a_damaged_page_word_that_names_no_page_is_no_extent() {
    let mut fixture = Fixture::new();
    let header = fixture.metadata.header(FrameId(3)).unwrap();
    header.set_kind(PageUse::Run { index: 0, pages: 1 });
    header.set_owner(rackpool_shm::extent_owner::ExtentOwner::new(0, 0));
    fixture.metadata.word(FrameId(3)).unwrap().store(live(0).raw(), Ordering::Relaxed);
    fixture.restart();
    assert_eq!((fixture.slab.free_frames(), fixture.slab.allocated_bytes()), (FRAMES - 1, 0));
}

#[test]
fn bytes_of_fixed_memory_have_a_place_if_they_belong_to_the_head() {
    let mut fixture = Fixture::new();
    let (head, other) = (fixture.alloc_fixed(64).unwrap(), fixture.alloc_fixed(64).unwrap());
    let (run, movable) = (fixture.alloc(2 * PAGE).unwrap(), fixture.alloc(64).unwrap());
    assert_eq!((fixture.extend(head, 3), fixture.extend(other, 1)), (vec![3], vec![1]));
    let [extent, others] = [head, other].map(|head| fixture.slab.extents_of(head).unwrap()[0].addr);
    let at = |addr: GlobalAddr, offset| addr.add(offset).unwrap();
    let frame = fixture.slab.find(page_of(extent)).unwrap().frame;
    let start = u64::from(frame.0) * PAGE;
    let place = |addr, len| fixture.slab.fixed_place(head, addr, len);
    assert_eq!(place(extent, 1), Some(start));
    assert_eq!(place(at(extent, 2 * PAGE + 5), 64), Some(start + 2 * PAGE + 5));
    let whole = u32::try_from(PAGE).unwrap();
    assert_eq!(place(at(extent, PAGE), whole), Some(start + PAGE));
    assert_eq!(place(at(extent, 1), whole), None, "two pages");
    assert_eq!((place(head, 64).is_some(), place(head, 65)), (true, None));
    for addr in [other, others, run, movable, at(extent, 3 * PAGE), GlobalAddr::NULL] {
        assert_eq!(place(addr, 8), None, "{addr}");
    }
    for no_head in [extent, run, movable, GlobalAddr::NULL, at(head, 8)] {
        assert_eq!(fixture.slab.fixed_place(no_head, extent, 8), None, "{no_head}");
    }
}
