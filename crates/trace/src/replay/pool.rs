use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use rackpool_model::{Epoch, FrameId, Incarnation, MemoryId, PageId, PageRange, PageState, RackId};
use rackpool_proto::Time;
use rackpool_proto::directory::{Directory, Moved, Run};
use rackpool_proto::heat::Heats;
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::swap::{
    PeerAction, PeerEvent, RECORD_WORDS, RECORDS, ServerEvent, SwapBatch, SwapEvent,
    SwapPeer as SwapMachine, SwapServer,
};
use rackpool_wire::swap::{PrepareRefusal, RequestRefusal, SwapId, ToServer};

use super::memory::{Memory, View};
use super::{Costs, Outcome, Policy, ReplayError};
use crate::{Accessed, RackFrames, Trace};

struct Rack {
    machine: SwapMachine,
    memory: Memory,
    heats: Heats,
}

enum Step {
    Rack(RackId, PeerEvent),
    Server(ServerEvent),
}

/// Returns the pages of a rack's frames and whether each is live: pages that the trace accesses,
/// pages that it does not, and free ones. Pages of the latter two kinds are created only as far as
/// they could be exchanged for accessed ones.
fn pages_of(
    rack: &RackFrames,
    used: &BTreeSet<PageId>,
    homes: &HashMap<PageId, RackId>,
) -> Vec<(PageId, bool)> {
    let here = used.iter().filter(|page| homes.get(page) == Some(&rack.rack));
    let mut pages: Vec<(PageId, bool)> = here.map(|page| (*page, true)).collect();
    let room = (rack.frames as usize).saturating_sub(pages.len());
    let free = room.min(rack.free as usize);
    let enough = used.len() + SPARE;
    let (cold, free) = ((room - free).min(enough), free.min(enough));
    let born = (0..rack.frames).map(|at| PageId(rack.first.0 + at));
    let unused = born.filter(|page| !used.contains(page)).take(cold + free);
    pages.extend(unused.enumerate().map(|(at, page)| (page, at < cold)));
    pages
}

/// Frames beyond the number that is needed.
const SPARE: usize = 16;

/// The pool as it was when the recording began, and its state during the replay.
pub(super) struct Pool {
    racks: BTreeMap<RackId, Rack>,
    directory: Directory,
    server: SwapServer,
    homes: HashMap<PageId, RackId>,
    /// Pairs of a page and a rack that it has left.
    left: BTreeSet<(PageId, RackId)>,
    /// Copies in progress, in order of their end.
    copies: BTreeSet<(Time, RackId, SwapId)>,
    page_bytes: u64,
    copy: Duration,
    swaps: bool,
    /// The next time at which a copy ends or a deadline passes.
    next: Time,
    outcome: Outcome,
    /// Requests by nonce, to count repetitions once.
    asked: BTreeSet<(RackId, u64)>,
    /// Aborted swaps, including those that the home refused.
    given_up: BTreeSet<SwapId>,
    offers_refused: u64,
    steps: VecDeque<Step>,
}

impl Pool {
    pub(super) fn new(trace: &Trace, policy: &Policy, costs: &Costs) -> Result<Self, ReplayError> {
        let used: BTreeSet<PageId> = trace.accesses.iter().map(|access| access.page).collect();
        let homes: HashMap<PageId, RackId> =
            used.iter().filter_map(|page| Some((*page, trace.home(*page)?))).collect();
        let mut directory = Directory::default();
        let mut racks = BTreeMap::new();
        for (number, rack) in (1..).zip(&trace.racks) {
            let pages = PageRange { first: rack.first, count: rack.frames };
            let run = Run { pages, rack: rack.rack, memory: MemoryId(number) };
            // A parsed trace has its ranges in order and without overlap.
            if directory.add(run).is_ok() {
                let _ = directory.serve(rack.rack, run.memory);
            }
            let pages = pages_of(rack, &used, &homes);
            let records = [[0; RECORD_WORDS]; RECORDS];
            let life = Incarnation(1);
            racks.insert(
                rack.rack,
                Rack {
                    machine: SwapMachine::restore(Time::ZERO, policy.swap, life, &records, Sound),
                    memory: Memory::new(pages),
                    heats: Heats::new(policy.heat)?,
                },
            );
        }
        #[expect(clippy::cast_precision_loss, reason = "pages have at most 2^30 bytes")]
        let copy = trace.page_bytes as f64 / costs.copy_bytes_per_s;
        // Homes of pages that had moved before; swap 0 is of another boot.
        for (page, home) in trace.homes.iter().filter(|(page, _)| used.contains(page)) {
            let Some(memory) = directory.served_by(*home).map(|run| run.memory) else { continue };
            let moved =
                Moved { page: *page, home: *home, memory, epoch: Epoch::ZERO, swap: SwapId(0) };
            let _ = directory.place(moved);
        }
        Ok(Self {
            racks,
            directory,
            server: SwapServer::new(Time::ZERO, policy.swap, 1, Sound),
            homes,
            left: BTreeSet::new(),
            copies: BTreeSet::new(),
            page_bytes: trace.page_bytes,
            copy: Duration::try_from_secs_f64(copy).unwrap_or(Duration::MAX),
            swaps: policy.swaps,
            next: Time::END,
            outcome: Outcome::default(),
            asked: BTreeSet::new(),
            given_up: BTreeSet::new(),
            offers_refused: 0,
            steps: VecDeque::new(),
        })
    }

    pub(super) fn accessed(&mut self, accessed: &Accessed) {
        let Accessed { at_ns, page, rack, access } = *accessed;
        let now = Time::from_nanos(at_ns);
        while self.next <= now && self.next < Time::END {
            self.pass(self.next);
        }
        let is_local = self.homes.get(&page) == Some(&rack);
        self.outcome.accesses += 1;
        self.outcome.local += u64::from(is_local);
        let Some(user) = self.racks.get_mut(&rack) else { return };
        if !self.swaps {
            return;
        }
        let found = user.heats.accessed(now, page, access, 1);
        if found.hot && !is_local {
            let (milli, read_hot) = (found.milli, found.read_hot);
            self.steps.push_back(Step::Rack(rack, PeerEvent::Heated { page, milli, read_hot }));
            self.run(now);
        }
    }

    /// Processes copies that end and deadlines that pass.
    fn pass(&mut self, now: Time) {
        while let Some(&(end, rack, swap)) = self.copies.first().filter(|(end, ..)| *end <= now) {
            self.copies.remove(&(end, rack, swap));
            let copied = PeerEvent::Copied { swap, whole: true };
            self.steps.push_back(Step::Rack(rack, copied));
        }
        for rack in self.racks.keys() {
            self.steps.push_back(Step::Rack(*rack, PeerEvent::DeadlinePassed));
        }
        self.steps.push_back(Step::Server(ServerEvent::DeadlinePassed));
        self.run(now);
        // Otherwise a deadline that is not over when it is reported would recur for ever.
        self.next = self.next.max(Time::from_nanos(now.as_nanos().saturating_add(1)));
    }

    fn run(&mut self, now: Time) {
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Rack(id, event) => {
                    let Some(rack) = self.racks.get_mut(&id) else { continue };
                    let view = View { memory: &rack.memory, heats: &rack.heats, now };
                    rack.machine.handle(now, &view, event);
                    while let Some(action) =
                        self.racks.get_mut(&id).and_then(|rack| rack.machine.poll())
                    {
                        self.act(now, id, action);
                    }
                }
                Step::Server(event) => {
                    self.server.handle(now, &self.directory, event);
                    while let Some(batch) = self.server.next_batch(&self.directory) {
                        self.commit(&batch);
                        let committed = ServerEvent::Committed(batch.id);
                        self.server.handle(now, &self.directory, committed);
                    }
                    while let Some((rack, message)) = self.server.poll() {
                        self.steps.push_back(Step::Rack(rack, PeerEvent::ServerSent(message)));
                    }
                }
            }
        }
        let racks = self.racks.values().filter_map(|rack| rack.machine.deadline());
        let copies = self.copies.first().map(|(end, ..)| *end);
        let next = racks.chain(self.server.deadline()).chain(copies).min();
        self.next = next.unwrap_or(Time::END);
    }

    fn act(&mut self, now: Time, id: RackId, action: PeerAction) {
        let Some(rack) = self.racks.get_mut(&id) else { return };
        match action {
            PeerAction::TellServer(message) => {
                if let ToServer::Request { nonce, .. } = message {
                    self.asked.insert((id, nonce));
                }
                self.steps.push_back(Step::Server(ServerEvent::RackSent(id, message)));
            }
            PeerAction::TellRack(to, between) => {
                self.steps.push_back(Step::Rack(to, PeerEvent::RackSent(id, between)));
            }
            PeerAction::StoreWord(frame, word) => rack.memory.store(frame, word),
            PeerAction::Quiesce { swap, who, .. } => {
                self.steps.push_back(Step::Rack(id, PeerEvent::Quiesced(swap, who)));
            }
            PeerAction::Copy { swap, from, theirs, .. } => {
                self.begin_copy(now, id, swap, from, theirs)
            }
            PeerAction::PrefetchLease { page, .. } => {
                self.steps.push_back(Step::Rack(id, PeerEvent::LeasePrefetched(page)));
            }
            PeerAction::SendDirtyLines { swap, to, frame: theirs, known } => {
                let came = PeerEvent::DirtyLinesReceived { from: id, swap, theirs, known };
                self.steps.push_back(Step::Rack(to, came));
            }
            PeerAction::Record(event) => self.hear(now, id, event),
            // Pages have no bytes here.
            PeerAction::ApplyDirtyLines { .. }
            | PeerAction::StoreRecord { .. }
            | PeerAction::EraseRecord { .. }
            | PeerAction::CancelQuiesce(..) => {}
        }
    }

    fn begin_copy(&mut self, now: Time, id: RackId, swap: SwapId, from: RackId, theirs: FrameId) {
        let word = self.racks.get(&from).and_then(|rack| rack.memory.word(theirs));
        let live = word.is_some_and(|word| word.state() == Some(PageState::Frozen));
        self.outcome.bytes_moved += if live { self.page_bytes } else { 0 };
        self.copies.insert((now.after(self.copy), id, swap));
    }

    fn hear(&mut self, now: Time, id: RackId, event: SwapEvent) {
        let refused = &mut self.outcome.refused;
        match event {
            SwapEvent::Arrived(page) => {
                if let Some(rack) = self.racks.get_mut(&id) {
                    rack.heats.arrived(now, page);
                }
            }
            SwapEvent::Aborted(swap) => {
                self.given_up.insert(swap);
            }
            SwapEvent::NoColdPage(_) => refused.nothing_to_offer += 1,
            SwapEvent::RequestRefused(_, RequestRefusal::QueueFull) => refused.full += 1,
            SwapEvent::RequestRefused(..) => refused.by_server += 1,
            SwapEvent::PrepareRefused(_, reason) => {
                self.offers_refused += 1;
                *match reason {
                    PrepareRefusal::Hotter => &mut refused.hotter,
                    PrepareRefusal::ReadHot => &mut refused.read_hot,
                    PrepareRefusal::Rests => &mut refused.rests,
                    PrepareRefusal::Unavailable => &mut refused.unavailable,
                    PrepareRefusal::Full => &mut refused.full,
                } += 1;
            }
            SwapEvent::Thawed(_)
            | SwapEvent::Departed(_)
            | SwapEvent::Lost(_)
            | SwapEvent::Damaged(..) => {}
        }
    }

    fn commit(&mut self, batch: &SwapBatch) {
        self.outcome.swaps += batch.moved.len() as u64 / 2;
        for moved in &batch.moved {
            let _ = self.directory.place(*moved);
            // Pages that the trace does not access move as well; that counts as a swap, not as a
            // move.
            let Some(home) = self.homes.get_mut(&moved.page) else { continue };
            let from = std::mem::replace(home, moved.home);
            self.left.insert((moved.page, from));
            self.outcome.moves += 1;
            self.outcome.returns += u64::from(self.left.remove(&(moved.page, moved.home)));
        }
    }

    pub(super) fn finish(mut self, costs: &Costs) -> Outcome {
        self.outcome.asked = self.asked.len() as u64;
        let given_up = self.given_up.len() as u64;
        self.outcome.given_up = given_up.saturating_sub(self.offers_refused);
        let nanos = |count: u64, each: Duration| u128::from(count) * each.as_nanos();
        let remote = self.outcome.accesses - self.outcome.local;
        let all = nanos(self.outcome.local, costs.local) + nanos(remote, costs.remote);
        self.outcome.time = Duration::from_nanos(u64::try_from(all).unwrap_or(u64::MAX));
        self.outcome
    }
}
