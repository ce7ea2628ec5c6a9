//! The root of a group, which sends the messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_proto::Time;
use rackpool_proto::group::root::{RootAction, RootMachine};
use rackpool_proto::group::words::Found;
use rackpool_proto::group::{GroupRules, MOST_MEMBERS};
use rackpool_proto::planted_bugs::Sound;

use super::names::Names;
use super::options::{GroupFailure, GroupOptions, GroupReport, not_allowed};
use super::place::{HEADER, LEAST, OwnPlace, OwnWord, Word, read_group, read_words};
use super::record::{Kind, Record};
use crate::error::StoreError;
use crate::store::Store;
use crate::unsealed::CreateOptions;
use crate::wait::Pauses;

/// The pause between two beats.
const BEAT: Duration = Duration::from_millis(100);
/// The pause between two looks for programs that join.
const LOOK: Duration = Duration::from_millis(5);

/// The root of a group: sends messages to a program in each of some other racks, in order.
///
/// A message that [`send`](Self::send) has taken is read by the members one-sided. If this program
/// ends, or stops for the grace time, the members go on without it: all of them get the same
/// messages. Dropping the root without [`close`](Self::close) is the same for them. To send beats
/// takes a thread, which uses no pool.
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
    number: u64,
    racks: Vec<RackId>,
    seats: Vec<GlobalAddr>,
    machine: RootMachine,
    begin: Instant,
    _beats: Beats,
    place: OwnPlace,
    messages: u64,
    /// The numbers of messages that some member has not taken, with the ends of their records.
    untaken: VecDeque<(u64, u64)>,
    /// The store of long messages.
    store: Option<Store>,
    /// The long messages among those that are untaken.
    long: VecDeque<(u64, u64)>,
}

impl GroupRoot {
    /// Makes a group of this name (1 to 200 bytes) with a member in each of these racks, at most
    /// 16, and waits until the members have [joined](super::GroupMember::join).
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
        let place = OwnPlace::new(&pool, bytes)?;
        let number = rand::random::<u64>().max(1);
        place.write_group(names.hash(), &racks)?;
        place.store(Word::Number, number);
        let beats = Beats::begin(&place)?;
        take_name(&pool, &names, place.addr())?;
        let rules = GroupRules { number, ring: bytes - HEADER, grace: options.grace };
        let machine = RootMachine::new(Time::ZERO, rules, racks.len(), Sound);
        let seats = {
            let mut opening = Opening { pool: &pool, names: &names, place: &place, is_open: false };
            let seats = opening.seats(number, &racks, options.joining)?;
            place.write_seats(&seats)?;
            place.store(Word::Members, machine.members().to_raw());
            opening.is_open = true;
            seats
        };
        for (rack, seat) in racks.iter().zip(&seats) {
            names.leave(&pool, *rack, *seat)?;
        }
        Ok(Self {
            store: None,
            untaken: VecDeque::new(),
            long: VecDeque::new(),
            messages: 0,
            _beats: beats,
            pool,
            names,
            number,
            racks,
            seats,
            machine,
            begin: Instant::now(),
            place,
        })
    }

    /// Sends a message, and returns its number: how many were sent before. It is in this rack's
    /// memory then, and the members read it; [`close`](Self::close) says that they have. Blocks as
    /// long as the ring is full of messages that a member has not taken, at most for the grace
    /// time; then the member is lost.
    ///
    /// A message of more than a quarter of the ring is stored as an object in this rack until all
    /// members have taken it.
    ///
    /// # Errors
    /// [`StoreError::Group`] if all members are lost; as [`Store::put`] for long messages; or that
    /// of the pool. The message was not sent then.
    pub fn send(&mut self, bytes: &[u8]) -> Result<u64, StoreError> {
        let number = self.messages;
        let ring = self.place.ring().len();
        let is_long = bytes.len() > ring / 4;
        if is_long {
            let store = self.store()?;
            // A send that has failed may have left it.
            store.delete(&number.to_le_bytes())?;
            store.put(&number.to_le_bytes(), bytes, &CreateOptions::default())?;
        }
        let (kind, body) = if is_long { (Kind::Object, &[][..]) } else { (Kind::Bytes, bytes) };
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
        if !self.machine.members().is_empty() {
            match self.append(Kind::End, &[]) {
                Err(StoreError::Group(GroupFailure::NoMember)) => {}
                appended => appended?,
            }
            self.machine.begin_close(self.time());
            self.run(&[], Kind::End)?;
        }
        let is_closed = self.names.close(&self.pool, self.place.addr())?;
        if !is_closed {
            return Err(GroupFailure::EndedByMembers.into());
        }
        self.remove_store()?;
        let racks = self.racks.iter().enumerate().map(|(member, rack)| {
            let is_complete = self.machine.members().contains(member);
            (*rack, if is_complete { Ok(()) } else { Err(self.taken_by(member)) })
        });
        Ok(GroupReport { messages: self.messages, racks: racks.collect() })
    }

    /// The racks of the members that are not known to be lost, and how many messages each has
    /// taken at least.
    pub fn members(&self) -> BTreeMap<RackId, u64> {
        let live = self.machine.members().iter();
        live.filter_map(|member| Some((*self.racks.get(member)?, self.taken_by(member)))).collect()
    }

    fn taken_by(&self, member: usize) -> u64 {
        let taken = self.machine.taken(member);
        let first = self.untaken.iter().find(|(_, end)| *end > taken);
        first.map_or(self.messages, |(number, _)| *number)
    }

    fn time(&self) -> Time {
        Time::ZERO.after(self.begin.elapsed())
    }

    /// Appends a record to the stream.
    fn append(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), StoreError> {
        let len = (Record::HEADER + bytes.len()) as u64;
        self.machine.begin(self.time(), len);
        self.run(bytes, kind)?;
        // Members that are lost may have taken less.
        let taken = self.seats_taken();
        while self.untaken.front().is_some_and(|(_, end)| *end <= taken) {
            self.untaken.pop_front();
        }
        self.delete_taken()
    }

    /// The position up to which every member, lost or not, is known to have taken everything.
    fn seats_taken(&self) -> u64 {
        (0..self.seats.len()).map(|member| self.machine.taken(member)).min().unwrap_or(0)
    }

    /// Deletes long messages that all have taken.
    fn delete_taken(&mut self) -> Result<(), StoreError> {
        let taken = self.machine.taken_by_all();
        while let Some((number, _)) = self.long.pop_front_if(|(_, end)| *end <= taken) {
            if let Some(store) = &self.store {
                store.delete(&number.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Executes what the machine asks for.
    fn run(&mut self, bytes: &[u8], kind: Kind) -> Result<(), StoreError> {
        let mut pauses = Pauses::busy();
        loop {
            if self.machine.members().is_empty() {
                return Err(GroupFailure::NoMember.into());
            }
            let began = Instant::now();
            match self.machine.poll() {
                RootAction::Look(member) => {
                    let seat = self.seats.get(member).copied().unwrap_or(GlobalAddr::NULL);
                    let found = read_words(&self.pool, seat)?;
                    self.machine.found(self.time(), member, found);
                    if self.machine.members().is_empty() {
                        self.place.store(Word::Members, 0);
                    }
                }
                RootAction::Wait => std::thread::sleep(pauses.next(began.elapsed())),
                RootAction::StoreMembers(members) => {
                    self.place.store(Word::Members, members.to_raw());
                }
                RootAction::WriteGap { at, bytes } => {
                    let len = u32::try_from(bytes).unwrap_or(u32::MAX) - 32;
                    self.write(Record { kind: Kind::Gap, len, message: self.messages }, at, &[]);
                }
                RootAction::WriteRecord { at } => {
                    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                    self.write(Record { kind, len, message: self.messages }, at, bytes);
                }
                RootAction::StoreHave(have) => self.place.store(Word::Have, have),
                RootAction::Done => return Ok(()),
            }
        }
    }

    fn write(&mut self, record: Record, position: u64, bytes: &[u8]) {
        let (number, ring) = (self.number, self.place.ring_mut());
        let at = usize::try_from(position % ring.len().max(1) as u64).unwrap_or(usize::MAX);
        if let Some(into) = ring.get_mut(at..) {
            record.write(into, number, position, bytes);
        }
    }

    /// The store of long messages. One that an earlier group of this name has left is emptied.
    fn store(&mut self) -> Result<&Store, StoreError> {
        if self.store.is_none() {
            let (pool, name) = (Arc::clone(&self.pool), self.names.store());
            Store::remove(Arc::clone(&pool), &name)?;
            self.store = Some(Store::open_or_create(pool, &name)?);
        }
        self.store.as_ref().ok_or(StoreError::Removed)
    }

    fn remove_store(&mut self) -> Result<(), StoreError> {
        if self.store.take().is_some() {
            Store::remove(Arc::clone(&self.pool), &self.names.store())?;
        }
        Ok(())
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

/// Lets the group's name lead to this root, unless that of another one lives.
fn take_name(pool: &Pool, names: &Names, root: GlobalAddr) -> Result<(), StoreError> {
    loop {
        let found = names.root(pool)?;
        if let Some(other) = found
            && lives(pool, names, other)?
        {
            return Err(GroupFailure::Exists.into());
        }
        if names.set_root(pool, found, Some(root))? {
            return Ok(());
        }
    }
}

/// Whether the object at this address is that of a root of this group that beats.
fn lives(pool: &Pool, names: &Names, addr: GlobalAddr) -> Result<bool, StoreError> {
    let look = || {
        Ok::<_, StoreError>(match read_group(pool, addr)? {
            Found::Is(group) if group.hash == names.hash() => Some(group.words),
            Found::Is(_) | Found::Gone => None,
            // Nobody knows.
            Found::Silent => return Err(GroupFailure::Exists.into()),
        })
    };
    let Some(first) = look()?.filter(|words| words.number != 0) else { return Ok(false) };
    std::thread::sleep(4 * BEAT);
    let second = look()?;
    Ok(second.is_some_and(|now| now.number == first.number && now.beat != first.beat))
}

/// A group whose members have not all joined. Its name is given back unless it is opened.
struct Opening<'a> {
    pool: &'a Pool,
    names: &'a Names,
    place: &'a OwnPlace,
    is_open: bool,
}

impl Opening<'_> {
    /// Waits until a program has joined in each rack. Returns the addresses of their objects.
    fn seats(
        &self,
        number: u64,
        racks: &[RackId],
        joining: Duration,
    ) -> Result<Vec<GlobalAddr>, StoreError> {
        let begin = Instant::now();
        let mut seats = vec![None; racks.len()];
        loop {
            for (rack, seat) in racks.iter().zip(&mut seats).filter(|(_, seat)| seat.is_none()) {
                let Some(addr) = self.names.joining(self.pool, *rack)? else { continue };
                let found = read_words(self.pool, addr)?;
                let is_ours = matches!(found, Found::Is(words) if words.number == number);
                *seat = is_ours.then_some(addr);
            }
            if let Some(seats) = seats.iter().copied().collect() {
                return Ok(seats);
            }
            if begin.elapsed() > joining {
                let absent = racks.iter().zip(&seats).filter(|(_, seat)| seat.is_none());
                let absent = absent.map(|(rack, _)| *rack).collect();
                return Err(GroupFailure::Absent(absent).into());
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            // If this fails, the name leads to memory that is no root's: the next group takes it.
            let _ = self.names.set_root(self.pool, Some(self.place.addr()), None);
        }
    }
}

/// The thread that shows that the root lives.
#[derive(Debug)]
struct Beats {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Beats {
    fn begin(place: &OwnPlace) -> Result<Self, StoreError> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (stop, word) = (Arc::clone(&is_stopped), place.beat()?);
        let beat = move || {
            let mut beats = 1_u64;
            while !stop.load(Ordering::Relaxed) {
                if let Some(word) = &word {
                    OwnWord::store(word, [beats]);
                }
                beats += 1;
                std::thread::park_timeout(BEAT);
            }
        };
        let thread = std::thread::Builder::new().name("group-beats".into()).spawn(beat);
        Ok(Self { is_stopped, thread: Some(thread.map_err(StoreError::Thread)?) })
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
