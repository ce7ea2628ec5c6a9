//! Counts which accesses wait for the extra latency of emulated CXL memory.

use rackpool_model::{PageEvent, PageSize};

use super::*;
use crate::delay::waits;
use crate::marks::ObjectHolder;
use crate::superblock::Superblock;

const FRAMES: u32 = 4;
const PAGE_SIZE: PageSize = PageSize::DEFAULT;
const PAGE: PageId = PageId(1);
/// A page of another rack of which this rack has a copy.
const COPIED: PageId = PageId(77);
const FRAME: FrameId = FrameId(1);
const POOL: NonZeroU64 = NonZeroU64::MIN;

fn permit() -> Permit {
    Permit::new(POOL).unwrap()
}

fn file(bytes: u64) -> std::fs::File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    file
}

/// A rack's memory with one page in use, and a thread's window into it.
struct Rack {
    window: LocalWindow,
    word: PageWord,
    /// The daemon's mapping.
    metadata: Mapping,
    frames: Arc<Mapping>,
}

fn address(page: PageId, offset: u64) -> GlobalAddr {
    GlobalAddr::from_raw((u64::from(page.0) << PAGE_SIZE.bits()) + offset)
}

/// `extra_ns` is the noted latency; `None` for a file in which the daemon has noted none.
fn rack(extra_ns: Option<u32>, barrier: Barrier) -> Rack {
    let layout = MetadataLayout::new(PAGE_SIZE, FRAMES);
    let noted = file(layout.bytes());
    let metadata = Mapping::new(&noted, layout.bytes()).unwrap();
    if let Some(ns) = extra_ns {
        metadata.view::<Superblock>(0).unwrap().set_extra_latency_ns(ns);
    }
    let word = PageWord::free(PAGE).apply(PageEvent::Allocated).unwrap();
    metadata.write(layout.word(FRAME), &word.raw().to_le_bytes()).unwrap();
    let bytes = u64::from(FRAMES) * PAGE_SIZE.bytes();
    let frames = Arc::new(Mapping::new(file(bytes), bytes).unwrap());
    let owner = Arc::new(Mapping::new(file(8192), 8192).unwrap());
    let offsets = ThreadOffsets { access: 0, samples: 4096 };
    let read_only = Arc::new(ReadOnlyMapping::new(&noted, layout.bytes()).unwrap());
    let latency = ExtraLatency::noted_in(&read_only).unwrap();
    let marks_bytes = Marks::bytes(PAGE_SIZE, FRAMES);
    let marks = Arc::new(Mapping::new(file(marks_bytes), marks_bytes).unwrap());
    let marks = Marks::new(marks, PAGE_SIZE, FRAMES).unwrap();
    let mut window = LocalWindow::new(
        Arc::clone(&frames),
        read_only,
        &layout,
        marks,
        ThreadMemory { file: owner, offsets },
        barrier,
        latency,
    )
    .unwrap();
    let class = SizeClass::for_bytes(64, PAGE_SIZE).unwrap();
    window.admit(PAGE, FRAME, word, PageUse::Slab(class));
    window.bring_to_front(POOL);
    Rack { window, word, metadata, frames }
}

/// Number of delays in `work`.
fn waited(work: impl FnOnce()) -> u64 {
    let before = waits();
    work();
    waits() - before
}

/// The name of an access, and the access.
type Named<'a> = (&'static str, Box<dyn Fn() + 'a>);

/// Each way in which a program accesses the bytes of frames, once.
fn accesses(rack: &Rack) -> Vec<Named<'_>> {
    let window = &rack.window;
    let at = address(PAGE, 128);
    let in_front = move |straight: bool, slow_path: &dyn Fn() -> bool| {
        assert!(straight || slow_path(), "it has to be reached");
    };
    vec![
        ("read 1 B", Box::new(move || assert!(window.read(at, &mut [0])))),
        ("read 2 KiB", Box::new(move || assert!(window.read(at, &mut [0; 2048])))),
        ("write 8 B", Box::new(move || assert!(window.write(at, &[1; 8])))),
        ("write 3,000 B", Box::new(move || assert!(window.write(at, &[1; 3000])))),
        (
            "change",
            Box::new(move || {
                assert!(window.change(at, AtomicOperation::FetchAndAdd { delta: 1 }).is_some());
            }),
        ),
        (
            "front read",
            Box::new(move || {
                let again = || read_slow_path(&permit(), at, &mut [0; 64]);
                in_front(read(&permit(), at, &mut [0; 64]), &again);
            }),
        ),
        (
            "front write",
            Box::new(move || {
                in_front(write(&permit(), at, &[1; 64]), &|| {
                    write_slow_path(&permit(), at, &[1; 64])
                });
            }),
        ),
        (
            "enter",
            Box::new(move || {
                let guard = window.enter(FRAME, AccessIntent::Read, rack.word).unwrap().unwrap();
                let _cell = window.cell(FRAME, 64).unwrap();
                drop(guard);
            }),
        ),
        // The copy is not published; the read still reaches the memory.
        (
            "read a copy",
            Box::new(move || {
                let _ = window.read_copy(FRAME, 5, 0, &mut [0; 8]);
            }),
        ),
    ]
}

struct Anywhere;

// SAFETY: it does nothing.
unsafe impl Note for Anywhere {
    fn note(self, _class: usize, _object: u64) -> bool {
        true
    }
}

/// Operations that access no bytes of frames, or that a program does not execute.
fn others(rack: &mut Rack) {
    let at = address(PAGE, 128);
    let stale = PageWord::free(PAGE);
    let window = &rack.window;
    window.prefetch(at, AccessIntent::Read);
    assert!(window.look(FRAME).is_some() && window.word(FRAME).is_some());
    let _ = take_back(&permit(), at, ObjectHolder::DAEMON, Anywhere);
    let _ = hand_out(&permit(), at.raw());
    assert!(!window.read(address(COPIED, 0), &mut [0; 8]), "a page that is not known");
    assert!(!window.write(address(PAGE, PAGE_SIZE.bytes() - 4), &[0; 8]), "beyond the page");
    assert!(window.enter(FRAME, AccessIntent::Write, stale).unwrap().is_err(), "kept out");
    window.clear();
    // The daemon's own accesses, including those for other racks.
    rack.frames.write(4096, &[7; 64]).unwrap();
    rack.frames.read(4096, &mut [0; 64]).unwrap();
    rack.metadata.write(4096 + 8, &[0; 8]).unwrap();
    rack.window.forget(PageId(3));
    rack.window.admit(PageId(3), FrameId(3), rack.word, PageUse::Unused);
}

#[test]
fn no_access_waits_unless_the_daemon_was_told_to_emulate_a_distance() {
    for barrier in [Barrier::Light, Barrier::Full] {
        for noted in [None, Some(0)] {
            let mut rack = rack(noted, barrier);
            for _ in 0..1000 {
                for (what, access) in accesses(&rack) {
                    assert_eq!(waited(access), 0, "{what}");
                }
            }
            assert_eq!(waited(|| others(&mut rack)), 0);
        }
    }
}

#[test]
fn each_access_waits_once_and_nothing_else_does() {
    for barrier in [Barrier::Light, Barrier::Full] {
        let mut rack = rack(Some(10), barrier);
        // Often enough that each access has been sampled at least once.
        for _ in 0..1000 {
            for (what, access) in accesses(&rack) {
                assert_eq!(waited(access), 1, "{what}");
            }
        }
        assert_eq!(waited(|| others(&mut rack)), 0);
    }
}

#[test]
fn an_access_finds_the_pages_of_linked_windows_while_their_pool_is_permitted() {
    let read = |addr| {
        let mut bytes = [0; 8];
        let found =
            super::read(&permit(), addr, &mut bytes) || read_slow_path(&permit(), addr, &mut bytes);
        found.then_some(u64::from_le_bytes(bytes))
    };
    let (mut sibling, mut own) = (rack(None, Barrier::Light), rack(None, Barrier::Light));
    let at = address(PAGE, 64);
    sibling.frames.write((1 << PAGE_SIZE.bits()) + 64, &7_u64.to_le_bytes()).unwrap();
    own.window.forget(PAGE);
    assert_eq!(read(at), None, "it is in the part of a sibling that is not linked");
    let second = POOL.saturating_add(1);
    let other = Permit::new(second).unwrap();
    own.window.link(&mut sibling.window, other.clone(), second);
    assert_eq!(read(at), Some(7));
    assert!(super::write(&permit(), at, &8_u64.to_le_bytes()));
    assert_eq!(super::change(&permit(), at, AtomicOperation::FetchAndAdd { delta: 2 }), Some(8));
    assert_eq!(read(at), Some(10));
    other.revoke();
    assert_eq!(read(at), None, "the connection to the sibling has ended");
    drop(sibling);
    assert_eq!(read(at), None);
}

#[test]
fn a_window_may_be_dropped_before_the_ones_it_is_linked_to_or_after() {
    for is_first in [true, false] {
        let (mut one, mut other) = (rack(None, Barrier::Light), rack(None, Barrier::Light));
        let link = |one: &mut Rack, other: &mut Rack| {
            one.window.link(&mut other.window, permit(), POOL);
        };
        link(&mut one, &mut other);
        link(&mut one, &mut other);
        assert_eq!(one.window.core().linked.len(), 1, "linked once");
        if is_first {
            drop(one);
            assert!(other.window.core().linked_to.is_none());
        } else {
            drop(other);
            assert!(one.window.core().linked.is_empty());
        }
    }
}
