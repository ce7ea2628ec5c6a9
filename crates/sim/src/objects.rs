//! Objects of pages, and the clients' cells that hold them: clients allocate and free objects, here
//! and in other racks.

mod clients;
mod publication;
mod publish;
mod shell;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use rackpool_model::{
    ArmedMode, ClientId, FrameId, GlobalAddr, PageId, PageSize, PageState, RESERVATION_WORDS,
    ReservationState,
};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use crate::rng::{Rng, mix};
use crate::rules::CLIENTS;
use crate::world::World;
use publication::Publication;
use words::WordParcel;
pub(crate) use words::{Requester, record_place};

/// Objects in a page.
pub(crate) const OBJECTS: usize = 4;
/// The pool's page size.
const PAGE: PageSize = PageSize::DEFAULT;
/// The most objects that a client keeps.
const KEPT: usize = 6;

/// The slab header, bitmap and marks of a frame. Header and bitmap travel with the page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) is_slab: bool,
    pub(crate) used: [bool; OBJECTS],
    /// The client that holds each object; `None`: a program, or the pool's other racks.
    pub(crate) marks: [Option<ClientId>; OBJECTS],
    /// The owner word, the stamp, the replaced object and its stamp of each object.
    pub(crate) words: [[u64; 4]; OBJECTS],
    /// A link to an object, and a place for one that is borrowed.
    pub(crate) links: [u64; 2],
}

/// The cells of a client's file, which survives daemon and client.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectFile {
    pub(crate) inbox: Vec<GlobalAddr>,
    pub(crate) outbox: Vec<GlobalAddr>,
    pub(crate) magazine: Vec<GlobalAddr>,
    /// The words of the reservation record.
    pub(crate) record: [u64; RESERVATION_WORDS],
    /// Set when the client has gone.
    pub(crate) gone: bool,
}

/// A call of a client that its daemon has to answer.
#[derive(Clone, Debug)]
pub(crate) struct ObjectCall {
    pub(crate) call: u32,
    count: u64,
    /// Racks without memory.
    tried: Vec<usize>,
}

/// What a client does with objects.
#[derive(Clone, Copy, Debug)]
struct ObjectClient {
    id: ClientId,
    /// The call that it waits for, and the daemon that has it.
    waits: Option<(Wish, u64)>,
    call: u32,
    /// Counts steps; a wake-up for an earlier step is ignored.
    turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Refill(u64),
    Release,
}

/// A message of an exchange. It is lost if one of the daemons has ended meanwhile.
#[derive(Clone, Debug)]
struct Parcel {
    lives: (u64, u64),
    attempt: u64,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Request(PeerRequest),
    Reply(PeerReply),
}

/// All that the world keeps for objects.
#[derive(Debug)]
pub(crate) struct ObjectWorld {
    /// Whether clients use objects in this world.
    pub(crate) on: bool,
    rng: Rng,
    clients: Vec<ObjectClient>,
    parcels: BTreeMap<u64, Parcel>,
    publications: Vec<Option<Publication>>,
    words: BTreeMap<u64, WordParcel>,
    /// Requests for words whose endpoint was cut: they are not executed any more.
    cut: BTreeSet<u64>,
    /// When each daemon was started: rack and life.
    pub(crate) starts: BTreeMap<(usize, u64), u64>,
    last: u64,
}

/// What a daemon keeps for exchanges.
#[derive(Debug, Default)]
pub(crate) struct ExchangeShell {
    /// Unanswered calls of clients.
    pub(crate) calls: BTreeMap<ClientId, ObjectCall>,
    /// The last request to each rack.
    attempts: BTreeMap<usize, u64>,
    /// Unanswered requests of other racks: the rack, and its number of the request.
    asks: BTreeMap<u64, (usize, u64)>,
    /// Unanswered requests for words: the sender, and the rack.
    pub(crate) words: BTreeMap<u64, (Requester, usize)>,
    /// Clients that have gone, as far as the daemon knows.
    pub(crate) gone: BTreeSet<ClientId>,
}

impl ObjectFile {
    fn cells(&mut self) -> [&mut Vec<GlobalAddr>; 3] {
        [&mut self.inbox, &mut self.outbox, &mut self.magazine]
    }

    /// Returns the objects of the arrays.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = GlobalAddr> {
        self.inbox.iter().chain(&self.outbox).chain(&self.magazine).copied()
    }

    /// Returns the objects of all cells.
    pub(crate) fn held(&self) -> impl Iterator<Item = GlobalAddr> {
        let noted = ReservationState::decode(self.record).noted();
        self.arrays().chain(noted.map(GlobalAddr::from_raw))
    }

    /// Removes objects from all cells, and from a record that is not resolved yet.
    fn strike(&mut self, addrs: &[GlobalAddr]) {
        for cells in self.cells() {
            cells.retain(|addr| !addrs.contains(addr));
        }
        let noted = match ReservationState::decode(self.record) {
            ReservationState::Held(_) => 1,
            ReservationState::Armed(armed) if matches!(armed.mode, ArmedMode::Borrowed(_)) => {
                return;
            }
            ReservationState::Replaced(_)
            | ReservationState::Settling(_)
            | ReservationState::Armed(_) => 6,
            ReservationState::Free | ReservationState::Borrowed(_) => return,
        };
        if addrs.contains(&GlobalAddr::from_raw(self.record[noted])) {
            self.record[noted] = 0;
        }
    }
}

impl ObjectWorld {
    pub(crate) fn new(seed: u64, on: bool) -> Self {
        let client = |id| ObjectClient { id: ClientId(id), waits: None, call: 0, turn: 0 };
        let clients = (1..).take(CLIENTS).map(client).collect();
        let last = CLIENTS as u64;
        Self {
            on,
            rng: Rng::new(mix(!seed)),
            clients,
            parcels: BTreeMap::new(),
            publications: vec![None; CLIENTS],
            words: BTreeMap::new(),
            cut: BTreeSet::new(),
            starts: BTreeMap::new(),
            last,
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// Returns the page of an object, and its index there.
pub(crate) fn object_at(addr: GlobalAddr) -> Option<(PageId, usize)> {
    let bytes = PAGE.bytes() / OBJECTS as u64;
    let index = usize::try_from(addr.offset(PAGE) / bytes).ok()?;
    Some((addr.page(PAGE)?, index))
}

/// Returns the address of an object of a page.
pub(crate) fn object_addr(page: PageId, index: usize) -> Option<GlobalAddr> {
    let bytes = PAGE.bytes() / OBJECTS as u64;
    GlobalAddr::new(page, bytes * index as u64, PAGE).ok()
}

impl<B: Bugs> World<B> {
    pub(super) fn object_frame(
        &mut self,
        rack: usize,
        addr: GlobalAddr,
    ) -> Option<(FrameId, usize)> {
        let (page, index) = object_at(addr)?;
        let found = self.racks[rack].memory.find(page)?;
        if found.word.state() != Some(PageState::Live) {
            let state = found.word.state();
            self.breaks(|| format!("an object of {page}, which is {state:?}, changes"));
        }
        Some((found.frame, index))
    }

    pub(super) fn allocate_object(
        &mut self,
        rack: usize,
        addr: GlobalAddr,
        holder: Option<ClientId>,
    ) {
        let Some((frame, index)) = self.object_frame(rack, addr) else {
            return self.breaks(|| format!("{addr} is allocated in rack {rack}, without its page"));
        };
        let objects = &mut self.racks[rack].memory.frame(frame).objects;
        objects.marks[index] = holder;
        if std::mem::replace(&mut objects.used[index], true) {
            self.breaks(|| format!("{addr} is allocated twice"));
        }
    }

    pub(super) fn free_object(&mut self, rack: usize, addr: GlobalAddr, client: Option<ClientId>) {
        if self.holders(addr, |file| &file.magazine) > 0 {
            self.breaks(|| format!("{addr} is freed while a client holds it"));
        }
        self.check_unreachable(addr);
        let Some((frame, index)) = self.object_frame(rack, addr) else {
            return self.breaks(|| format!("{addr} is freed in rack {rack}, without its page"));
        };
        let objects = &mut self.racks[rack].memory.frame(frame).objects;
        let is_others = objects.marks[index].is_some_and(|holder| Some(holder) != client);
        if !std::mem::replace(&mut objects.used[index], false) || is_others {
            self.breaks(|| format!("{addr} is freed, and is free or another client's"));
        }
        self.seen.returned += 1;
    }

    /// Returns the number of live clients whose cells hold an object.
    pub(super) fn holders(
        &self,
        addr: GlobalAddr,
        cells: impl Fn(&ObjectFile) -> &Vec<GlobalAddr>,
    ) -> usize {
        let files = self.racks.iter().flat_map(|rack| rack.memory.files.values());
        files.filter(|file| !file.gone && cells(file).contains(&addr)).count()
    }

    /// Checks that an object which a client takes is allocated and nobody else's.
    pub(super) fn check_taken(&mut self, addr: GlobalAddr) {
        let files = self.racks.iter().flat_map(|rack| rack.memory.files.values());
        let holds = |file: &&ObjectFile| file.held().any(|held| held == addr);
        let holders = files.filter(holds).count();
        if holders > 0 || !self.is_used_somewhere(addr) {
            self.breaks(|| format!("{addr} is allocated, is free or has {holders} holders"));
        }
    }

    /// Returns true if the object's bit is set in a frame where its page can be read. Between the
    /// commit of a swap and the end of a crash of the new home it may be readable nowhere; then the
    /// bit in either frame counts.
    fn is_used_somewhere(&self, addr: GlobalAddr) -> bool {
        let Some((page, index)) = object_at(addr) else { return false };
        let frames = self.racks.iter().flat_map(|rack| &rack.memory.frames);
        let of_page: Vec<_> = frames.filter(|one| one.word.page() == page).collect();
        let is_readable = of_page.iter().any(|one| one.word.is_readable());
        let mut counting = of_page.iter().filter(|one| !is_readable || one.word.is_readable());
        counting.any(|one| one.objects.used[index])
    }

    /// Describes which exchanges and calls are not finished.
    pub(crate) fn object_unrest(&self) -> Option<String> {
        if !self.objects.on {
            return None;
        }
        if let Some(client) = self.objects.clients.iter().position(|one| one.waits.is_some()) {
            return Some(format!("client {client} waits for objects"));
        }
        if let Some(client) = (0..CLIENTS).find(|client| self.is_publishing(*client)) {
            return Some(format!("client {client} publishes"));
        }
        self.racks.iter().enumerate().find_map(|(index, rack)| {
            let daemon = rack.daemon.as_ref()?;
            let gone = rack.memory.files.values().filter(|file| file.gone).count();
            let exchanges = daemon.machine.exchanging();
            let resolving = daemon.machine.resolving();
            let rests = gone + exchanges + resolving == 0;
            (!rests).then(|| {
                format!(
                    "rack {index} has {exchanges} exchanges, {gone} dead clients, {resolving} records"
                )
            })
        })
    }

    /// Checks that at rest each allocated object is in exactly one cell of a live client or behind
    /// exactly one link, and each cell and link holds an allocated object.
    pub(crate) fn check_objects(&self) -> Result<(), String> {
        if !self.objects.on {
            return Ok(());
        }
        let files = || self.racks.iter().flat_map(|rack| rack.memory.files.values());
        let mut held: BTreeMap<GlobalAddr, usize> = BTreeMap::new();
        for addr in files().flat_map(ObjectFile::held).chain(self.check_links()?) {
            *held.entry(addr).or_default() += 1;
        }
        for frame in self.racks.iter().flat_map(|rack| &rack.memory.frames) {
            let is_live = frame.word.state() == Some(PageState::Live) && frame.objects.is_slab;
            for index in (0..OBJECTS).filter(|index| is_live && frame.objects.used[*index]) {
                let addr = object_addr(frame.word.page(), index).ok_or("no such object")?;
                match held.remove(&addr) {
                    Some(1) => {}
                    Some(count) => return Err(format!("{addr} is in {count} cells and links")),
                    None => return Err(format!("{addr} is allocated, and nobody has it")),
                }
            }
        }
        match held.first_key_value() {
            Some((addr, _)) => Err(format!("{addr} is in a cell or behind a link, and is free")),
            None => Ok(()),
        }
    }
}
