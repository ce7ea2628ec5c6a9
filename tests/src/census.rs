//! All objects in use, read from the racks' metadata, which tells more than the daemons' metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackpool_client::{GlobalAddr, PageSize, RackId};
use rackpool_model::{FrameId, PageState, PageWord, SizeClass};
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::marks::{Mark, Marks};
use rackpool_shm::metadata::{MetadataLayout, PageUse, RackMetadata};
use rackpool_shm::{Mapping, file};

use crate::client::program;
use crate::pool::TestPool;
use rackpool_testing::wait::{TIMEOUT, try_wait_until, wait_until};

/// Value of a peer record's request word when no exchange is under way; docs/design/rack-memory.md.
const NOTHING_ASKED: u64 = 0;

/// What is in use in a pool in which nothing changes.
#[derive(Debug)]
pub struct Census {
    /// The objects, with the bytes that each takes.
    pub objects: BTreeMap<GlobalAddr, u64>,
    /// The client files. The daemon removes a client's file once it has reclaimed everything that
    /// the client held.
    clients: BTreeSet<PathBuf>,
}

impl Census {
    /// Takes a census of the pool.
    #[must_use]
    pub fn of(pool: &TestPool) -> Self {
        Self { objects: objects(pool), clients: clients(pool) }
    }

    /// Returns true once the files of all clients that opened the pool after this census are gone.
    #[must_use]
    pub fn newcomers_are_gone(&self, pool: &TestPool) -> bool {
        clients(pool).is_subset(&self.clients)
    }
}

/// The number of client files of a rack.
#[must_use]
pub fn client_files(pool: &TestPool, rack: u16) -> usize {
    clients_of(pool, rack).count()
}

fn clients(pool: &TestPool) -> BTreeSet<PathBuf> {
    (0..pool.cluster.options().all_daemons()).flat_map(|rack| clients_of(pool, rack)).collect()
}

fn clients_of(pool: &TestPool, rack: u16) -> impl Iterator<Item = PathBuf> {
    let files = std::fs::read_dir(pool.rack_dir(rack)).expect("the rack's folder");
    files.map(|entry| entry.expect("an entry").path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(RackDirectory::client_of).is_some()
    })
}

/// Returns true while no rack requests objects from another rack or sends objects home.
///
/// Objects that an earlier daemon requested are in use and have no owner until its successor sends
/// them home, even when the client that needed them is long gone.
#[must_use]
pub fn exchanges_have_ended(pool: &TestPool) -> bool {
    let racks = (0..pool.cluster.options().all_daemons()).map(RackId);
    racks.clone().all(|rack| {
        let (metadata, ..) = metadata_of(pool, rack);
        let has_ended = |other| {
            let asked = &metadata.peer(other).expect("a rack").asked;
            asked.state.load(Ordering::Acquire) == NOTHING_ASKED
        };
        racks.clone().all(has_ended)
    })
}

/// The objects in use in all racks, with the bytes that each takes.
#[must_use]
pub fn objects(pool: &TestPool) -> BTreeMap<GlobalAddr, u64> {
    (0..pool.cluster.options().all_daemons())
        .flat_map(|rack| objects_of(pool, RackId(rack)))
        .collect()
}

/// Waits until every frame is free or holds a page of small objects without an object in use. The
/// test must not allocate meanwhile.
///
/// # Panics
/// When a frame stays in use for longer than [`TIMEOUT`].
#[track_caller]
pub fn wait_until_frames_are_free(pool: &TestPool) {
    let kept =
        || (0..pool.cluster.options().all_daemons()).flat_map(|rack| kept_of(pool, RackId(rack)));
    if !try_wait_until(TIMEOUT, || kept().next().is_none()) {
        panic!("frames that nobody uses are not free: {:?}", kept().collect::<Vec<_>>());
    }
}

/// The frames of a rack that are neither free nor a page of small objects without an object in use.
fn kept_of(pool: &TestPool, rack: RackId) -> Vec<(RackId, FrameId, Option<PageState>)> {
    let (metadata, page_size, frames) = metadata_of(pool, rack);
    let is_kept = |frame: &(FrameId, Option<PageState>)| match *frame {
        (_, Some(PageState::Free)) => false,
        (frame, Some(PageState::Live)) => {
            let kind = metadata.header(frame).expect("a frame").kind();
            match PageUse::from_raw(kind, page_size) {
                PageUse::Slab(class) | PageUse::Fixed(class) => {
                    used(&metadata, frame, class).next().is_some()
                }
                _ => true,
            }
        }
        _ => true,
    };
    let states = (0..frames).map(FrameId).map(|frame| {
        let word = metadata.word(frame).expect("a frame").load(Ordering::Acquire);
        (frame, PageWord::from_raw(word).state())
    });
    states.filter(is_kept).map(|(frame, state)| (rack, frame, state)).collect()
}

/// The fixed objects in use with their racks, also those that programs own or have allocated ahead
/// and those that are retired.
#[must_use]
pub fn fixed(pool: &TestPool) -> Vec<(RackId, GlobalAddr)> {
    let of_rack = |rack| {
        let (metadata, page_size, frames) = metadata_of(pool, rack);
        let of_frame = |frame| {
            let word = metadata.word(frame).expect("a frame").load(Ordering::Acquire);
            let (page, state) = (PageWord::from_raw(word).page(), PageWord::from_raw(word).state());
            let kind = metadata.header(frame).expect("a frame").kind();
            let PageUse::Fixed(class) = PageUse::from_raw(kind, page_size) else { return vec![] };
            let used = used(&metadata, frame, class).filter(|_| state == Some(PageState::Live));
            let addr = |index| GlobalAddr::new(page, index * class.bytes(), page_size);
            used.map(|index| (rack, addr(index).expect("a small pool"))).collect()
        };
        (0..frames).map(FrameId).flat_map(of_frame).collect::<Vec<_>>()
    };
    (0..pool.cluster.options().all_daemons()).map(RackId).flat_map(of_rack).collect()
}

/// Waits until no object of any store is left, nor a part of one. Removes the boards of agents
/// first, which lie in fixed memory as objects do. No program has them open.
///
/// # Panics
/// If something is left, or a board can't be removed.
#[track_caller]
pub fn wait_until_no_object_is_left(pool: &TestPool) {
    let client = pool.open(0);
    for rack in 0..pool.cluster.options().all_daemons() {
        let board = format!(".casts-{rack}");
        if client.root(&board).expect("a pool that serves").is_some() {
            let mut command = Command::new(program("rackpool"));
            let removal = command.args(["table", "rm", &board, "--dir"]).arg(pool.dir());
            let status = removal.stdout(Stdio::null()).status();
            assert!(status.expect("a program").success(), "{board}");
        }
    }
    drop(client);
    wait_until("nothing of an object is left", TIMEOUT, || fixed(pool).is_empty());
}

/// The number of retired objects, whose memory is not reused yet.
#[must_use]
pub fn retired(pool: &TestPool) -> usize {
    let of_rack = |rack| {
        let (metadata, page_size, frames) = metadata_of(pool, rack);
        let path = RackDirectory::new(pool.dir(), rack).marks();
        let file = file::open(&path).expect("a readable file").expect("the rack's marks");
        let mapping = Mapping::new(&file, Marks::bytes(page_size, frames)).expect("a mapping");
        let marks = Marks::new(Arc::new(mapping), page_size, frames).expect("a whole file");
        let of_frame = |frame| {
            let header = metadata.header(frame).expect("a frame");
            let word = metadata.word(frame).expect("a frame").load(Ordering::Acquire);
            let is_live = PageWord::from_raw(word).state() == Some(PageState::Live);
            let PageUse::Fixed(class) = PageUse::from_raw(header.kind(), page_size) else {
                return 0;
            };
            let is_retired = |index: &u64| {
                let index = u32::try_from(*index).expect("a small page");
                is_live && marks.of(frame, class, index).is_some_and(Mark::is_retired)
            };
            used(&metadata, frame, class).filter(is_retired).count()
        };
        (0..frames).map(FrameId).map(of_frame).sum::<usize>()
    };
    (0..pool.cluster.options().all_daemons()).map(RackId).map(of_rack).sum()
}

/// The state of each page that is not free, with its rack.
#[must_use]
pub fn pages(pool: &TestPool) -> Vec<(RackId, PageState)> {
    let racks = (0..pool.cluster.options().all_daemons()).map(RackId);
    let of_rack = |rack| {
        let (metadata, _, frames) = metadata_of(pool, rack);
        let states = (0..frames).map(FrameId).filter_map(|frame| {
            let word = metadata.word(frame).expect("a frame").load(Ordering::Acquire);
            PageWord::from_raw(word).state().filter(|state| *state != PageState::Free)
        });
        states.map(|state| (rack, state)).collect::<Vec<_>>()
    };
    racks.flat_map(of_rack).collect()
}

/// A rack's metadata, its page size, and how many frames it has.
#[must_use]
pub fn metadata_of(pool: &TestPool, rack: RackId) -> (RackMetadata, PageSize, u32) {
    let path = RackDirectory::new(pool.dir(), rack).metadata();
    let found = file::open(&path).expect("a readable file").expect("the rack's metadata");
    let options = pool.cluster.options();
    let page_size = PageSize::from_bytes(options.page_size).expect("a page size");
    let frames =
        u32::try_from(options.memory_of_daemon() / options.page_size).expect("a small rack");
    let layout = MetadataLayout::new(page_size, frames);
    let mapping = Mapping::new(&found, layout.bytes()).expect("a mapping");
    (RackMetadata::new(mapping, layout).expect("a whole file"), page_size, frames)
}

fn objects_of(pool: &TestPool, rack: RackId) -> Vec<(GlobalAddr, u64)> {
    let (metadata, page_size, frames) = metadata_of(pool, rack);
    let mut objects = Vec::new();
    for frame in (0..frames).map(FrameId) {
        let word = metadata.word(frame).expect("a frame").load(Ordering::Acquire);
        let (page, state) = (PageWord::from_raw(word).page(), PageWord::from_raw(word).state());
        if !matches!(state, Some(PageState::Live | PageState::Shared)) {
            continue;
        }
        let kind = metadata.header(frame).expect("a frame").kind();
        let addr = |offset| GlobalAddr::new(page, offset, page_size).expect("a small pool");
        match PageUse::from_raw(kind, page_size) {
            // An extent is a part of its head.
            PageUse::Run { index: 0, .. }
                if metadata.header(frame).expect("a frame").owner().is_some() => {}
            PageUse::Run { index: 0, pages } => {
                objects.push((addr(0), u64::from(pages) * page_size.bytes()));
            }
            PageUse::Slab(class) | PageUse::Fixed(class) => objects.extend(
                used(&metadata, frame, class)
                    .map(|index| (addr(index * class.bytes()), class.bytes())),
            ),
            _ => {}
        }
    }
    objects
}

fn used(metadata: &RackMetadata, frame: FrameId, class: SizeClass) -> impl Iterator<Item = u64> {
    let words = metadata.bitmap(frame, class).expect("a frame");
    let words: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    (0_u64..).zip(words).flat_map(|(index, word)| {
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit)
    })
}
