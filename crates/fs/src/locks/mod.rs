//! Locks of files, which hold between all mounts: docs/design/fs.md, "Locks".

mod index;
mod ranges;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

pub(crate) use ranges::Locks;
pub use ranges::{LockFamily, LockMode, LockOwner, LockRange};

use crate::attr::Ino;
use crate::error::FsError;
use crate::file::OpenFile;
use crate::keys;
use crate::store::Work;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;
use ranges::Held;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// For whom.
    pub owner: LockOwner,
    /// Of which bytes.
    pub range: LockRange,
    /// Which lock it is to have there; none: what it has is taken.
    pub mode: Option<LockMode>,
    /// The process that others in the same mount are told of.
    pub pid: u32,
    /// The open file description it is asked through: when that is closed, so are the owner's
    /// locks.
    pub handle: u64,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The owner has what was asked for.
    Done(Option<Outdated>),
    /// Others have locks that are in the way.
    InTheWay(Vec<OtherLock>),
}

/// Somebody may have written to the file since this mount last looked: what it keeps of the
/// contents is to be dropped before the lock is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outdated(Seen);

/// A state of the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    turn: u64,
    /// Writes of the own mount. One may have been on its way while what was kept was dropped, so
    /// that somebody reads the bytes of before, and keeps them.
    writes: u64,
}

/// A lock that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherLock {
    /// Who has it, if that is in this mount.
    pub owner: Option<LockOwner>,
    /// The process; 0 if it is not in this mount.
    pub pid: u32,
    /// Which lock.
    pub mode: LockMode,
    /// Of which bytes.
    pub range: LockRange,
    /// Whether a descriptor was closed that its owner, in this mount, has asked through: it may be
    /// about to go.
    pub is_closing: bool,
}

/// What a mount knows of its locks of a file that it has open.
#[derive(Debug, Default)]
pub(crate) struct OwnLocks {
    /// Whether the mount may stand in the record, or in its own index.
    may_stand: bool,
    /// Whether it stands in the index for certain.
    stands: bool,
    /// What was there when all that was kept was dropped; nothing is kept from before.
    seen: Option<Seen>,
    /// Who may have locks.
    owners: BTreeMap<LockOwner, Owner>,
}

#[derive(Debug, Default)]
struct Owner {
    /// What it asked through.
    handles: BTreeSet<u64>,
    /// Whether its locks should be gone and are not, since the pool failed.
    is_due: bool,
    /// Whether a descriptor was closed that it asked through.
    is_closing: bool,
}

impl OwnLocks {
    /// Whoever knows of the turn before knows of the one now, which it has made.
    fn advance(&mut self, before: u64, now: u64) -> Option<Seen> {
        if let Some(seen) = self.seen.as_mut().filter(|seen| seen.turn == before) {
            seen.turn = now;
        }
        self.seen
    }
}

impl<M: VolumeMemory> Work<'_, M> {
    fn locks(&mut self, ino: Ino) -> Result<Locks, FsError> {
        Locks::decode(self.get(&keys::locks(ino))?.as_deref())
    }

    fn set_locks(&mut self, ino: Ino, locks: &Locks) -> Result<(), FsError> {
        self.set(&keys::locks(ino), locks.encode()?);
        Ok(())
    }
}

impl<M: VolumeMemory> Volume<M> {
    /// Gives an owner a lock of an open file, or takes it, if nothing is in the way; never waits
    /// for who has what is in the way. Locks of mounts that are gone are not.
    ///
    /// An owner that had another lock there keeps it when something is in the way; not one of a
    /// whole file, as is so with `flock`.
    ///
    /// # Errors
    /// [`FsError::NoLocks`] for more locks than there is room for, and for a lock in a full pool.
    /// After a failure of the pool the owner may have the lock.
    pub fn set_lock(&self, ino: Ino, request: &LockRequest) -> Result<LockOutcome, FsError> {
        let file = self.opened(ino).ok_or(FsError::NotFound)?;
        let mut own = lock(&file.locks);
        if !file.is_open() {
            return Err(FsError::NotFound);
        }
        if request.mode.is_none() && !own.owners.contains_key(&request.owner) {
            return Ok(LockOutcome::Done(None));
        }
        let owner = own.owners.entry(request.owner).or_default();
        owner.handles.insert(request.handle);
        owner.is_closing = false;
        let is_due = owner.is_due;
        own.may_stand = true;
        let stands = own.stands;
        let body = |work: &mut Work<'_, M>| {
            let mut locks = work.locks(ino)?;
            if is_due {
                locks.take_all(self.session, request.owner);
            }
            let turn = locks.turn;
            let in_the_way = self.change_locks(&mut locks, request);
            if !stands && in_the_way.is_empty() {
                work.index_locks(self.session, ino)?;
            }
            work.set_locks(ino, &locks)?;
            Ok((in_the_way, turn, locks))
        };
        let (mut in_the_way, turn, locks) = match request.mode {
            Some(_) => match self.transact_growing(body) {
                Err(FsError::NoSpace) => Err(FsError::NoLocks),
                done => done,
            },
            None => self.transact(body),
        }?;
        own.stands |= in_the_way.is_empty();
        let now = Seen { turn: locks.turn, writes: file.writes.load(Ordering::Relaxed) };
        let knows = own.advance(turn, now.turn) == Some(now);
        let has = |held: &Held| (held.session, held.owner) == (self.session, request.owner);
        if !locks.held.iter().any(has) {
            own.owners.remove(&request.owner);
        } else if let Some(owner) = own.owners.get_mut(&request.owner) {
            owner.is_due = false;
        }
        for other in &mut in_the_way {
            let known = other.owner.and_then(|owner| own.owners.get(&owner));
            other.is_closing = known.is_some_and(|owner| owner.is_closing);
        }
        if !in_the_way.is_empty() {
            return Ok(LockOutcome::InTheWay(in_the_way));
        }
        let is_outdated = request.mode.is_some() && !knows;
        Ok(LockOutcome::Done(is_outdated.then_some(Outdated(now))))
    }

    /// Does what is asked for, unless something is in the way.
    fn change_locks(&self, locks: &mut Locks, request: &LockRequest) -> Vec<OtherLock> {
        let LockRequest { owner, range, mode, pid, .. } = *request;
        let session = self.session;
        let Some(mode) = mode else {
            locks.take(session, owner, range);
            return Vec::new();
        };
        let wanted = Held { session, owner, pid, mode, range };
        let in_the_way = self.others(locks, &wanted);
        if in_the_way.is_empty() {
            locks.join(session);
            locks.give(wanted);
        } else if owner.family == LockFamily::Whole {
            locks.take_all(session, owner);
        }
        in_the_way
    }

    /// What is in the way of a lock, of mounts that are there; what others have is taken from them.
    fn others(&self, locks: &mut Locks, wanted: &Held) -> Vec<OtherLock> {
        let mut sessions: Vec<_> = locks.in_the_way(wanted).map(|held| held.session).collect();
        sessions.dedup();
        for session in sessions {
            if !self.is_alive(session) {
                locks.expel(session);
            }
        }
        let told = |held: &Held| {
            let is_own = held.session == self.session;
            OtherLock {
                owner: is_own.then_some(held.owner),
                pid: if is_own { held.pid } else { 0 },
                mode: held.mode,
                range: held.range,
                is_closing: false,
            }
        };
        locks.in_the_way(wanted).map(told).collect()
    }

    /// A lock that is in the way of one, if there is one.
    pub fn test_lock(&self, ino: Ino, request: &LockRequest) -> Result<Option<OtherLock>, FsError> {
        let LockRequest { owner, range, pid, .. } = *request;
        let Some(mode) = request.mode else { return Ok(None) };
        let mut locks = Locks::decode(self.value(&keys::locks(ino))?.as_deref())?;
        let wanted = Held { session: self.session, owner, pid, mode, range };
        let mut others = self.others(&mut locks, &wanted);
        others.sort_by_key(|other| other.range.first);
        Ok(others.first().copied())
    }

    /// Notes that what this mount kept of the contents was dropped, after it was said to be
    /// outdated.
    pub fn note_dropped(&self, ino: Ino, outdated: Outdated) {
        if let Some(file) = self.opened(ino) {
            let mut own = lock(&file.locks);
            own.seen = own.seen.max(Some(outdated.0));
        }
    }

    /// Takes all locks of an owner: a process that closes the file, with any of its descriptors.
    /// Costs nothing if it has none.
    ///
    /// # Errors
    /// What could not be taken the next [`sweep`](Self::sweep) takes.
    pub fn drop_locks(&self, ino: Ino, owner: LockOwner) -> Result<(), FsError> {
        self.drop_where(ino, |known, _| *known == owner)
    }

    /// Takes all locks of the owners that have asked through an open file description, when that is
    /// closed. Costs nothing if there are none.
    ///
    /// # Errors
    /// What could not be taken the next [`sweep`](Self::sweep) takes.
    pub fn drop_locks_through(&self, ino: Ino, handle: u64) -> Result<(), FsError> {
        self.drop_where(ino, |_, known| known.handles.contains(&handle))
    }

    /// Notes that a descriptor of an open file description was closed; perhaps the last.
    pub fn note_closed(&self, ino: Ino, handle: u64) {
        let Some(file) = self.opened(ino) else { return };
        for owner in lock(&file.locks).owners.values_mut() {
            owner.is_closing |= owner.handles.contains(&handle);
        }
    }

    fn drop_where(
        &self,
        ino: Ino,
        is_meant: impl Fn(&LockOwner, &Owner) -> bool,
    ) -> Result<(), FsError> {
        let Some(file) = self.opened(ino) else { return Ok(()) };
        let mut own = lock(&file.locks);
        for (owner, known) in &mut own.owners {
            known.is_due |= is_meant(owner, known);
        }
        self.drop_due(&file, &mut own)
    }

    /// Takes the locks that could not be taken when they should have been.
    pub(crate) fn drop_due_locks(&self, file: &OpenFile) -> Result<(), FsError> {
        self.drop_due(file, &mut lock(&file.locks))
    }

    fn drop_due(&self, file: &OpenFile, own: &mut OwnLocks) -> Result<(), FsError> {
        let due = own.owners.iter().filter(|(_, owner)| owner.is_due).map(|(owner, _)| *owner);
        let due: Vec<LockOwner> = due.collect();
        if due.is_empty() {
            return Ok(());
        }
        let (before, after) = self.transact(|work| {
            let mut locks = work.locks(file.ino)?;
            let turn = locks.turn;
            due.iter().for_each(|owner| locks.take_all(self.session, *owner));
            work.set_locks(file.ino, &locks)?;
            Ok((turn, locks.turn))
        })?;
        own.advance(before, after);
        own.owners.retain(|_, owner| !owner.is_due);
        Ok(())
    }

    /// Takes all that the mount has, when nobody there has the file open any more.
    pub(crate) fn leave_locks(&self, file: &OpenFile) -> Result<(), FsError> {
        let mut own = lock(&file.locks);
        if !own.may_stand {
            return Ok(());
        }
        (own.stands, own.seen) = (false, None);
        self.expel(self.session, file.ino)?;
        *own = OwnLocks::default();
        Ok(())
    }
}
