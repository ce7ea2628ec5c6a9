//! Locks of files, which hold between all mounts: docs/design/fs.md, "Locks".

mod index;

use std::sync::atomic::Ordering;

use crate::attr::Ino;
use crate::error::FsError;
use crate::format::file_locks::{HeldLock, LockFamily, LockMode, LockOwner, LockRange, Locks};
use crate::format::keys;
use crate::volume::open_file::OpenFile;
use crate::volume::own_locks::{ContentsVersion, OwnLocks, OwnerState};
use crate::volume::transaction::FsTransaction;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

/// A lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The owner of the lock.
    pub owner: LockOwner,
    /// The bytes to lock or unlock.
    pub range: LockRange,
    /// The lock that the owner is to have on the range; `None` unlocks the range.
    pub mode: Option<LockMode>,
    /// The process id that other processes in the same mount are shown.
    pub pid: u32,
    /// The open file description of the request. When it is closed, the owner's locks are released.
    pub handle: u64,
}

/// The result of a lock request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// The request was granted.
    Done(Option<Outdated>),
    /// Conflicting locks prevent the lock.
    InTheWay(Vec<OtherLock>),
}

/// The file may have been written since this mount last dropped its cached contents. The caller
/// must drop them before it uses the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outdated(ContentsVersion);

/// A conflicting lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherLock {
    /// The owner, if it is in this mount.
    pub owner: Option<LockOwner>,
    /// The process id; 0 if the owner is not in this mount.
    pub pid: u32,
    /// The mode of the lock.
    pub mode: LockMode,
    /// The locked bytes.
    pub range: LockRange,
    /// Whether a descriptor that its owner, in this mount, has used for a request was closed: the
    /// lock may be about to be released.
    pub is_closing: bool,
}

impl<M: VolumeMemory> FsTransaction<'_, M> {
    fn locks(&mut self, ino: Ino) -> Result<Locks, FsError> {
        Locks::decode(self.get(&keys::locks(ino))?.as_deref())
    }

    fn set_locks(&mut self, ino: Ino, locks: &Locks) -> Result<(), FsError> {
        self.set(&keys::locks(ino), locks.encode()?);
        Ok(())
    }
}

impl<M: VolumeMemory> Volume<M> {
    /// Sets or releases a lock of an open file, unless another lock conflicts. It never waits for a
    /// conflicting lock. Locks of mounts that are gone do not conflict.
    ///
    /// On a conflict the owner keeps the lock that it had on the range; a lock of a whole file it
    /// loses, as with `flock`.
    ///
    /// # Errors
    /// [`FsError::NoLocks`] if there is no room for another lock, or the pool is full. After a
    /// failure of the pool the owner may have the lock.
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
        let body = |work: &mut FsTransaction<'_, M>| {
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
        let now = ContentsVersion { turn: locks.turn, writes: file.writes.load(Ordering::Relaxed) };
        let knows = own.advance(turn, now.turn) == Some(now);
        let has = |held: &HeldLock| (held.session, held.owner) == (self.session, request.owner);
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

    /// Applies a request, unless locks conflict; returns the conflicting locks.
    fn change_locks(&self, locks: &mut Locks, request: &LockRequest) -> Vec<OtherLock> {
        let LockRequest { owner, range, mode, pid, .. } = *request;
        let session = self.session;
        let Some(mode) = mode else {
            locks.take(session, owner, range);
            return Vec::new();
        };
        let wanted = HeldLock { session, owner, pid, mode, range };
        let in_the_way = self.others(locks, &wanted);
        if in_the_way.is_empty() {
            locks.join(session);
            locks.give(wanted);
        } else if owner.family == LockFamily::Whole {
            locks.take_all(session, owner);
        }
        in_the_way
    }

    /// Returns the locks that conflict with `wanted`. Locks of mounts that are gone are removed
    /// from the record first.
    fn others(&self, locks: &mut Locks, wanted: &HeldLock) -> Vec<OtherLock> {
        let mut sessions: Vec<_> = locks.in_the_way(wanted).map(|held| held.session).collect();
        sessions.dedup();
        for session in sessions {
            if !self.is_alive(session) {
                locks.expel(session);
            }
        }
        let told = |held: &HeldLock| {
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

    /// Returns a lock that conflicts with the request, if there is one: the one with the lowest
    /// offset.
    pub fn test_lock(&self, ino: Ino, request: &LockRequest) -> Result<Option<OtherLock>, FsError> {
        let LockRequest { owner, range, pid, .. } = *request;
        let Some(mode) = request.mode else { return Ok(None) };
        let mut locks = Locks::decode(self.value(&keys::locks(ino))?.as_deref())?;
        let wanted = HeldLock { session: self.session, owner, pid, mode, range };
        let mut others = self.others(&mut locks, &wanted);
        others.sort_by_key(|other| other.range.first);
        Ok(others.first().copied())
    }

    /// Records that this mount has dropped its cached contents, after [`set_lock`](Self::set_lock)
    /// has reported them as outdated.
    pub fn note_dropped(&self, ino: Ino, outdated: Outdated) {
        if let Some(file) = self.opened(ino) {
            let mut own = lock(&file.locks);
            own.seen = own.seen.max(Some(outdated.0));
        }
    }

    /// Releases all locks of an owner. The caller uses it when a process closes the file, by any of
    /// its descriptors. Costs nothing if the owner has none.
    ///
    /// # Errors
    /// The next [`sweep`](Self::sweep) releases what this call could not release.
    pub fn drop_locks(&self, ino: Ino, owner: LockOwner) -> Result<(), FsError> {
        self.drop_where(ino, |known, _| *known == owner)
    }

    /// Releases all locks of the owners that have made requests through an open file description,
    /// when that is closed. Costs nothing if there are none.
    ///
    /// # Errors
    /// The next [`sweep`](Self::sweep) releases what this call could not release.
    pub fn drop_locks_through(&self, ino: Ino, handle: u64) -> Result<(), FsError> {
        self.drop_where(ino, |_, known| known.handles.contains(&handle))
    }

    /// Records that a descriptor of an open file description was closed; it may not be the last
    /// one.
    pub fn note_closed(&self, ino: Ino, handle: u64) {
        let Some(file) = self.opened(ino) else { return };
        for owner in lock(&file.locks).owners.values_mut() {
            owner.is_closing |= owner.handles.contains(&handle);
        }
    }

    fn drop_where(
        &self,
        ino: Ino,
        is_meant: impl Fn(&LockOwner, &OwnerState) -> bool,
    ) -> Result<(), FsError> {
        let Some(file) = self.opened(ino) else { return Ok(()) };
        let mut own = lock(&file.locks);
        for (owner, known) in &mut own.owners {
            known.is_due |= is_meant(owner, known);
        }
        self.drop_due(&file, &mut own)
    }

    /// Releases the locks whose release has failed before.
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

    /// Releases all locks of this mount, when it no longer has the file open.
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
