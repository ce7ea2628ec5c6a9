//! Lines of another rack that the thread has locked: it reads and writes them in its own memory,
//! and writes back when it unlocks. docs/design/line-cache.md has the protocol.

use rackpool_model::{LOCK_LINE_BYTES, LockClaim, MAX_LOCK_LINES};
use rackpool_ring::line_cache::LineCache;
use rackpool_shm::OutsideMapping;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::window::monotonic_ns;
use rackpool_wire::lock::{CACHED_READS, WrittenBytes};

use crate::error::LockError;
use crate::remote::RemoteTransfer;
use crate::thread::Thread;
use crate::transfer::Bytes;
use crate::translation::Place;
use crate::{AccessError, DaemonError, GlobalAddr};

/// Bytes of the longest lock.
#[expect(clippy::cast_possible_truncation, reason = "4096")]
const LONGEST: usize = (MAX_LOCK_LINES as u64 * LOCK_LINE_BYTES) as usize;

impl Thread {
    fn line_cache(&self, claim: u8) -> Result<LineCache<'_>, DaemonError> {
        let cache = self.connection.file.line_cache(self.index, claim);
        cache.map_err(|_| DaemonError::Protocol)
    }

    /// Begins to cache the lines of a lock that was granted under this number.
    pub(crate) fn begin_caching(&mut self, claim: u8, number: u64) -> Result<(), LockError> {
        let bit = 1 << claim;
        if self.claims.has_memory & bit == 0 {
            let reserved = self.connection.file.reserve_line_cache(self.index, claim);
            if reserved.is_err_and(|error| !error.is_unsupported()) {
                return Err(LockError::NoRoom);
            }
            self.claims.has_memory |= bit;
        }
        self.line_cache(claim).map_err(AccessError::from)?.begin(number);
        self.claims.elsewhere |= bit;
        self.set_fresh_until(claim, 0);
        Ok(())
    }

    /// Returns true if the claim's lines are in another rack.
    #[inline]
    pub(crate) const fn is_elsewhere(&self, claim: u8) -> bool {
        self.claims.elsewhere >> claim & 1 != 0
    }

    /// Reads or writes bytes of the locked lines.
    #[inline]
    pub(crate) fn transfer_cached(
        &mut self,
        lock: LockClaim,
        claim: u8,
        addr: GlobalAddr,
        bytes: Bytes<'_>,
    ) -> Result<(), AccessError> {
        if bytes.len() == 0 {
            return Err(AccessError::Empty);
        }
        self.check(addr, bytes.len())?;
        let offset = addr.offset(self.connection.page_size) - lock.offset();
        match bytes {
            Bytes::Read(into) => {
                if self.read_cached(claim, offset, into)? {
                    return Ok(());
                }
                self.read_again(lock, claim, offset, into)
            }
            Bytes::Write(from) => self.copy_into_cache(claim, |cache| cache.write(offset, from)),
        }
    }

    /// Reads bytes from the cache. Returns false if the lines must be read from the home first.
    #[inline]
    fn read_cached(&self, claim: u8, offset: u64, into: &mut [u8]) -> Result<bool, AccessError> {
        let until = self.fresh_until(claim);
        if until == 0 {
            return Ok(false);
        }
        self.line_cache(claim)?.read(offset, into).map_err(|_| DaemonError::Protocol)?;
        // Only this thread changes the cache, so the read takes effect now: the lock is not lost,
        // and it does not pass on before this time.
        if self.is_lost(claim) {
            return Err(AccessError::LockLost(self.locked_addr()));
        }
        Ok(monotonic_ns() < until)
    }

    fn fresh_until(&self, claim: u8) -> u64 {
        self.claims.fresh_until.get(usize::from(claim)).copied().unwrap_or(0)
    }

    fn set_fresh_until(&mut self, claim: u8, until: u64) {
        if let Some(of_claim) = self.claims.fresh_until.get_mut(usize::from(claim)) {
            *of_claim = until;
        }
    }

    /// Reads all lines of the lock from the home, and from them and what was written these bytes.
    /// Operations over the endpoint of the lock succeed only while it is held.
    #[cold]
    fn read_again(
        &mut self,
        lock: LockClaim,
        claim: u8,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), AccessError> {
        let len = usize::try_from(lock.bytes()).unwrap_or(LONGEST);
        let mut lines = [0; LONGEST];
        let lines = &mut lines[..len];
        #[expect(clippy::cast_possible_truncation, reason = "a quarter of a second")]
        let until = monotonic_ns() + CACHED_READS.as_nanos() as u64;
        self.transfer(self.addr_in(lock, lock.offset()), Bytes::Read(lines))?;
        self.copy_into_cache(claim, |cache| cache.fill(lines))?;
        // Reads of a replica say nothing of the endpoint. They are as fast, so each read is one.
        let place = self.known(lock.page()).map(|known| known.place);
        if matches!(place, Some(Place::Remote { .. })) {
            self.set_fresh_until(claim, until);
        }
        self.line_cache(claim)?.read(offset, into).map_err(|_| DaemonError::Protocol.into())
    }

    /// Copies into the cache, unless the lock is lost.
    #[inline]
    fn copy_into_cache(
        &self,
        claim: u8,
        copy: impl FnOnce(&LineCache<'_>) -> Result<(), OutsideMapping>,
    ) -> Result<(), AccessError> {
        let cache = self.line_cache(claim)?;
        let copying = &self.slot().copying;
        copying.begin(claim, self.connection.barrier);
        let copied = if self.is_lost(claim) {
            Err(AccessError::LockLost(self.locked_addr()))
        } else {
            copy(&cache).map_err(|_| DaemonError::Protocol.into())
        };
        copying.end();
        copied
    }

    fn addr_in(&self, lock: LockClaim, offset: u64) -> GlobalAddr {
        let addr = GlobalAddr::new(lock.page(), offset, self.connection.page_size);
        addr.unwrap_or(GlobalAddr::NULL)
    }

    /// Writes what was written under the lock to the home.
    pub(crate) fn write_back(&mut self, lock: LockClaim, claim: u8) -> Result<(), AccessError> {
        if !self.is_elsewhere(claim) {
            return Ok(());
        }
        if self.is_lost(claim) {
            return Err(AccessError::LockLost(self.addr_in(lock, lock.offset())));
        }
        let cache = self.line_cache(claim)?;
        if !cache.is_dirty() {
            return Ok(());
        }
        let lines = cache.written_lines();
        let bytes = cache.bytes_of(&lines).map_err(|_| DaemonError::Protocol)?;
        let written = WrittenBytes { lines, bytes };
        self.claims.under = Some(claim);
        let done = self.transfer_written(lock, &written);
        self.claims.under = None;
        done?;
        self.line_cache(claim)?.set_written_back();
        Ok(())
    }

    /// Writes bytes of the lines of a lock at their home. A checked client has checked them.
    fn transfer_written(
        &mut self,
        lock: LockClaim,
        written: &WrittenBytes,
    ) -> Result<(), AccessError> {
        let lines = self.addr_in(lock, lock.offset());
        let target = self.target(lines, usize::try_from(lock.bytes()).unwrap_or(LONGEST))?;
        let place = self.translate(&target, AccessIntent::Write)?.place;
        let mut transfers = Vec::new();
        for run in written.runs().ok_or(DaemonError::Protocol)? {
            let addr = self.addr_in(lock, lock.offset() + run.offset);
            let bytes = Bytes::Write(&written.bytes[run.bytes]);
            match place {
                Place::Remote { home } | Place::Copied { home, .. } | Place::Sibling { home } => {
                    transfers.push(RemoteTransfer { addr, home, bytes });
                }
                // The page has come here, so the lock is being lost: this finds out.
                Place::Local { .. } => self.transfer(addr, bytes)?,
            }
        }
        if transfers.is_empty() { Ok(()) } else { self.transfer_remote(&mut transfers) }
    }

    /// Ends the use of the claim's cache before an unlock. What could not be written back is left
    /// to the daemon. Returns why that was.
    pub(crate) fn end_caching(&mut self, lock: LockClaim, claim: u8) -> Result<(), AccessError> {
        let written = self.write_back(lock, claim);
        if written.is_ok() {
            self.line_cache(claim)?.end();
        }
        self.claims.elsewhere &= !(1 << claim);
        written
    }
}
