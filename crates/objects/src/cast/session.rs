//! Runs the machine of one rack in one cast.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::{GlobalAddr, RackId};
use rackpool_kv::now_ms;
use rackpool_proto::Time;
use rackpool_proto::multicast::block_map::BlockMap;
use rackpool_proto::multicast::event::{
    Failure, MulticastAction, MulticastEvent, MulticastMessage, Status,
};
use rackpool_proto::multicast::member::Stored;
use rackpool_proto::multicast::participant::Participant;
use rackpool_proto::multicast::{MulticastRules, Version};
use rackpool_proto::planted_bugs::Sound;
use rackpool_wire::CodecError;

use super::board::{Boards, Key, is_of_another_rack};
use super::copy::{Peer, StoredMap};
use super::link::LinkMeter;
use super::options::{CastFailure, CastProgress};
use super::reads::{BlockRead, COUNT, Reads, Receiving};
use super::records::{Alive, CastNumber, CastRecord, Outcome, Place};
use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout};
use crate::store::Store;
use crate::transfer::Memory;
use crate::wait::Pauses;

/// The pause between two heartbeats of a program, and between two looks for those of others.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A rack's part in a cast.
pub(super) struct Session {
    store: Store,
    boards: Boards,
    /// The rack that the cast began in.
    root: RackId,
    cast: CastNumber,
    record: CastRecord,
    /// The object.
    head: Head,
    own: RackId,
    begin: Instant,
    rules: MulticastRules,
    participant: Participant<Sound>,
    map: StoredMap,
    peers: HashMap<RackId, Arc<Peer>>,
    /// Racks whose records can't be read or written.
    away: BTreeSet<RackId>,
    meter: LinkMeter,
    /// When messages are read next, and the pause after that.
    look_at: Instant,
    pauses: Pauses,
    alive_at: Instant,
    /// The last heartbeat of each rack before this one, and when it was new.
    heartbeats: HashMap<RackId, (u64, Instant)>,
    is_shown: bool,
    result: Option<Result<(), Failure>>,
    report: Option<BTreeMap<RackId, Result<(), Failure>>>,
    /// Racks that take no part, and why.
    refusals: BTreeMap<RackId, CastFailure>,
}

/// What a rack has of the object when it begins to take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Nothing,
    Everything,
}

impl Session {
    /// Takes part with this copy, its head and number of extents, and says so on the own board.
    pub(super) fn new(
        store: &Store,
        mut boards: Boards,
        cast: CastNumber,
        record: CastRecord,
        copy: (GlobalAddr, u32),
        has: Has,
    ) -> Result<Self, StoreError> {
        let pool = store.pool();
        let head = Head::decode(&record.head).ok_or(StoreError::Damaged { addr: copy.0 })?;
        let (own, group) = (pool.rack(), record.group.clone());
        let full = Stored { version: group.version, map: BlockMap::full(group.blocks) };
        let stored = (has == Has::Everything).then_some(full);
        let grace = Duration::from_millis(record.grace_ms);
        let rules = MulticastRules { grace, ..MulticastRules::DEFAULT };
        let root = record.root().unwrap_or(own);
        let racks: Vec<_> = group.members.iter().map(|member| member.rack).collect();
        let participant = Participant::new(Time::ZERO, own, group, stored, rules, Sound);
        let map = StoredMap::new(pool, cast, participant.map())?;
        boards.write(Key::Alive(cast, own), &Alive { at_ms: now_ms() })?;
        let place = Place { head: copy.0, extents: copy.1, map: map.addr() };
        boards.write(Key::Place(cast, own), &place)?;
        let now = Instant::now();
        let mut session = Self {
            store: store.clone(),
            boards,
            root,
            cast,
            record,
            head,
            own,
            begin: now,
            rules,
            participant,
            map,
            peers: HashMap::new(),
            away: BTreeSet::new(),
            meter: LinkMeter::default(),
            look_at: now,
            pauses: Pauses::busy(),
            alive_at: now + HEARTBEAT,
            heartbeats: HashMap::new(),
            is_shown: false,
            result: None,
            report: None,
            refusals: BTreeMap::new(),
        };
        for rack in racks {
            let opened = session.boards.open_of(rack);
            session.of_rack(rack, opened)?;
        }
        Ok(session)
    }

    /// What became of the racks, if this rack was the coordinator at the end.
    pub(super) fn report(&self) -> Option<BTreeMap<RackId, Result<(), CastFailure>>> {
        let result = |(rack, result): (&RackId, &Result<(), Failure>)| {
            let refusal = self.refusals.get(rack).cloned();
            (*rack, refusal.map_or_else(|| result.map_err(CastFailure::Multicast), Err))
        };
        Some(self.report.as_ref()?.iter().map(result).collect())
    }

    /// What was measured of the own rack's link.
    pub(super) const fn meter(&self) -> LinkMeter {
        self.meter
    }

    /// How the cast has ended for this rack.
    pub(super) const fn result(&self) -> Option<Result<(), Failure>> {
        self.result
    }

    /// Takes part until the object may be used in this rack, which receives it, or until the cast
    /// has ended for this rack.
    pub(super) fn receive(&mut self, into: Receiving<'_>) -> Result<(), StoreError> {
        let (pool, bytes) = (Arc::clone(self.store.pool()), self.record.block_bytes);
        let block_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        std::thread::scope(|scope| {
            let reads = Reads::start(scope, &pool, into, block_bytes);
            self.go_on(&mut Some(reads), &mut |_| ())
        })
    }

    /// Takes part, with a complete copy, until the cast has ended for this rack.
    pub(super) fn serve(
        &mut self,
        progress: &mut dyn FnMut(CastProgress),
    ) -> Result<(), StoreError> {
        self.go_on(&mut None, progress)
    }

    fn go_on(
        &mut self,
        reads: &mut Option<Reads<'_>>,
        progress: &mut dyn FnMut(CastProgress),
    ) -> Result<(), StoreError> {
        loop {
            let has_done_all = self.act(reads)?;
            if self.result.is_some() || self.is_shown && reads.is_some() {
                return Ok(());
            }
            let is_news = self.take_reads(reads)? | self.look_around(progress)?;
            if has_done_all && !is_news {
                self.wait(reads);
            }
        }
    }

    /// Tells the machine of reads that have ended. Returns whether there was one.
    fn take_reads(&mut self, reads: &mut Option<Reads<'_>>) -> Result<bool, StoreError> {
        let Some(reads) = reads else { return Ok(false) };
        let mut is_news = false;
        while let Some(BlockRead { from, block, bytes, took, found }) = reads.next()? {
            self.meter.read(bytes, took);
            let read = MulticastEvent::BlockRead { from, block, found };
            self.participant.handle(self.time(), read);
            is_news = true;
        }
        reads.count(|| {
            let missing = self.participant.map().missing().next();
            let blocks = missing.map_or(u64::MAX, |block| block.0.into());
            blocks.saturating_mul(self.record.block_bytes).min(self.head.len())
        });
        Ok(is_news)
    }

    /// Does what is due: reads messages, writes a heartbeat, tells the machine that
    /// its deadline has passed. Returns whether the machine was told something.
    fn look_around(&mut self, progress: &mut dyn FnMut(CastProgress)) -> Result<bool, StoreError> {
        let (now, mut is_news) = (Instant::now(), false);
        if now >= self.look_at {
            is_news = self.read_messages(progress)?;
            if is_news {
                self.pauses = Pauses::busy();
            }
            self.look_at = Instant::now() + self.pauses.next(now.elapsed());
        }
        if now >= self.alive_at {
            let alive = Key::Alive(self.cast, self.own);
            match self.boards.write(alive, &Alive { at_ms: now_ms() }) {
                // A killed rack has left a change of the own board that can't be finished without
                // it. The next heartbeat tries again.
                Err(error) if is_of_another_rack(&error) => {}
                written => written?,
            }
            self.look_for_heartbeats()?;
            self.alive_at = now + HEARTBEAT;
        }
        let time = self.time();
        if self.participant.deadline().is_some_and(|deadline| deadline <= time) {
            self.participant.handle(time, MulticastEvent::DeadlinePassed);
            is_news = true;
        }
        Ok(is_news)
    }

    /// Waits until something is due, or a read has ended.
    fn wait(&self, reads: &mut Option<Reads<'_>>) {
        let until_look = self.look_at.saturating_duration_since(Instant::now());
        let deadline = self.participant.deadline();
        let until_deadline = deadline.map_or(HEARTBEAT, |deadline| deadline.since(self.time()));
        let longest = until_look.min(until_deadline);
        match reads {
            Some(reads) => reads.wait(longest),
            None => std::thread::sleep(longest),
        }
    }

    /// Says that programs of this rack may use the object.
    pub(super) fn tell_shown(&mut self) -> Result<(), StoreError> {
        let key = Key::Outcome { cast: self.cast, of: self.own, root: self.root };
        let written = self.boards.write(key, &Outcome::Shown);
        self.of_rack(self.root, written).map(drop)
    }

    /// Waits until programs of these racks may use the object, at most for the grace time. Returns
    /// the racks in which they may not.
    pub(super) fn wait_until_shown(
        &mut self,
        racks: impl IntoIterator<Item = RackId>,
    ) -> Result<BTreeMap<RackId, CastFailure>, StoreError> {
        let until = Instant::now() + self.rules.grace;
        let mut failures = BTreeMap::new();
        for of in racks {
            let key = Key::Outcome { cast: self.cast, of, root: self.root };
            let (mut pauses, mut look_at) = (Pauses::busy(), Instant::now() + HEARTBEAT);
            loop {
                let look = Instant::now();
                let found = self.boards.read::<Outcome>(key);
                if let Some(outcome) = self.of_rack(of, found)?.flatten() {
                    failures.extend(failure_of(outcome).map(|failure| (of, failure)));
                    break;
                }
                if look >= look_at {
                    let alive = self.boards.read::<Alive>(Key::Alive(self.cast, of));
                    self.of_rack(of, alive)?;
                    look_at = Instant::now() + HEARTBEAT;
                }
                if self.away.contains(&of) {
                    failures.insert(of, CastFailure::Multicast(Failure::Lost));
                    break;
                }
                if look >= until {
                    break;
                }
                std::thread::sleep(pauses.next(look.elapsed()));
            }
        }
        Ok(failures)
    }

    /// What an access to a record has brought that concerns this rack. `None` if the rack is away,
    /// which is then lost to the cast: each further access would wait for it.
    fn of_rack<T>(
        &mut self,
        rack: RackId,
        found: Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match found {
            Err(error) if is_of_another_rack(&error) => {
                self.away.insert(rack);
                self.participant.handle(self.time(), MulticastEvent::RackLost(rack));
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    fn time(&self) -> Time {
        Time::ZERO.after(self.begin.elapsed())
    }

    /// Executes what the machine asks for, until it is time to look around. Returns whether it asks
    /// for nothing else.
    fn act(&mut self, reads: &mut Option<Reads<'_>>) -> Result<bool, StoreError> {
        let until = Instant::now() + COUNT;
        while let Some(action) = self.participant.poll() {
            if let Some(event) = self.execute(action, reads)? {
                self.participant.handle(self.time(), event);
            }
            if self.is_shown && reads.is_some() || Instant::now() >= until {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn execute(
        &mut self,
        action: MulticastAction,
        reads: &mut Option<Reads<'_>>,
    ) -> Result<Option<MulticastEvent>, StoreError> {
        match action {
            MulticastAction::Send(to, message) => {
                if !self.away.contains(&to) {
                    let key = Key::Message { cast: self.cast, from: self.own, to };
                    let written = self.boards.write(key, &message);
                    self.of_rack(to, written)?;
                }
            }
            MulticastAction::Look { from, word } => {
                let found = self.look(from, word)?;
                return Ok(Some(MulticastEvent::Looked { from, word, found }));
            }
            MulticastAction::Read { from, block } => {
                let peer = self.peers.get(&from).cloned();
                let begun = reads
                    .as_mut()
                    .zip(peer)
                    .is_some_and(|(reads, peer)| reads.begin(from, block, peer));
                if !begun {
                    return Ok(Some(MulticastEvent::BlockRead { from, block, found: None }));
                }
            }
            MulticastAction::MarkReceived(block) => {
                self.map.set(self.participant.map(), BlockMap::word_of(block))?;
            }
            MulticastAction::Verify => {
                // A program that receives nothing has a copy that was verified before.
                let is_right =
                    reads.as_ref().is_none_or(|reads| reads.checksum() == self.head.checksum);
                return Ok(Some(MulticastEvent::Verified(is_right)));
            }
            MulticastAction::Show => self.is_shown = true,
            // All racks are told the end next, and show the object then.
            MulticastAction::Publish => return Ok(Some(MulticastEvent::Published)),
            MulticastAction::End(result) => self.result = Some(result),
            MulticastAction::Report(report) => self.report = Some(report),
        }
        Ok(None)
    }

    /// Reads a word of a peer's block map.
    fn look(&mut self, from: RackId, word: u32) -> Result<Option<(Version, u64)>, StoreError> {
        if !self.peers.contains_key(&from) {
            if self.away.contains(&from) {
                return Ok(None);
            }
            let place = self.boards.read::<Place>(Key::Place(self.cast, from));
            let Some(place) = self.of_rack(from, place)? else { return Ok(None) };
            let Some(place) = place else {
                // It has not begun yet.
                return Ok(Some((self.record.group.version, 0)));
            };
            let Ok(Place { head, extents, map }) = place else { return Ok(None) };
            let layout = HeadLayout::of(self.record.id.len());
            let memory = Memory::of(&self.store, layout, head, &self.head, extents);
            let Ok(memory) = memory else { return Ok(None) };
            self.peers.insert(from, Arc::new(Peer { memory, map }));
        }
        let Some(peer) = self.peers.get(&from) else { return Ok(None) };
        let began = Instant::now();
        let found = peer.look(self.store.pool(), word);
        self.meter.looked(began.elapsed());
        Ok(found.map(|(cast, word)| (Version(cast.0), word)))
    }

    /// Passes new messages to the machine. Returns whether there was one.
    fn read_messages(
        &mut self,
        progress: &mut dyn FnMut(CastProgress),
    ) -> Result<bool, StoreError> {
        let mut has_read = false;
        for from in self.others() {
            let key = Key::Message { cast: self.cast, from, to: self.own };
            let taken = self.boards.take::<MulticastMessage>(key);
            if let Some(Some(Ok(message))) = self.of_rack(from, taken)? {
                self.tell_progress(from, &message, progress);
                self.participant.handle(self.time(), MulticastEvent::Message(from, message));
                has_read = true;
            }
            if self.root == self.own && !self.refusals.contains_key(&from) {
                self.read_refusal(from)?;
            }
        }
        Ok(has_read)
    }

    /// The racks of the group that this one can exchange records with.
    fn others(&self) -> Vec<RackId> {
        let racks = self.record.group.members.iter().map(|member| member.rack);
        racks.filter(|rack| *rack != self.own && !self.away.contains(rack)).collect()
    }

    /// Tells the machine which racks before this one have no new heartbeat: if they are all lost,
    /// this rack coordinates. Messages that they left were read before.
    fn look_for_heartbeats(&mut self) -> Result<(), StoreError> {
        let racks = self.record.group.members.iter().map(|member| member.rack);
        let before: BTreeSet<_> = racks.take_while(|rack| *rack != self.own).collect();
        for rack in self.others().into_iter().filter(|rack| before.contains(rack)) {
            let found = self.boards.read::<Alive>(Key::Alive(self.cast, rack));
            let Some(found) = self.of_rack(rack, found)? else { continue };
            let at_ms = found.and_then(Result::ok).map_or(0, |alive| alive.at_ms);
            let now = Instant::now();
            let (last, since) = self.heartbeats.entry(rack).or_insert((at_ms, now));
            if *last != at_ms {
                (*last, *since) = (at_ms, now);
            } else if now.duration_since(*since) > self.rules.grace {
                self.participant.handle(self.time(), MulticastEvent::RackLost(rack));
            }
        }
        Ok(())
    }

    /// Notes why a rack takes no part, or no longer, if it says so.
    fn read_refusal(&mut self, rack: RackId) -> Result<(), StoreError> {
        let key = Key::Outcome { cast: self.cast, of: rack, root: self.root };
        let found = self.boards.read::<Outcome>(key);
        let found = self.of_rack(rack, found)?;
        let Some(failure) = found.flatten().and_then(failure_of) else { return Ok(()) };
        self.refusals.insert(rack, failure);
        self.participant.handle(self.time(), MulticastEvent::RackLost(rack));
        Ok(())
    }

    fn tell_progress(
        &self,
        rack: RackId,
        message: &MulticastMessage,
        progress: &mut dyn FnMut(CastProgress),
    ) {
        let of_blocks = self.record.group.blocks;
        let blocks = match message {
            MulticastMessage::Report(_, Status::Receiving(blocks)) => (*blocks).min(of_blocks),
            MulticastMessage::Report(_, Status::Complete) => of_blocks,
            _ => return,
        };
        progress(CastProgress { rack, blocks, of_blocks });
    }
}

/// Why a rack does not have the object, if it says so.
fn failure_of(outcome: Result<Outcome, CodecError>) -> Option<CastFailure> {
    match outcome {
        Ok(Outcome::Shown) => None,
        Ok(Outcome::Refused(why)) => Some(CastFailure::Refused(why)),
        Ok(Outcome::Deleted) => Some(CastFailure::Deleted),
        Err(error) => Some(CastFailure::OtherRelease(error.to_string())),
    }
}
