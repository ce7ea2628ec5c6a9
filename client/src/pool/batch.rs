//! Accesses of which the library sees several before it does the first.

use rackpool_shm::access::Intent;

use crate::transfer::Bytes;
use crate::{AccessError, GlobalAddr, Pool};

/// One read of a batch: from where, into what.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The first byte's address.
    pub addr: GlobalAddr,
    /// Where the bytes go; its length says how many.
    pub into: &'a mut [u8],
}

/// One write of a batch: to where, from what.
#[derive(Debug)]
pub struct WriteRequest<'a> {
    /// The first byte's address.
    pub addr: GlobalAddr,
    /// The bytes.
    pub from: &'a [u8],
}

/// Accesses of a batch that are fetched ahead. More than a core has misses under way, so that there
/// is always a next one: measured, docs/benchmarking.md.
const AHEAD: usize = 32;

impl Pool {
    /// Reads in the given order; reads of one other rack that follow each other take one round
    /// trip. After an error the buffers from the failed one on hold unspecified bytes.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId, ReadRequest};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (a, b) = (pool.alloc(16)?, pool.alloc(64)?);
    /// let (mut first, mut second) = ([0; 16], [0; 64]);
    /// pool.read_batch(&mut [
    ///     ReadRequest { addr: a, into: &mut first },
    ///     ReadRequest { addr: b, into: &mut second },
    /// ])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// That of the first [`Pool::read`] that failed.
    pub fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), AccessError> {
        self.with(|thread| {
            for read in reads.iter().take(AHEAD) {
                thread.window.prefetch(read.addr, Intent::Read);
            }
            for index in 0..reads.len() {
                if let Some(later) = reads.get(index + AHEAD) {
                    thread.window.prefetch(later.addr, Intent::Read);
                }
                let read = &mut reads[index];
                if thread.is_checked() || !thread.window.read(read.addr, read.into) {
                    let left = reads[index..].iter_mut();
                    return thread.transfer_batch(
                        left.map(|read| (read.addr, Bytes::Read(&mut *read.into))),
                    );
                }
            }
            Ok(())
        })?
    }

    /// [`Pool::read_batch`] for requests that come from elsewhere: addresses and what to fill.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let addrs = [pool.alloc(64)?, pool.alloc(64)?];
    /// let mut values = vec![[0; 64]; addrs.len()];
    /// pool.read_many(addrs.into_iter().zip(values.iter_mut().map(|value| &mut value[..])))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::read_batch`].
    pub fn read_many<'a>(
        &self,
        reads: impl Iterator<Item = (GlobalAddr, &'a mut [u8])>,
    ) -> Result<(), AccessError> {
        let transfers = reads.map(|(addr, into)| (addr, Bytes::Read(into)));
        self.with(|thread| thread.transfer_batch(transfers))?
    }

    /// Writes in the given order; writes to one other rack that follow each other take one round
    /// trip. After an error those before the failed one are done, those after it may be.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId, WriteRequest};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (value, ready) = (pool.alloc(64)?, pool.alloc(8)?);
    /// pool.write_batch(&[
    ///     WriteRequest { addr: value, from: &[7; 64] },
    ///     // Whoever sees this sees the value.
    ///     WriteRequest { addr: ready, from: &1_u64.to_le_bytes() },
    /// ])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// That of the first [`Pool::write`] that failed.
    pub fn write_batch(&self, writes: &[WriteRequest<'_>]) -> Result<(), AccessError> {
        self.with(|thread| {
            for write in writes.iter().take(AHEAD) {
                thread.window.prefetch(write.addr, Intent::Write);
            }
            for (index, write) in writes.iter().enumerate() {
                if let Some(later) = writes.get(index + AHEAD) {
                    thread.window.prefetch(later.addr, Intent::Write);
                }
                if thread.is_checked() || !thread.window.write(write.addr, write.from) {
                    let left = writes[index..].iter();
                    return thread
                        .transfer_batch(left.map(|write| (write.addr, Bytes::Write(write.from))));
                }
            }
            Ok(())
        })?
    }

    /// A hint: what is at `addr` will be read soon. As far as it is in this rack it begins to come
    /// into the processor's cache; the rest of it nobody waits for.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (next, mut bytes) = (pool.alloc(64)?, [0; 64]);
    /// pool.prefetch(next, 64);
    /// // Work on something else meanwhile.
    /// pool.read(next, &mut bytes)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn prefetch(&self, addr: GlobalAddr, bytes: usize) {
        const LINE: usize = 64;
        // A hint that can't be followed is none.
        let _ = self.with(|thread| {
            let first = addr.raw() & !(LINE as u64 - 1);
            let end = addr.raw().saturating_add(bytes as u64);
            for line in (first..end).step_by(LINE) {
                thread.window.prefetch(GlobalAddr::from_raw(line), Intent::Read);
            }
        });
    }
}
