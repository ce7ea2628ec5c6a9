//! The memory of a rack, which survives its daemon.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_model::{
    ClaimId, ClientId, FrameId, FrameWord, GlobalAddr, LockClaim, LockWord, LockWordIndex,
    Occupants, PageId, PageState, PageWord, ReservationState, StorePosition,
};
use rackpool_proto::Time;
use rackpool_proto::exchange::{Caller, ClientThread, ObjectMemory, PeerRecord};
use rackpool_proto::lock::LockMemory;
use rackpool_proto::publication::{RecordPlace, ReservationMemory};
use rackpool_proto::rack::{PageWords, RackMemory};
use rackpool_proto::share::CopyId;
use rackpool_proto::swap::{RECORD_WORDS, RECORDS};

use crate::objects::{
    ExchangeShell, OBJECTS, ObjectFile, Objects, object_addr, object_at, record_place,
};
use crate::rules::{CLIENTS, FRAMES, RACKS, USED, WORDS};

/// A frame: its page word and its contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) word: PageWord,
    pub(crate) bytes: [u64; WORDS],
    pub(crate) objects: Objects,
}

/// The content of a client's access slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) frame: FrameId,
    pub(crate) usage: Use,
}

/// The kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// A write that logs its line first.
    DirtyLogged,
}

/// The published replica of a frame, and its end time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) copy: Option<CopyId>,
    pub(crate) until: Time,
}

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) frames: Vec<Frame>,
    pub(crate) records: [[u64; RECORD_WORDS]; RECORDS],
    pub(crate) slots: [Option<Slot>; CLIENTS],
    /// Stores to access slots that the daemon does not see yet.
    buffered: [Option<Slot>; CLIENTS],
    /// The notes of clients about pages that move, which no daemon has taken yet.
    pub(crate) noted: [Vec<(FrameId, usize)>; CLIENTS],
    /// The last note of each client.
    pub(crate) noted_last: [Option<(FrameId, usize)>; CLIENTS],
    pub(crate) shown: Vec<Shown>,
    /// The last commit of the metadata server that the rack has acted on.
    pub(crate) seen: Option<StorePosition>,
    /// The records of exchanges with each rack.
    pub(crate) peers: [PeerRecord; RACKS],
    /// The files of clients.
    pub(crate) files: BTreeMap<ClientId, ObjectFile>,
}

impl Memory {
    /// Makes a memory without pages.
    pub(crate) fn unformatted() -> Self {
        Self { frames: Vec::new(), ..Self::new(PageId(0)) }
    }

    /// Makes a memory with consecutive pages from `first`.
    pub(crate) fn new(first: PageId) -> Self {
        let word = |frame: u32| {
            let free = PageWord::free(PageId(first.0 + frame));
            let live = free.apply(rackpool_model::PageEvent::Allocated);
            if frame < USED { live.unwrap_or(free) } else { free }
        };
        let frames = (0..FRAMES).map(|frame| Frame {
            word: word(frame),
            bytes: [0; WORDS],
            objects: Objects { is_slab: frame < USED, ..Objects::default() },
        });
        Self {
            frames: frames.collect(),
            records: [[0; RECORD_WORDS]; RECORDS],
            slots: [None; CLIENTS],
            buffered: [None; CLIENTS],
            noted: std::array::from_fn(|_| Vec::new()),
            noted_last: [None; CLIENTS],
            seen: None,
            peers: std::array::from_fn(|_| PeerRecord::default()),
            files: BTreeMap::new(),
            shown: vec![Shown { copy: None, until: Time::ZERO }; FRAMES as usize],
        }
    }

    /// A client stores its access slot without a fence: the store may stay in its processor's store
    /// buffer until a heavy barrier or a later store.
    pub(crate) fn buffer_slot(&mut self, client: usize, slot: Slot) {
        self.buffered[client] = Some(slot);
    }

    /// A client stores its access slot, visible at once.
    pub(crate) fn store_slot(&mut self, client: usize, slot: Slot) {
        (self.slots[client], self.buffered[client]) = (Some(slot), None);
    }

    /// A client leaves its frame.
    pub(crate) fn clear_slot(&mut self, client: usize) {
        (self.slots[client], self.buffered[client]) = (None, None);
    }

    /// Makes a client's buffered store visible: its next store follows it.
    pub(crate) fn drain_store_buffer(&mut self, client: usize) {
        if let Some(slot) = self.buffered[client].take() {
            self.slots[client] = Some(slot);
        }
    }

    /// Executes a heavy barrier: all stores that any client has made are visible.
    pub(crate) fn drain_store_buffers(&mut self) {
        (0..CLIENTS).for_each(|client| self.drain_store_buffer(client));
    }

    pub(crate) fn frame(&mut self, frame: FrameId) -> &mut Frame {
        &mut self.frames[frame.0 as usize]
    }

    pub(crate) fn shown(&mut self, frame: FrameId) -> &mut Shown {
        &mut self.shown[frame.0 as usize]
    }

    /// Hides all replicas.
    pub(crate) fn hide_all(&mut self) {
        for shown in &mut self.shown {
            shown.copy = None;
        }
    }

    pub(crate) fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.frames.get(frame.0 as usize).map(|frame| frame.word)
    }

    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = FrameWord> {
        let words = self.frames.iter().map(|frame| frame.word);
        (0..FRAMES).map(FrameId).zip(words).map(|(frame, word)| FrameWord { frame, word })
    }

    /// Returns the frame of a page. A page that is arriving is not here yet; one that is leaving is
    /// not here any more.
    pub(crate) fn find(&self, page: PageId) -> Option<FrameWord> {
        self.all().find(|FrameWord { word, .. }| {
            let here = !matches!(word.state(), Some(PageState::Arriving | PageState::Leaving));
            word.page() == page && here
        })
    }

    /// Returns true if no access slot names the frame with such a use.
    pub(crate) fn is_quiesced(&self, frame: FrameId, like: impl Fn(Use) -> bool) -> bool {
        !self.slots.iter().flatten().any(|slot| slot.frame == frame && like(slot.usage))
    }
}

/// The memory as the machine of a rack reads it.
pub(crate) struct View<'a> {
    pub(crate) memory: &'a Memory,
    /// Free frames that hold or receive a replica.
    pub(crate) borrowed: &'a BTreeSet<FrameId>,
    pub(crate) exchange: &'a ExchangeShell,
}

impl View<'_> {
    /// Returns the free frames that no replica uses.
    fn free(&self) -> impl DoubleEndedIterator<Item = FrameWord> {
        let free = self.memory.all().filter(|found| found.word.state() == Some(PageState::Free));
        free.filter(|found| !self.borrowed.contains(&found.frame))
    }
}

impl PageWords for Memory {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        Self::find(self, page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        Self::word(self, frame)
    }
}

impl PageWords for View<'_> {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        self.memory.find(page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.memory.word(frame)
    }
}

impl RackMemory for View<'_> {
    fn spare(&self) -> Option<FrameId> {
        self.free().next().map(|found| found.frame)
    }

    fn free_pages(&self) -> impl Iterator<Item = PageId> {
        self.free().map(|found| found.word.page()).rev()
    }

    fn movable_pages(&self) -> impl Iterator<Item = PageId> {
        let live = self.memory.all().filter(|found| found.word.state() == Some(PageState::Live));
        live.map(|found| found.word.page())
    }

    fn may_move(&self, _: PageId) -> bool {
        true
    }

    fn may_share(&self, _: PageId) -> bool {
        true
    }

    fn frame_for_replica(&self, busy: &dyn Fn(PageId) -> bool) -> Option<FrameId> {
        let mut free = self.free().filter(|found| !busy(found.word.page()));
        let (_, next) = (free.next()?, free.next()?);
        Some(next.frame)
    }

    fn is_short_of_frames(&self) -> bool {
        self.free().next().is_none()
    }

    fn is_quiesced(&self, frame: FrameId, occupants: Occupants) -> bool {
        self.memory.is_quiesced(frame, |usage| match occupants {
            Occupants::NotDirtyLogged => usage == Use::Write,
            Occupants::Writers => usage != Use::Read,
            Occupants::Everyone => true,
        })
    }
}

impl Memory {
    /// Returns the objects of the page's frame and the object's index, if the page can be read.
    fn objects_of(&self, addr: GlobalAddr) -> Option<(Objects, usize)> {
        let (page, index) = object_at(addr)?;
        let found = self.find(page).filter(|found| found.word.is_readable())?;
        Some((self.frames[found.frame.0 as usize].objects, index))
    }

    /// Returns a free object of a live page.
    pub(crate) fn candidate(&self) -> Option<GlobalAddr> {
        let live = |one: &&Frame| one.objects.is_slab && one.word.state() == Some(PageState::Live);
        self.frames.iter().filter(live).find_map(|one| {
            let index = (0..OBJECTS).find(|index| !one.objects.used[*index])?;
            object_addr(one.word.page(), index)
        })
    }
}

impl ReservationMemory for View<'_> {
    fn array_objects(&self, client: ClientId) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        let file = self.memory.files.get(&client).into_iter();
        let owner = ClientThread { client, thread: 0 };
        file.flat_map(ObjectFile::arrays).map(move |addr| (owner, addr))
    }

    fn reservations(&self, client: ClientId) -> impl Iterator<Item = RecordPlace> {
        let place = record_place(client);
        let is_used = self.reservation(place) != ReservationState::Free;
        is_used.then_some(place).into_iter()
    }

    fn reservation(&self, place: RecordPlace) -> ReservationState {
        let file = self.memory.files.get(&place.owner.client);
        file.map_or(ReservationState::Free, |file| ReservationState::decode(file.record))
    }
}

impl ObjectMemory for View<'_> {
    fn is_allocated(&self, addr: GlobalAddr) -> bool {
        self.memory.objects_of(addr).is_some_and(|(objects, index)| objects.used[index])
    }

    fn may_free(&self, addr: GlobalAddr, client: Option<ClientId>) -> bool {
        self.memory.objects_of(addr).is_some_and(|(objects, index)| {
            let mark = objects.marks[index];
            objects.used[index] && mark.is_none_or(|holder| Some(holder) == client)
        })
    }

    fn candidate(&self, _: u64) -> Option<GlobalAddr> {
        self.memory.candidate()
    }

    fn free_frames(&self) -> u32 {
        u32::try_from(self.free().count()).unwrap_or(u32::MAX)
    }

    fn takes(&self, caller: Caller) -> bool {
        let file = self.memory.files.get(&caller.client);
        let open = self.exchange.calls.get(&caller.client);
        let waits = open.is_some_and(|open| open.call == caller.call);
        waits && file.is_some_and(|file| file.inbox.is_empty())
    }

    fn holds(&self, owner: ClientThread, addr: GlobalAddr) -> bool {
        let file = self.memory.files.get(&owner.client);
        file.is_some_and(|file| {
            let is_gone = self.exchange.gone.contains(&owner.client);
            file.outbox.contains(&addr) || is_gone && file.held().any(|held| held == addr)
        })
    }

    fn held(&self) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        self.memory.files.iter().flat_map(|(client, file)| {
            let owner = ClientThread { client: *client, thread: 0 };
            file.held().map(move |addr| (owner, addr))
        })
    }
}

/// The clients of this world take no locks: `crates/proto/tests/locks.rs` is a world of its own.
impl LockMemory for View<'_> {
    fn lock_word(&self, _: LockWordIndex) -> LockWord {
        LockWord::FREE
    }

    fn claim(&self, _: ClaimId) -> Option<LockClaim> {
        None
    }

    fn claims(&self) -> impl Iterator<Item = (ClaimId, LockClaim)> {
        std::iter::empty()
    }

    fn beat(&self, _: ClientId) -> Option<u64> {
        None
    }

    fn is_using(&self, _: ClaimId, _: PageId) -> bool {
        false
    }
}
