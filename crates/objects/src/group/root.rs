//! The root of a group, which sends the messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::{AllocError, GlobalAddr, Pool, RackId};
use rackpool_proto::Time;
use rackpool_proto::group::root::{RootAction, RootMachine};
use rackpool_proto::group::words::{Decision, Found, MemberSet, Survivors};
use rackpool_proto::group::{GroupRules, MOST_MEMBERS};
use rackpool_proto::planted_bugs::Sound;

use super::names::{GroupId, Names};
use super::opening::{Beats, Opening, take_name};
use super::options::{GroupFailure, GroupOptions, GroupReport, not_allowed};
use super::place::{HEADER, LEAST, OwnPlace, Word, read_words};
use super::record::{Kind, Record};
use crate::error::StoreError;
use crate::store::Store;
use crate::unsealed::CreateOptions;
use crate::wait::Pauses;

/// The longest wait of a root that has closed its group for members to find that out. Then the
/// group's name keeps saying so.
const FAREWELL: Duration = Duration::from_secs(1);
/// The pause between two looks at them.
const LOOK: Duration = Duration::from_millis(1);

/// The root of a group: sends messages to a program in each of some other racks, in order.
///
/// A message that [`send`](Self::send) has taken is read by the members one-sided. If this program
/// ends, or stops for the grace time, the members go on without it: all of them get the same
/// messages. Dropping the root without [`close`](Self::close) is the same for them. A thread shows
/// that the root lives; it uses no pool.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use rackpool_client::{ClientOptions, Pool, RackId};
/// use rackpool_objects::{GroupOptions, GroupRoot};
/// # let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?);
/// let racks = [RackId(1), RackId(2)];
/// let mut log = GroupRoot::create(pool, "log", &racks, &GroupOptions::default())?;
/// log.send(b"first")?;
/// log.send(b"second")?;
/// let report = log.close()?;
/// assert!(report.is_complete(), "{report:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GroupRoot {
    pool: Arc<Pool>,
    names: Names,
    id: GroupId,
    racks: Vec<RackId>,
    seats: Vec<GlobalAddr>,
    machine: RootMachine,
    begin: Instant,
    _beats: Beats,
    place: OwnPlace,
    messages: u64,
    /// The numbers of messages that some member has not taken as far as is known, with the ends of
    /// their records.
    untaken: VecDeque<(u64, u64)>,
    /// How many messages each member had taken when it was lost.
    lost: BTreeMap<usize, u64>,
    /// The store of long messages.
    store: Option<Store>,
    /// The long messages that are not deleted, with the ends of their records.
    long: VecDeque<(u64, u64)>,
}

impl GroupRoot {
    /// Makes a group of this name (1 to 200 bytes) with a member in each of these racks, at most
    /// 16, and waits until the members have [joined](super::GroupMember::join). A name can be used
    /// again when the members of the group before have ended.
    ///
    /// # Errors
    /// [`StoreError::Group`] if a group of this name is there, or if no program joins in time, and
    /// [`StoreError::Option`] for racks or options that are not allowed. Or that of the pool.
    pub fn create(
        pool: Arc<Pool>,
        name: &str,
        racks: &[RackId],
        options: &GroupOptions,
    ) -> Result<Self, StoreError> {
        let (names, racks) = (Names::of(name)?, members(&pool, racks)?);
        let bytes = options.ring_bytes.min(pool.page_bytes());
        if !options.ring_bytes.is_power_of_two() || bytes < LEAST {
            return Err(not_allowed("the ring of a group", "powers of two from 4 KiB on"));
        }
        if options.grace < Duration::from_secs(1) {
            return Err(not_allowed("the grace time of a group", "1 s and more"));
        }
        let mut place = OwnPlace::new(&pool, bytes)?;
        let number = rand::random::<u64>().max(1);
        let id = GroupId { root: place.addr(), number };
        let grace_ms = u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX);
        place.write_group(names.hash(), &racks, grace_ms)?;
        place.begin(number);
        let beats = Beats::begin(&place)?;
        take_name(&pool, &names, id)?;
        let rules = GroupRules { ring: bytes - HEADER, grace: options.grace };
        let machine = RootMachine::new(Time::ZERO, rules, racks.len(), Sound);
        let seats = {
            let mut opening = Opening { pool: &pool, names: &names, id, is_open: false };
            let seats = opening.seats(&racks, options.joining)?;
            place.write_seats(&seats)?;
            place.store(Word::Members, machine.members().to_raw());
            opening.is_open = true;
            seats
        };
        for (rack, seat) in racks.iter().zip(&seats) {
            // An announcement that stays is none of another group.
            let _ = names.leave(&pool, *rack, *seat);
        }
        Ok(Self {
            pool,
            names,
            id,
            racks,
            seats,
            machine,
            begin: Instant::now(),
            _beats: beats,
            place,
            messages: 0,
            untaken: VecDeque::new(),
            lost: BTreeMap::new(),
            store: None,
            long: VecDeque::new(),
        })
    }

    /// Sends a message, and returns its number: how many were sent before. The message is in this
    /// rack's memory then, and the members read it; [`close`](Self::close) says that they have.
    /// Blocks as long as the ring is full of messages that a member has not taken, at most for the
    /// grace time; then the member is lost.
    ///
    /// A message of more than a quarter of the ring is stored as an object in this rack until all
    /// members have taken it. If the rack has no room for it, the call waits until they have taken
    /// earlier ones.
    ///
    /// # Errors
    /// [`StoreError::Group`] if all members are lost; as [`Store::put`] for long messages; or that
    /// of the pool. The message was not sent then.
    pub fn send(&mut self, bytes: &[u8]) -> Result<u64, StoreError> {
        let number = self.messages;
        let is_long = bytes.len() > self.place.ring().len() / 4;
        let (kind, body) = if is_long { (Kind::Object, &[][..]) } else { (Kind::Bytes, bytes) };
        if is_long {
            self.put_long(number, bytes)?;
        }
        self.append(kind, body)?;
        self.messages += 1;
        let end = self.machine.have();
        self.untaken.push_back((number, end));
        if is_long {
            self.long.push_back((number, end));
        }
        Ok(number)
    }

    /// Sends no more, and waits until each member has taken all messages, or is lost.
    ///
    /// # Errors
    /// [`StoreError::Group`] if the members have ended the group because they took this root for
    /// lost, or that of the pool.
    pub fn close(mut self) -> Result<GroupReport, StoreError> {
        let ended = self.append(Kind::End, &[]).and_then(|()| {
            self.machine.begin_close(self.time());
            self.run(&[], Kind::End)
        });
        match ended {
            // The report names them.
            Err(StoreError::Group(GroupFailure::NoMember)) => {}
            ended => ended?,
        }
        let closed = Survivors { end: self.machine.have(), members: MemberSet::default() };
        let decided = self.names.decide(&self.pool, self.id, closed)?;
        if self.store.take().is_some() {
            Store::remove(Arc::clone(&self.pool), &self.names.store(self.id.number))?;
        }
        if decided != Some(Decision::Closed) {
            return Err(GroupFailure::EndedByMembers.into());
        }
        let racks = self.racks.iter().enumerate().map(|(member, rack)| {
            let is_complete = self.machine.members().contains(member);
            (*rack, if is_complete { Ok(()) } else { Err(self.taken_by(member)) })
        });
        let report = GroupReport { messages: self.messages, racks: racks.collect() };
        // The members find that the root has left, and then how the group has ended.
        self.place.leave();
        if self.wait_until_left()? {
            self.names.forget(&self.pool, self.id, closed)?;
        }
        Ok(report)
    }

    /// The racks of the members that are not known to be lost, and how many messages each is known
    /// to have taken.
    #[must_use]
    pub fn members(&self) -> BTreeMap<RackId, u64> {
        let live = self.machine.members().iter();
        live.filter_map(|member| Some((*self.racks.get(member)?, self.taken_by(member)))).collect()
    }

    fn taken_by(&self, member: usize) -> u64 {
        if let Some(taken) = self.lost.get(&member) {
            return *taken;
        }
        let taken = self.machine.taken(member);
        let first = self.untaken.iter().find(|(_, end)| *end > taken);
        first.map_or(self.messages, |(number, _)| *number)
    }

    fn time(&self) -> Time {
        Time::ZERO.after(self.begin.elapsed())
    }

    fn seat(&self, member: usize) -> GlobalAddr {
        self.seats.get(member).copied().unwrap_or(GlobalAddr::NULL)
    }

    /// Waits until all members that are not lost have left. Returns whether they have.
    fn wait_until_left(&self) -> Result<bool, StoreError> {
        let begin = Instant::now();
        let mut there: Vec<_> = self.machine.members().iter().collect();
        while begin.elapsed() < FAREWELL {
            let mut still = Vec::new();
            for member in there {
                match read_words(&self.pool, self.seat(member), self.id.number)? {
                    Found::Gone => {}
                    Found::Is(_) | Found::Silent => still.push(member),
                }
            }
            if still.is_empty() {
                return Ok(true);
            }
            there = still;
            std::thread::sleep(LOOK);
        }
        Ok(false)
    }

    /// Stores a long message. Waits for room as long as members have not taken earlier ones.
    fn put_long(&mut self, number: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let id = number.to_le_bytes();
        if self.store.is_none() {
            let (pool, name) = (Arc::clone(&self.pool), self.names.store(self.id.number));
            self.store = Some(Store::open_or_create(pool, &name)?);
        }
        if !self.long.is_empty() {
            self.machine.begin_wait(self.time(), 0);
            for member in self.machine.members().iter() {
                self.look(member)?;
            }
        }
        loop {
            self.delete_taken();
            let Some(store) = &self.store else { return Err(StoreError::Removed) };
            match store.put(&id, bytes, &CreateOptions::default()) {
                // A send that has failed has left it.
                Err(StoreError::Exists) => drop(store.delete(&id)?),
                Err(StoreError::Alloc(AllocError::RackFull { .. })) if !self.long.is_empty() => {
                    let oldest = self.long.front().map_or(0, |(_, end)| *end);
                    self.machine.begin_wait(self.time(), oldest);
                    self.run(&[], Kind::Gap)?;
                }
                put => return put,
            }
        }
    }

    /// Deletes long messages that all have taken. One that can't be deleted now is deleted later.
    fn delete_taken(&mut self) {
        let (taken, store) = (self.machine.taken_by_all(), &self.store);
        self.long.retain(|(number, end)| {
            let is_deleted = *end <= taken
                && store.as_ref().is_some_and(|of| of.delete(&number.to_le_bytes()).is_ok());
            !is_deleted
        });
    }

    /// Appends a record to the stream.
    fn append(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), StoreError> {
        let len = (Record::HEADER + bytes.len()) as u64;
        self.machine.begin(self.time(), len);
        self.run(bytes, kind)?;
        let taken = self.machine.taken_by_all();
        while self.untaken.front().is_some_and(|(_, end)| *end <= taken) {
            self.untaken.pop_front();
        }
        Ok(())
    }

    /// Reads the words of a member.
    fn look(&mut self, member: usize) -> Result<(), StoreError> {
        let found = read_words(&self.pool, self.seat(member), self.id.number)?;
        let taken = self.taken_by(member);
        self.machine.found(self.time(), member, found);
        if !self.machine.members().contains(member) {
            self.lost.entry(member).or_insert(taken);
        }
        Ok(())
    }

    /// Executes what the machine asks for.
    fn run(&mut self, bytes: &[u8], kind: Kind) -> Result<(), StoreError> {
        let (mut pauses, mut began) = (Pauses::busy(), Instant::now());
        loop {
            match self.machine.poll() {
                RootAction::Look(member) => self.look(member)?,
                RootAction::Wait => {
                    std::thread::sleep(pauses.next(began.elapsed()));
                    began = Instant::now();
                }
                RootAction::StoreMembers(members) => {
                    self.place.store(Word::Members, members.to_raw());
                }
                RootAction::WriteGap { at, bytes } => {
                    let header = Record::HEADER as u64;
                    let len = u32::try_from(bytes.saturating_sub(header)).unwrap_or(u32::MAX);
                    self.write(Record { kind: Kind::Gap, len, message: self.messages }, at, &[]);
                }
                RootAction::WriteRecord { at } => {
                    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                    self.write(Record { kind, len, message: self.messages }, at, bytes);
                }
                RootAction::StoreHave(have) => self.place.store(Word::Have, have),
                RootAction::Done => return Ok(()),
                RootAction::NoMember => return Err(GroupFailure::NoMember.into()),
            }
        }
    }

    fn write(&mut self, record: Record, position: u64, bytes: &[u8]) {
        let (number, ring) = (self.id.number, self.place.ring_mut());
        let at = usize::try_from(position % ring.len().max(1) as u64).unwrap_or(usize::MAX);
        if let Some(into) = ring.get_mut(at..) {
            record.write(into, number, position, bytes);
        }
    }
}

/// The racks of the members, each once.
fn members(pool: &Pool, racks: &[RackId]) -> Result<Vec<RackId>, StoreError> {
    let members: BTreeSet<_> = racks.iter().copied().collect();
    if members.is_empty() || members.len() > MOST_MEMBERS || members.contains(&pool.rack()) {
        let allowed = "1 to 16 other racks than that of the root";
        return Err(not_allowed("the racks of a group", allowed));
    }
    Ok(members.into_iter().collect())
}
