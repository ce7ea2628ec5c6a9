//! A member of a group, which receives the messages.

use std::collections::BTreeSet;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_proto::Time;
use rackpool_proto::group::member::{GroupEnd, MemberAction, MemberMachine, Source};
use rackpool_proto::group::words::{Found, MemberSet};
use rackpool_proto::group::{GroupRules, MOST_MEMBERS};
use rackpool_proto::planted_bugs::Sound;

use super::joining::{Joined, join};
use super::names::{GroupId, Names};
use super::options::{GroupFailure, GroupOutcome};
use super::place::{HEADER, OwnPlace, Word, read_words};
use super::record::{Kind, Record};
use crate::error::StoreError;
use crate::store::Store;
use crate::view::View;
use crate::wait::Pauses;

/// A member of a group: receives the messages of its root, in order.
///
/// The messages come while [`receive`](Self::receive) runs. A program that does not call it for the
/// grace time while the root waits for it is lost to the group.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use rackpool_client::{ClientOptions, Pool, RackId};
/// use rackpool_objects::{GroupMember, Received};
/// # let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(1)))?);
/// let mut log = GroupMember::join(pool, "log", Duration::from_secs(30))?;
/// let outcome = loop {
///     match log.receive(Duration::from_secs(1))? {
///         Received::Message(message) => println!("{}: {} B", message.number(), message.len()),
///         Received::TimedOut => println!("nothing for a second"),
///         Received::Ended(outcome) => break outcome,
///     }
/// };
/// println!("the group has ended: {outcome:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GroupMember {
    pool: Arc<Pool>,
    names: Names,
    id: GroupId,
    racks: Vec<RackId>,
    seats: Vec<GlobalAddr>,
    own: usize,
    machine: MemberMachine,
    begin: Instant,
    place: OwnPlace,
    /// The messages before this position were received.
    next: u64,
    /// The store of long messages, once there was one.
    store: Option<Store>,
    /// Bytes of a read may still come into the ring.
    is_broken: bool,
    /// How the group has ended, once it has.
    end: Option<GroupEnd>,
}

/// What a call of [`GroupMember::receive`] has found.
#[derive(Debug)]
pub enum Received<'a> {
    /// The next message.
    Message(Message<'a>),
    /// No message has come in time.
    TimedOut,
    /// There will be no more messages.
    Ended(GroupOutcome),
}

/// A message: derefs to its bytes, in the memory of this rack.
#[derive(Debug)]
pub struct Message<'a> {
    number: u64,
    bytes: MessageBytes<'a>,
}

#[derive(Debug)]
enum MessageBytes<'a> {
    InRing(&'a [u8]),
    Object(View),
}

impl Message<'_> {
    /// How many messages were sent before this one.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The message as an object, if it is a long one. The view counts as long as the program wants.
    #[must_use]
    pub fn into_view(self) -> Option<View> {
        match self.bytes {
            MessageBytes::InRing(_) => None,
            MessageBytes::Object(view) => Some(view),
        }
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            MessageBytes::InRing(bytes) => bytes,
            MessageBytes::Object(view) => view,
        }
    }
}

/// A record that is a message.
struct Next {
    position: u64,
    number: u64,
    kind: Kind,
    /// Where its bytes are in the ring.
    range: Range<usize>,
}

impl GroupMember {
    /// Becomes the member of the own rack in the group of this name. Waits until the root has made
    /// the group and all its members have joined, at most for `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Group`] if there is no such group in time, if the rack is none of it, or if
    /// another program is its member; or that of the pool.
    pub fn join(pool: Arc<Pool>, name: &str, timeout: Duration) -> Result<Self, StoreError> {
        let names = Names::of(name)?;
        let Joined { root, group, own, place } = join(&pool, &names, timeout)?;
        let id = GroupId { root, number: group.number };
        let grace = Duration::from_millis(group.grace_ms);
        let rules = GroupRules { ring: group.bytes - HEADER, grace };
        let members = group.racks.len().min(MOST_MEMBERS);
        Ok(Self {
            pool,
            names,
            id,
            racks: group.racks,
            seats: group.seats,
            own,
            machine: MemberMachine::new(Time::ZERO, rules, own, members, Sound),
            begin: Instant::now(),
            place,
            next: 0,
            store: None,
            is_broken: false,
            end: None,
        })
    }

    /// Waits for the next message, at most for `timeout`. The message before it counts as taken:
    /// later ones overwrite its bytes.
    ///
    /// # Errors
    /// [`StoreError::Group`] if a long message is lost; the next call returns the message after it.
    /// As [`Store::get`] for a long message; the next call tries again. Or that of the pool; if the
    /// own daemon has ended during a read, this program is lost to the group.
    pub fn receive(&mut self, timeout: Duration) -> Result<Received<'_>, StoreError> {
        let begin = Instant::now();
        self.take();
        let mut pauses = Pauses::busy();
        let next = loop {
            if let Some(next) = self.next_message()? {
                break next;
            }
            if let Some(end) = self.end {
                return Ok(Received::Ended(self.outcome(end)));
            }
            let look = Instant::now();
            if self.act()? {
                let left = timeout.saturating_sub(begin.elapsed());
                if left.is_zero() {
                    return Ok(Received::TimedOut);
                }
                std::thread::sleep(pauses.next(look.elapsed()).min(left));
            }
        };
        let Next { position, number, kind, range } = next;
        let bytes = match kind {
            Kind::Object => MessageBytes::Object(self.long(number).inspect_err(|error| {
                if !matches!(error, StoreError::Group(_)) {
                    self.next = position;
                }
            })?),
            _ => MessageBytes::InRing(self.place.ring().get(range).unwrap_or_default()),
        };
        Ok(Received::Message(Message { number, bytes }))
    }

    /// The racks of the members, of which some may be lost.
    #[must_use]
    pub fn racks(&self) -> &[RackId] {
        &self.racks
    }

    /// Says that all messages before `next` are used.
    fn take(&mut self) {
        self.machine.take(self.next);
        self.place.store(Word::Taken, self.next);
    }

    /// The next message in the ring, which is received with this.
    fn next_message(&mut self) -> Result<Option<Next>, StoreError> {
        while self.next < self.machine.have() {
            let (position, ring) = (self.next, self.place.ring());
            let at = usize::try_from(position % ring.len().max(1) as u64).unwrap_or(usize::MAX);
            let record =
                ring.get(at..).and_then(|bytes| Record::read(bytes, self.id.number, position));
            let Some(record) = record else {
                return Err(GroupFailure::Damaged { position }.into());
            };
            self.next = position + record.bytes();
            match record.kind {
                Kind::Bytes | Kind::Object => {
                    let begin = at + Record::HEADER;
                    let range = begin..begin + record.len as usize;
                    let Record { kind, message: number, .. } = record;
                    return Ok(Some(Next { position, number, kind, range }));
                }
                Kind::Gap => self.take(),
                Kind::End => {
                    self.take();
                    self.machine.close();
                }
            }
        }
        Ok(None)
    }

    /// A message that is an object.
    fn long(&mut self, number: u64) -> Result<View, StoreError> {
        let lost = || StoreError::Group(GroupFailure::MessageLost { number });
        if self.store.is_none() {
            self.store = Store::open(Arc::clone(&self.pool), &self.names.store(self.id.number))?;
        }
        let store = self.store.as_ref().ok_or_else(lost)?;
        match store.get(&number.to_le_bytes()) {
            Ok(view) => view.ok_or_else(lost),
            Err(error) if error.is_lost() => Err(lost()),
            Err(error) => Err(error),
        }
    }

    /// Executes what the machine asks for. Returns whether it asks to wait.
    fn act(&mut self) -> Result<bool, StoreError> {
        if self.is_broken {
            self.end(GroupEnd::Lost);
            return Ok(false);
        }
        match self.machine.poll() {
            MemberAction::StoreHave(have) => self.place.store(Word::Have, have),
            MemberAction::Freeze => self.place.store(Word::Frozen, 1),
            MemberAction::Look(of) => {
                let found = read_words(&self.pool, self.addr(of), self.id.number)?;
                self.machine.found(self.time(), of, found);
            }
            MemberAction::Read { from, begin, end } => {
                let source = self.addr(from);
                let read = self.place.read(source, self.id.number, begin, end);
                self.is_broken = read.is_err();
                self.machine.read(self.time(), from, end, read?);
            }
            MemberAction::Decide(survivors) => {
                let decided = self.names.decide(&self.pool, self.id, survivors)?;
                self.machine.decided(self.time(), decided);
            }
            MemberAction::Learn => {
                let decided = self.names.decision(&self.pool, self.id)?;
                self.machine.decided(self.time(), decided);
            }
            MemberAction::Wait => return Ok(true),
            MemberAction::End(end) => self.end(end),
        }
        Ok(false)
    }

    fn time(&self) -> Time {
        Time::ZERO.after(self.begin.elapsed())
    }

    fn addr(&self, of: Source) -> GlobalAddr {
        match of {
            Source::Root => self.id.root,
            Source::Member(member) => self.seats.get(member).copied().unwrap_or(GlobalAddr::NULL),
        }
    }

    fn outcome(&self, end: GroupEnd) -> GroupOutcome {
        let racks = |members: MemberSet| -> BTreeSet<_> {
            members.iter().filter_map(|member| self.racks.get(member).copied()).collect()
        };
        match end {
            GroupEnd::Closed => GroupOutcome::Closed,
            GroupEnd::RootLost(members) => GroupOutcome::RootLost(racks(members)),
            GroupEnd::Lost => GroupOutcome::Lost,
        }
    }

    /// Ends the group for this member. The others do not need its memory any more.
    fn end(&mut self, end: GroupEnd) {
        self.end = Some(end);
        if let GroupEnd::RootLost(survivors) = end {
            // If this fails, the store stays: `rackpool root ls` shows it.
            let _ = self.remove_store(survivors);
        }
        self.place.leave();
    }

    /// Removes the store of long messages if all survivors have taken everything.
    fn remove_store(&self, survivors: MemberSet) -> Result<(), StoreError> {
        for member in survivors.without(self.own).iter() {
            let addr = self.addr(Source::Member(member));
            match read_words(&self.pool, addr, self.id.number)? {
                Found::Is(words) if words.taken >= self.next => {}
                Found::Is(_) | Found::Silent => return Ok(()),
                Found::Gone => {}
            }
        }
        Store::remove(Arc::clone(&self.pool), &self.names.store(self.id.number)).map(drop)
    }
}
