//! Runs the machine of one rack in one cast.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::{GlobalAddr, PinnedBytesMut, Pool, RackId};
use rackpool_kv::now_ms;
use rackpool_proto::Time;
use rackpool_proto::multicast::block_map::BlockMap;
use rackpool_proto::multicast::event::{
    Failure, MulticastAction, MulticastEvent, MulticastMessage, Status,
};
use rackpool_proto::multicast::member::Stored;
use rackpool_proto::multicast::participant::Participant;
use rackpool_proto::multicast::{Block, MulticastRules, Version};
use rackpool_proto::planted_bugs::Sound;

use super::block_hashes::BlockHashes;
use super::board::{Board, Key};
use super::copy::{Peer, StoredMap};
use super::options::{CastFailure, CastProgress};
use super::records::{Alive, CastNumber, CastRecord, Mail, Place};
use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout};
use crate::store::Store;
use crate::transfer::Memory;
use crate::wait::Pauses;

/// The pause between two looks for messages while blocks come.
const LOOK_FOR_MESSAGES: Duration = Duration::from_millis(100);
/// The pause between two looks for messages of racks other than the coordinator, and for refusals.
const BEAT: Duration = Duration::from_millis(100);
/// The pause between two counts of the bytes that are there, for racks that follow this one.
const COUNT: Duration = Duration::from_millis(5);
/// The pause between two reports of a rack. The board lies behind a link that blocks fill, so a
/// report takes some hundredths of that.
const REPORT: Duration = Duration::from_millis(300);
/// The pause between two signs of life of a program, and between two looks for those of others.
const ALIVE: Duration = Duration::from_secs(1);

/// A rack's part in a cast.
pub(super) struct Session {
    store: Store,
    board: Board,
    cast: CastNumber,
    record: CastRecord,
    /// The object.
    head: Head,
    own: RackId,
    begin: Instant,
    rules: MulticastRules,
    participant: Participant<Sound>,
    map: StoredMap,
    peers: HashMap<RackId, Peer>,
    hashes: BlockHashes,
    mail: Mailbox,
    alive_at: Instant,
    /// When a block was read last; `None` once there is no other.
    read_at: Option<Instant>,
    /// The last sign of life of each rack before this one, and when it was new.
    signs: HashMap<RackId, (u64, Instant)>,
    is_shown: bool,
    result: Option<Result<(), Failure>>,
    report: Option<BTreeMap<RackId, Result<(), Failure>>>,
    /// Racks that take no part, and why.
    refusals: BTreeMap<RackId, CastFailure>,
}

/// What was read and written of messages.
struct Mailbox {
    /// The number of the last message of and to each rack.
    read: HashMap<RackId, u64>,
    written: HashMap<RackId, u64>,
    look_at: Instant,
    look_at_all: Instant,
    pauses: Pauses,
}

/// The memory that a rack receives an object into.
pub(super) struct Receiving<'a> {
    pub(super) bytes: &'a mut PinnedBytesMut<Arc<Pool>>,
    /// Tells others how many bytes are there, from the first one on.
    pub(super) grown: &'a mut dyn FnMut(u64),
    pub(super) grown_at: Instant,
}

/// What a rack has of the object when it begins to take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    Nothing,
    Everything,
}

impl Session {
    /// Takes part with the copy at `head`, and says so on the board.
    pub(super) fn new(
        store: &Store,
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
        let rules = MulticastRules { grace, beat: REPORT, ..MulticastRules::DEFAULT };
        let participant = Participant::new(Time::ZERO, own, group, stored, rules, Sound);
        let map = StoredMap::new(pool, cast, participant.map())?;
        let mut board = Board::open(pool)?;
        let place = Place::Here { head: copy.0, extents: copy.1, map: map.addr() };
        board.write(Key::Place(cast, own), &place)?;
        let now = Instant::now();
        let mail = Mailbox {
            read: HashMap::new(),
            written: HashMap::new(),
            look_at: now,
            look_at_all: now,
            pauses: Pauses::busy(),
        };
        Ok(Self {
            store: store.clone(),
            board,
            cast,
            record,
            head,
            own,
            begin: now,
            rules,
            participant,
            map,
            peers: HashMap::new(),
            hashes: BlockHashes::new(usize::try_from(head.len()).unwrap_or(usize::MAX)),
            mail,
            alive_at: now,
            read_at: None,
            signs: HashMap::new(),
            is_shown: false,
            result: None,
            report: None,
            refusals: BTreeMap::new(),
        })
    }

    /// What became of the racks, if this rack was the coordinator at the end.
    pub(super) fn report(&self) -> Option<BTreeMap<RackId, Result<(), CastFailure>>> {
        let result = |(rack, result): (&RackId, &Result<(), Failure>)| {
            let refusal = self.refusals.get(rack).cloned();
            (*rack, refusal.map_or_else(|| result.map_err(CastFailure::Multicast), Err))
        };
        Some(self.report.as_ref()?.iter().map(result).collect())
    }

    /// How the cast has ended for this rack.
    pub(super) const fn result(&self) -> Option<Result<(), Failure>> {
        self.result
    }

    /// Takes part until the object may be used in this rack, if it is received, or until the cast
    /// has ended for this rack.
    pub(super) fn run(
        &mut self,
        mut into: Option<Receiving<'_>>,
        progress: &mut dyn FnMut(CastProgress),
    ) -> Result<(), StoreError> {
        loop {
            let has_done_all = self.act(&mut into)?;
            if self.result.is_some() || self.is_shown && into.is_some() {
                return Ok(());
            }
            let is_news = self.look_around(&mut into, progress)?;
            if has_done_all && !is_news {
                self.wait();
            }
        }
    }

    /// Does what is due: counts bytes, reads messages, gives a sign of life, tells the machine that
    /// its deadline has passed. Returns whether the machine was told something.
    fn look_around(
        &mut self,
        into: &mut Option<Receiving<'_>>,
        progress: &mut dyn FnMut(CastProgress),
    ) -> Result<bool, StoreError> {
        let (now, mut is_news) = (Instant::now(), false);
        if let Some(into) = into
            && now.duration_since(into.grown_at) > COUNT
        {
            let blocks =
                self.participant.map().missing().next().map_or(u64::MAX, |block| block.0.into());
            (into.grown)(blocks.saturating_mul(self.record.block_bytes).min(self.head.len()));
            into.grown_at = now;
        }
        if now >= self.mail.look_at {
            is_news = self.read_messages(progress)?;
            if is_news {
                self.mail.pauses = Pauses::busy();
            }
            let pause = self.mail.pauses.next(now.elapsed());
            let is_reading = self.read_at.is_some_and(|at| at.elapsed() < LOOK_FOR_MESSAGES);
            self.mail.look_at = Instant::now() + if is_reading { LOOK_FOR_MESSAGES } else { pause };
        }
        if now >= self.alive_at {
            self.board.write(Key::Alive(self.cast, self.own), &Alive { at_ms: now_ms() })?;
            self.look_for_signs()?;
            self.alive_at = now + ALIVE;
        }
        let time = self.time();
        if self.participant.deadline().is_some_and(|deadline| deadline <= time) {
            self.participant.handle(time, MulticastEvent::DeadlinePassed);
            is_news = true;
        }
        Ok(is_news)
    }

    /// Waits until something is due.
    fn wait(&self) {
        let until_look = self.mail.look_at.saturating_duration_since(Instant::now());
        let deadline = self.participant.deadline();
        let until_deadline = deadline.map_or(ALIVE, |deadline| deadline.since(self.time()));
        std::thread::sleep(until_look.min(until_deadline));
    }

    /// Says that programs of this rack may use the object.
    pub(super) fn tell_shown(&mut self) -> Result<(), StoreError> {
        self.board.write(Key::Place(self.cast, self.own), &Place::Shown)
    }

    /// Waits until programs of these racks may use the object, at most for the grace time.
    pub(super) fn wait_until_shown(
        &mut self,
        racks: impl IntoIterator<Item = RackId>,
    ) -> Result<(), StoreError> {
        let until = Instant::now() + self.rules.grace;
        for rack in racks {
            let mut pauses = Pauses::busy();
            loop {
                let look = Instant::now();
                let place = self.board.read::<Place>(Key::Place(self.cast, rack))?;
                if !matches!(place, Some(Ok(Place::Here { .. }))) || look >= until {
                    break;
                }
                std::thread::sleep(pauses.next(look.elapsed()));
            }
        }
        Ok(())
    }

    fn time(&self) -> Time {
        Time::ZERO.after(self.begin.elapsed())
    }

    /// Executes what the machine asks for, until it is time to look for messages. Returns whether
    /// it asks for nothing else.
    fn act(&mut self, into: &mut Option<Receiving<'_>>) -> Result<bool, StoreError> {
        let until = Instant::now() + LOOK_FOR_MESSAGES;
        while let Some(action) = self.participant.poll() {
            if let Some(event) = self.execute(action, into)? {
                self.participant.handle(self.time(), event);
            }
            if self.is_shown && into.is_some() || Instant::now() >= until {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn execute(
        &mut self,
        action: MulticastAction,
        into: &mut Option<Receiving<'_>>,
    ) -> Result<Option<MulticastEvent>, StoreError> {
        match action {
            MulticastAction::Send(to, message) => {
                let number = self.mail.written.entry(to).or_default();
                *number += 1;
                let key = Key::Message { cast: self.cast, from: self.own, to };
                self.board.write(key, &Mail { number: *number, message })?;
            }
            MulticastAction::Look { from, word } => {
                let found = self.look(from, word)?;
                return Ok(Some(MulticastEvent::Looked { from, word, found }));
            }
            MulticastAction::Read { from, block } => {
                self.read_at = Some(Instant::now());
                let found = match into {
                    Some(into) => self.read(from, block, into)?,
                    None => None,
                };
                return Ok(Some(MulticastEvent::BlockRead { from, block, found }));
            }
            MulticastAction::MarkReceived(block) => {
                self.map.set(self.participant.map(), BlockMap::word_of(block))?;
            }
            MulticastAction::Verify => {
                (self.read_at, self.mail.look_at) = (None, Instant::now());
                // A program that receives nothing has a copy that was verified before.
                let is_right = into
                    .as_ref()
                    .is_none_or(|into| self.hashes.finish(into.bytes) == self.head.checksum);
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
            let place = self.board.read::<Place>(Key::Place(self.cast, from))?;
            let Some(place) = place else {
                // It has not begun yet.
                return Ok(Some((self.record.group.version, 0)));
            };
            let Ok(Place::Here { head, extents, map }) = place else { return Ok(None) };
            let layout = HeadLayout::of(self.record.id.len());
            let memory = Memory::of(&self.store, layout, head, &self.head, extents);
            let Ok(memory) = memory else { return Ok(None) };
            self.peers.insert(from, Peer { memory, map });
        }
        let Some(peer) = self.peers.get(&from) else { return Ok(None) };
        let found = peer.look(self.store.pool(), word);
        Ok(found.map(|(cast, word)| (Version(cast.0), word)))
    }

    /// Reads a block of a peer into its place. Returns the version of what the peer has; `None` if
    /// the peer can't be read.
    fn read(
        &mut self,
        from: RackId,
        block: Block,
        into: &mut Receiving<'_>,
    ) -> Result<Option<Version>, StoreError> {
        let Some(peer) = self.peers.get(&from) else { return Ok(None) };
        let start = u64::from(block.0).saturating_mul(self.record.block_bytes);
        let end = start.saturating_add(self.record.block_bytes).min(self.head.len());
        if start < end && !peer.read(start, end, into.bytes, &mut self.hashes)? {
            return Ok(None);
        }
        Ok(peer.cast(self.store.pool()).map(|cast| Version(cast.0)))
    }

    /// Passes new messages to the machine. Returns whether there was one.
    fn read_messages(
        &mut self,
        progress: &mut dyn FnMut(CastProgress),
    ) -> Result<bool, StoreError> {
        let now = Instant::now();
        let coordinator = match self.participant.epoch() {
            epoch if epoch.number > 0 => Some(epoch.coordinator),
            _ => self.record.root(),
        };
        let reads_all = coordinator == Some(self.own) || now >= self.mail.look_at_all;
        let is_beat = now >= self.mail.look_at_all;
        if is_beat {
            self.mail.look_at_all = now + BEAT;
        }
        let mut has_read = false;
        let racks: Vec<_> = self.record.group.members.iter().map(|member| member.rack).collect();
        for from in racks {
            if from == self.own || !reads_all && coordinator != Some(from) {
                continue;
            }
            let key = Key::Message { cast: self.cast, from, to: self.own };
            let last = self.mail.read.get(&from).copied();
            match self.board.read::<Mail>(key)? {
                Some(Ok(Mail { number, message })) if Some(number) != last => {
                    self.mail.read.insert(from, number);
                    self.tell_progress(from, &message, progress);
                    self.participant.handle(self.time(), MulticastEvent::Message(from, message));
                    has_read = true;
                }
                _ => {}
            }
            if is_beat {
                self.read_refusal(from)?;
            }
        }
        Ok(has_read)
    }

    /// Tells the machine which racks before this one give no sign of life: if they are all lost,
    /// this rack coordinates. Messages that they left were read before.
    fn look_for_signs(&mut self) -> Result<(), StoreError> {
        let racks = self.record.group.members.iter().map(|member| member.rack);
        for rack in racks.take_while(|rack| *rack != self.own).collect::<Vec<_>>() {
            let found = self.board.read::<Alive>(Key::Alive(self.cast, rack))?;
            let sign = found.and_then(Result::ok).map_or(0, |alive| alive.at_ms);
            let now = Instant::now();
            let (last, since) = self.signs.entry(rack).or_insert((sign, now));
            if *last != sign {
                (*last, *since) = (sign, now);
            } else if now.duration_since(*since) > self.rules.grace {
                self.participant.handle(self.time(), MulticastEvent::RackLost(rack));
            }
        }
        Ok(())
    }

    /// Notes why a rack takes no part, or no longer, if it says so.
    fn read_refusal(&mut self, rack: RackId) -> Result<(), StoreError> {
        let failure = match self.board.read::<Place>(Key::Place(self.cast, rack))? {
            Some(Ok(Place::Refused(why))) => CastFailure::Refused(why),
            Some(Ok(Place::Deleted)) => CastFailure::Deleted,
            Some(Err(error)) => CastFailure::OtherRelease(error.to_string()),
            Some(Ok(Place::Here { .. } | Place::Shown)) | None => return Ok(()),
        };
        if self.refusals.insert(rack, failure).is_none() {
            self.participant.handle(self.time(), MulticastEvent::RackLost(rack));
        }
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
