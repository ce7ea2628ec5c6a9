//! Locks of cache lines.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::time::Duration;

use rackpool_model::LockMode;
use rackpool_shm::access::AccessIntent;

use crate::error::LockError;
use crate::locks::TakenLock;
use crate::thread::Thread;
use crate::transfer::Bytes;
use crate::{AccessError, GlobalAddr, Pool};

/// How long a request waits that was given no time.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The right to read the lines of a lock until the guard is dropped. Other readers may have it too;
/// no writer has it. Lines of another rack are read from there once, then in this rack's memory.
///
/// It has no method that makes it a [`WriteGuard`]: two readers that wait to become writers would
/// wait for each other. Unlock, lock to write, and read again.
#[derive(Debug)]
#[must_use = "the lock is given up when the guard is dropped"]
pub struct ReadGuard<'a>(HeldLock<'a>);

/// The right to read and write the lines of a lock until the guard is dropped. No other reader or
/// writer has it.
///
/// Lines of another rack are in this rack's memory meanwhile: [`Self::unlock`] or [`Self::flush`]
/// writes them back, and operations that are made without the guard see them then. If this process
/// is killed, its daemon writes back what [`Self::write`] has accepted.
#[derive(Debug)]
#[must_use = "the lock is given up when the guard is dropped"]
pub struct WriteGuard<'a>(HeldLock<'a>);

/// A held lock. It belongs to the thread that took it.
struct HeldLock<'a> {
    pool: &'a Pool,
    taken: TakenLock,
    /// The connection that took the lock: the pool's own, or one to a sibling.
    by: NonZeroU64,
    addr: GlobalAddr,
    is_held: bool,
    _of_thread: PhantomData<*const ()>,
}

impl Pool {
    /// Locks the cache lines (64 B) of `len` bytes to read them. Waits while a writer has one of
    /// them, or has asked for one before.
    ///
    /// The bytes lie in one page and at most 64 lines. Locks are advisory: only operations through
    /// guards respect them. A thread can hold 32 locks, and no line twice.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let account = pool.alloc(64)?;
    /// let guard = pool.read_lock(account, 16)?;
    /// let mut bytes = [0; 16];
    /// guard.read(account, &mut bytes)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LockError`]: the thread holds a lock of one of the lines, holds too many, the bytes can't
    /// be locked together or can't be read; others held the lock for a day, or until the limit of
    /// [`within`](crate::within).
    pub fn read_lock(&self, addr: GlobalAddr, len: usize) -> Result<ReadGuard<'_>, LockError> {
        Ok(ReadGuard(self.lock(addr, len, LockMode::Read, LONGEST)?))
    }

    /// Like [`Pool::read_lock`], but waits no longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`Pool::read_lock`]; [`LockError::TimedOut`] after `timeout`.
    pub fn read_lock_within(
        &self,
        addr: GlobalAddr,
        len: usize,
        timeout: Duration,
    ) -> Result<ReadGuard<'_>, LockError> {
        Ok(ReadGuard(self.lock(addr, len, LockMode::Read, timeout)?))
    }

    /// Like [`Pool::read_lock`], but returns `None` instead of waiting for another holder.
    ///
    /// # Errors
    /// Those of [`Pool::read_lock`].
    pub fn try_read_lock(
        &self,
        addr: GlobalAddr,
        len: usize,
    ) -> Result<Option<ReadGuard<'_>>, LockError> {
        or_none(self.read_lock_within(addr, len, Duration::ZERO))
    }

    /// Locks the cache lines (64 B) of `len` bytes to read and write them. Waits while another
    /// thread of any program in any rack has one of them, or has asked for one before. The limits
    /// are those of [`Pool::read_lock`].
    ///
    /// The holder sees everything that earlier holders wrote. If the last writer's process ended,
    /// or stood still for seconds while others waited, [`WriteGuard::recovered`] says so.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let account = pool.alloc(64)?;
    /// let guard = pool.write_lock(account, 16)?;
    /// let mut bytes = [0; 16];
    /// guard.read(account, &mut bytes)?;
    /// bytes[0] += 1;
    /// guard.write(account, &bytes)?;
    /// guard.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LockError`]: the thread holds a lock of one of the lines, holds too many, the bytes can't
    /// be locked together or can't be read; others held the lock for a day, or until the limit of
    /// [`within`](crate::within).
    pub fn write_lock(&self, addr: GlobalAddr, len: usize) -> Result<WriteGuard<'_>, LockError> {
        Ok(WriteGuard(self.lock(addr, len, LockMode::Write, LONGEST)?))
    }

    /// Like [`Pool::write_lock`], but waits no longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`Pool::write_lock`]; [`LockError::TimedOut`] after `timeout`.
    pub fn write_lock_within(
        &self,
        addr: GlobalAddr,
        len: usize,
        timeout: Duration,
    ) -> Result<WriteGuard<'_>, LockError> {
        Ok(WriteGuard(self.lock(addr, len, LockMode::Write, timeout)?))
    }

    /// Like [`Pool::write_lock`], but returns `None` instead of waiting for another holder.
    ///
    /// # Errors
    /// Those of [`Pool::write_lock`].
    pub fn try_write_lock(
        &self,
        addr: GlobalAddr,
        len: usize,
    ) -> Result<Option<WriteGuard<'_>>, LockError> {
        or_none(self.write_lock_within(addr, len, Duration::ZERO))
    }

    fn lock(
        &self,
        addr: GlobalAddr,
        len: usize,
        mode: LockMode,
        timeout: Duration,
    ) -> Result<HeldLock<'_>, LockError> {
        let taken = self.with(|thread| {
            thread.refuse_held(addr, len, mode)?;
            let at =
                thread.part_of(addr).or_else(|| thread.failover_for(addr, len, AccessIntent::Read));
            let holder = thread.at(at);
            holder.lock(addr, len, mode, timeout).map(|taken| (taken, holder.id))
        });
        let (taken, by) = taken.map_err(AccessError::from)??;
        Ok(HeldLock { pool: self, taken, by, addr, is_held: true, _of_thread: PhantomData })
    }
}

fn or_none<G>(taken: Result<G, LockError>) -> Result<Option<G>, LockError> {
    match taken {
        Ok(guard) => Ok(Some(guard)),
        Err(LockError::TimedOut(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl ReadGuard<'_> {
    /// Reads bytes of the locked lines.
    ///
    /// # Errors
    /// [`AccessError::LockLost`] if the lock was taken from this process,
    /// [`AccessError::NotLocked`] for other bytes, and those of [`Pool::read`].
    pub fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), AccessError> {
        self.0.transfer(addr, Bytes::Read(into))
    }

    /// Returns true if the last writer of one of the lines ended without an unlock, and no writer
    /// has unlocked since: what it wrote may be incomplete.
    #[must_use]
    pub const fn recovered(&self) -> bool {
        self.0.taken.recovered
    }

    /// Unlocks, and says whether the lock was held until now.
    ///
    /// # Errors
    /// [`AccessError::LockLost`] if the lock was taken from this process.
    pub fn unlock(self) -> Result<(), AccessError> {
        self.0.unlock()
    }
}

impl WriteGuard<'_> {
    /// Reads bytes of the locked lines.
    ///
    /// # Errors
    /// [`AccessError::LockLost`] if the lock was taken from this process,
    /// [`AccessError::NotLocked`] for other bytes, and those of [`Pool::read`].
    pub fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), AccessError> {
        self.0.transfer(addr, Bytes::Read(into))
    }

    /// Writes bytes of the locked lines.
    ///
    /// # Errors
    /// [`AccessError::LockLost`] if the lock was taken from this process: then nothing was written.
    /// [`AccessError::NotLocked`] for other bytes, and those of [`Pool::write`].
    pub fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), AccessError> {
        self.0.transfer(addr, Bytes::Write(from))
    }

    /// Returns true if the last writer of one of the lines ended without an unlock, and no writer
    /// has unlocked since: what it wrote may be incomplete. The unlock of this guard ends that.
    #[must_use]
    pub const fn recovered(&self) -> bool {
        self.0.taken.recovered
    }

    /// Makes what was written visible to operations that are made without this guard, and keeps the
    /// lock. Lines of this rack need no flush; those of another rack are written in this rack's
    /// memory first, and at their home when the guard unlocks.
    ///
    /// # Errors
    /// Those of [`Self::unlock`].
    pub fn flush(&self) -> Result<(), AccessError> {
        self.0.flush()
    }

    /// Writes back what was written, unlocks, and says whether the lock was held until now. Then
    /// what was written is there for the next holder, whatever is killed.
    ///
    /// # Errors
    /// [`AccessError::LockLost`] if the lock was taken from this process, or its daemon or that of
    /// the lines' rack has ended: what was written since the last [`Self::flush`] may be missing,
    /// and the next holder is told ([`Self::recovered`]). Those of [`Pool::write`]: it is not known
    /// whether it is missing.
    pub fn unlock(self) -> Result<(), AccessError> {
        self.0.unlock()
    }
}

impl HeldLock<'_> {
    fn transfer(&self, addr: GlobalAddr, bytes: Bytes<'_>) -> Result<(), AccessError> {
        let TakenLock { claim, index, .. } = self.taken;
        let size = self.pool.connection().page_size;
        let in_page = addr.page(size) == Some(claim.page());
        if !in_page || !claim.covers(addr.offset(size), bytes.len() as u64) {
            return Err(AccessError::NotLocked(addr));
        }
        self.with_holder(|thread| thread.transfer_locked(claim, index, addr, bytes))
    }

    fn flush(&self) -> Result<(), AccessError> {
        let TakenLock { claim, index, .. } = self.taken;
        self.with_holder(|thread| thread.write_back(claim, index))
    }

    fn unlock(mut self) -> Result<(), AccessError> {
        self.is_held = false;
        self.with_holder(|thread| thread.unlock(self.taken.index))
    }

    #[inline]
    fn with_holder(
        &self,
        work: impl FnOnce(&mut Thread) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        self.pool.with(|thread| match thread.of_connection(self.by) {
            Some(holder) => work(holder),
            None => Err(AccessError::LockLost(self.addr)),
        })?
    }
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        if self.is_held {
            // A loss shows in the operations under the guard, and in `unlock`. Where the pool is
            // closed, the daemon knows of no lock.
            let _ = self.with_holder(|thread| thread.unlock(self.taken.index));
        }
    }
}

impl fmt::Debug for HeldLock<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HeldLock")
            .field("addr", &self.addr)
            .field("bytes", &self.taken.claim.bytes())
            .field("mode", &self.taken.claim.mode())
            .finish_non_exhaustive()
    }
}
