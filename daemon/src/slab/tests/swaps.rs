//! A swap between the allocators of two racks, one of which is killed before each store to its
//! metadata: page word, record, header and bitmap.

use std::collections::VecDeque;
use std::time::Duration;

use rackpool_model::{FrameWord, Incarnation, PageId, PageWord, RackId};
use rackpool_proto::Time;
use rackpool_proto::heat::Found;
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::swap::{Frames, PeerAction, PeerEvent, Quiesce, SwapPeer, SwapRules};
use rackpool_wire::swap::{FromServer, SwapId, ToServer};

use super::*;

const SWAP: SwapId = SwapId(1);
const SIZE: u64 = 3000;

/// The machine's view of the memory.
struct View<'a> {
    slab: &'a Slab,
    gives_free: bool,
}

impl Frames for View<'_> {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        self.slab.find(page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.slab.word_of(frame)
    }

    fn spare(&self) -> Option<FrameId> {
        self.slab.spare()
    }

    fn free_pages(&self) -> impl Iterator<Item = PageId> {
        self.slab.free_pages().filter(|_| self.gives_free)
    }

    fn coldest(&self, _: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.slab.movable_pages(0, FRAMES).next()
    }

    fn heat(&self, _: PageId) -> Found {
        Found { milli: 1000, hot: false, read_hot: false, written: false }
    }

    fn stays(&self, page: PageId) -> bool {
        !self.slab.is_of_objects(page)
    }
}

struct Side {
    fixture: Fixture,
    first: u32,
    machine: SwapPeer,
    /// Whether it gives a free page for a hot one.
    gives_free: bool,
    lives: u64,
}

impl Side {
    fn new(first: u32) -> Self {
        let fixture = Fixture::from_page(first);
        let machine = restore(&fixture, Time::ZERO, 1);
        Self { fixture, first, machine, gives_free: false, lives: 1 }
    }

    fn restart(&mut self, now: Time) {
        self.fixture.restart_from(self.first);
        self.lives += 1;
        self.machine = restore(&self.fixture, now, self.lives);
    }

    fn is_killed(&self) -> bool {
        self.fixture.slab.stores_left.get() == Some(0)
    }
}

fn restore(fixture: &Fixture, now: Time, life: u64) -> SwapPeer {
    let words = fixture.metadata.swaps().unwrap();
    let records = std::array::from_fn(|slot| {
        std::array::from_fn(|word| words[slot].words[word].load(Ordering::Relaxed))
    });
    SwapPeer::restore(now, SwapRules::DEFAULT, Incarnation(life << 32), &records, Sound)
}

/// Two racks and the metadata server between them. Messages are lost only in a crash.
struct Pair {
    sides: [Side; 2],
    inputs: VecDeque<(usize, PeerEvent)>,
    begun: bool,
    committed: Option<bool>,
    now: Time,
}

impl Pair {
    fn server_got(&mut self, from: usize, message: ToServer) {
        let answer = match message {
            ToServer::Request { nonce, .. } if !self.begun => {
                self.begun = true;
                FromServer::Granted { swap: SWAP, nonce, home: RackId(0) }
            }
            ToServer::Request { .. } => return,
            ToServer::Abort { .. } => {
                self.committed.get_or_insert(false);
                return;
            }
            ToServer::Commit { .. } => {
                let committed = *self.committed.get_or_insert(true);
                let decided = FromServer::Decision { swap: SWAP, committed };
                self.inputs.push_back((1 - from, PeerEvent::ServerSent(decided)));
                decided
            }
            ToServer::Outcome { .. } => {
                let committed = *self.committed.get_or_insert(false);
                FromServer::Decision { swap: SWAP, committed }
            }
        };
        self.inputs.push_back((from, PeerEvent::ServerSent(answer)));
    }

    fn act(&mut self, side: usize, action: PeerAction) {
        let slab = &mut self.sides[side].fixture.slab;
        let event = match action {
            PeerAction::TellServer(message) => return self.server_got(side, message),
            PeerAction::TellRack(_, between) => {
                let from = RackId(u16::try_from(side).unwrap());
                return self.inputs.push_back((1 - side, PeerEvent::RackSent(from, between)));
            }
            PeerAction::StoreRecord { slot, words } => {
                return slab.note_swap(slot, &words).unwrap();
            }
            PeerAction::EraseRecord { slot } => return slab.erase_swap(slot).unwrap(),
            PeerAction::StoreWord(frame, word) => return slab.follow_swap(frame, word).unwrap(),
            PeerAction::Quiesce { swap, page, who, .. } => {
                if who == Quiesce::Writers {
                    // A client always waits to write a page that leaves.
                    self.inputs.push_back((side, PeerEvent::WriteWanted(page)));
                }
                PeerEvent::Quiesced(swap, who)
            }
            PeerAction::SendDirtyLines { swap, frame: theirs, known, .. } => {
                let from = RackId(u16::try_from(side).unwrap());
                let came = PeerEvent::DirtyLinesReceived { from, swap, theirs, known };
                return self.inputs.push_back((1 - side, came));
            }
            PeerAction::PrefetchLease { page, .. } => PeerEvent::LeasePrefetched(page),
            PeerAction::Copy { swap, ours, .. } => {
                let word = slab.word_of(ours).unwrap();
                let other = &self.sides[1 - side].fixture.slab;
                let contents = other.contents(word.page(), word.epoch()).unwrap();
                let slab = &self.sides[side].fixture.slab;
                let whole = contents.is_some_and(|c| slab.take_contents(ours, &c).unwrap().is_ok());
                PeerEvent::Copied { swap, whole }
            }
            // The contents of objects do not concern the allocator.
            PeerAction::CancelQuiesce(..)
            | PeerAction::ApplyDirtyLines { .. }
            | PeerAction::Record(_) => return,
        };
        self.inputs.push_back((side, event));
    }

    fn step(&mut self, side: usize, event: PeerEvent) {
        let now = self.now;
        let Side { fixture, machine, gives_free, .. } = &mut self.sides[side];
        machine.handle(now, &View { slab: &fixture.slab, gives_free: *gives_free }, event);
        while let Some(action) = self.sides[side].machine.poll() {
            self.act(side, action);
            if self.sides[side].is_killed() {
                self.inputs.retain(|(to, _)| *to != side);
                self.sides[side].restart(now);
            }
        }
    }

    /// Runs until there is nothing left to do.
    fn run(&mut self) {
        for _ in 0..10_000 {
            while let Some((side, event)) = self.inputs.pop_front() {
                self.step(side, event);
            }
            if self.sides.iter().all(|side| side.machine.deadline().is_none()) {
                return;
            }
            self.now = self.now.after(Duration::from_millis(5));
            self.inputs.extend([(0, PeerEvent::DeadlinePassed), (1, PeerEvent::DeadlinePassed)]);
        }
        panic!("the swap does not end");
    }
}

/// The home has a page of objects, the requester another one or a free page; the requester requests
/// the home's page.
fn pair(live: bool) -> (Pair, Vec<GlobalAddr>) {
    let mut sides = [Side::new(100), Side::new(500)];
    let mut held: Vec<_> = (0..9).map(|_| sides[0].fixture.alloc(SIZE).unwrap()).collect();
    if live {
        held.extend((0..7).map(|_| sides[1].fixture.alloc(SIZE).unwrap()));
    } else {
        sides[1].gives_free = true;
    }
    let inputs = VecDeque::from([(
        1,
        PeerEvent::Heated { page: PageId(100), milli: 5000, read_hot: false },
    )]);
    let pair = Pair { sides, inputs, begun: false, committed: None, now: Time::ZERO };
    (pair, held)
}

/// Every object is in use in one rack. After all are freed there, none is left in any rack.
fn check(pair: &mut Pair, held: &[GlobalAddr], what: &str) {
    for side in 0..2 {
        // The derived state is the same after a restart.
        let before = pair.sides[side].fixture.slab.allocated_bytes();
        let free = pair.sides[side].fixture.slab.free_frames();
        pair.sides[side].restart(pair.now);
        let slab = &pair.sides[side].fixture.slab;
        assert_eq!((slab.allocated_bytes(), slab.free_frames()), (before, free), "{what}");
    }
    for addr in held {
        let homes: Vec<usize> =
            (0..2).filter(|side| pair.sides[*side].fixture.slab.is_allocated(*addr)).collect();
        assert_eq!(homes.len(), 1, "{addr} is in use in racks {homes:?}: {what}");
        assert_eq!(pair.sides[homes[0]].fixture.free(*addr), Ok(()), "{what}");
    }
    let mut pages = BTreeSet::new();
    for side in &mut pair.sides {
        assert_eq!(side.fixture.slab.allocated_bytes(), 0, "{what}");
        side.fixture.slab.close_empty_pages().unwrap();
        side.fixture.drain();
        assert_eq!(side.fixture.slab.free_frames(), FRAMES, "{what}");
        let frames = (0..FRAMES).map(|frame| side.fixture.slab.page_of(FrameId(frame)).unwrap());
        pages.extend(frames);
    }
    assert_eq!(pages.len(), 2 * FRAMES as usize, "each page is in one frame: {what}");
}

#[test]
fn a_swap_moves_the_objects_of_both_pages() {
    for live in [true, false] {
        let (mut pair, held) = pair(live);
        pair.run();
        assert_eq!(pair.committed, Some(true));
        let [home, requester] = &pair.sides;
        assert!(held[..9].iter().all(|addr| requester.fixture.slab.is_allocated(*addr)));
        assert!(held[9..].iter().all(|addr| home.fixture.slab.is_allocated(*addr)));
        // The next allocation is in the page that has arrived, beside the objects in use there.
        let next = pair.sides[1].fixture.alloc(SIZE).unwrap();
        assert!(!held.contains(&next) && next.page(page_size()) == held[0].page(page_size()));
        assert_eq!(pair.sides[1].fixture.free(next), Ok(()));
        check(&mut pair, &held, "no crash");
    }
}

#[test]
fn a_daemon_killed_between_any_two_stores_of_a_swap_loses_nothing() {
    let mut ends = BTreeSet::new();
    for (side, live) in [(0, true), (1, true), (0, false), (1, false)] {
        for stores in 1.. {
            let (mut pair, held) = pair(live);
            pair.sides[side].fixture.slab.stores_left.set(Some(stores));
            pair.run();
            let was_killed = pair.sides[side].lives > 1;
            let what = format!("rack {side} killed before store {stores}, live {live}");
            check(&mut pair, &held, &what);
            ends.insert((was_killed, pair.committed));
            if !was_killed {
                break;
            }
        }
    }
    // Some were killed before the commit, some after it.
    assert!(ends.contains(&(true, Some(false))) && ends.contains(&(true, Some(true))), "{ends:?}");
}

#[test]
fn pages_that_were_shuffled_make_no_run_unless_their_frames_are_neighbours() {
    let mut fixture = Fixture::new();
    for (frame, page) in [(3_u32, 104_u32), (4, 103)] {
        let word = PageWord::free(PageId(page));
        fixture.metadata.word(FrameId(frame)).unwrap().store(word.raw(), Ordering::Relaxed);
    }
    fixture.restart();
    // Frames 0 to 2 and 5 to 15 are left.
    assert_eq!(fixture.alloc(12 * (64 << 10)), None);
    let run = fixture.alloc(11 * (64 << 10)).unwrap();
    assert_eq!(run.page(page_size()), Some(PageId(105)));
}
