//! Batches of reads and writes, and prefetching.

use rackpool_shm::access::AccessIntent;

use crate::transfer::Bytes;
use crate::{AccessError, GlobalAddr, Pool};

/// One read of a batch.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Address of the first byte.
    pub addr: GlobalAddr,
    /// Buffer for the bytes; its length is the length of the read.
    pub into: &'a mut [u8],
}

/// One write of a batch.
#[derive(Debug)]
pub struct WriteRequest<'a> {
    /// Address of the first byte.
    pub addr: GlobalAddr,
    /// Bytes to write.
    pub from: &'a [u8],
}

/// Number of accesses of a batch that are prefetched. It exceeds the number of cache misses that a
/// core can have outstanding, so that the next one is always ready (measured,
/// docs/benchmarking.md).
const AHEAD: usize = 32;

impl Pool {
    /// Executes reads in the given order. Consecutive reads from the same other rack share one
    /// round trip. After an error the buffers from the failed read on hold unspecified bytes.
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
            // Asked once: a look for each read would cost as much as the rest of a hit.
            if thread.is_checked() {
                let all = reads.iter_mut();
                return thread
                    .transfer_batch(all.map(|read| (read.addr, Bytes::Read(&mut *read.into))));
            }
            for read in reads.iter().take(AHEAD) {
                thread.window.prefetch(read.addr, AccessIntent::Read);
            }
            for index in 0..reads.len() {
                if let Some(later) = reads.get(index + AHEAD) {
                    thread.window.prefetch(later.addr, AccessIntent::Read);
                }
                let read = &mut reads[index];
                if !thread.window.read(read.addr, read.into) {
                    let left = reads[index..].iter_mut();
                    return thread.transfer_batch(
                        left.map(|read| (read.addr, Bytes::Read(&mut *read.into))),
                    );
                }
            }
            Ok(())
        })?
    }

    /// [`Pool::read_batch`] for an iterator of addresses and buffers.
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

    /// Executes writes in the given order. Consecutive writes to the same other rack share one
    /// round trip. After an error the writes before the failed one are complete; each later one may
    /// or may not have been executed.
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
            if thread.is_checked() {
                let all = writes.iter();
                return thread
                    .transfer_batch(all.map(|write| (write.addr, Bytes::Write(write.from))));
            }
            for write in writes.iter().take(AHEAD) {
                thread.window.prefetch(write.addr, AccessIntent::Write);
            }
            for (index, write) in writes.iter().enumerate() {
                if let Some(later) = writes.get(index + AHEAD) {
                    thread.window.prefetch(later.addr, AccessIntent::Write);
                }
                if !thread.window.write(write.addr, write.from) {
                    let left = writes[index..].iter();
                    return thread
                        .transfer_batch(left.map(|write| (write.addr, Bytes::Write(write.from))));
                }
            }
            Ok(())
        })?
    }

    /// Hints that `bytes` bytes at `addr` will be read soon. The processor starts to load the part
    /// that lies in this rack into its cache; the hint has no effect for other racks. Does not
    /// block.
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
        // A hint fails silently.
        let _ = self.with(|thread| {
            let first = addr.raw() & !(LINE as u64 - 1);
            let end = addr.raw().saturating_add(bytes as u64);
            for line in (first..end).step_by(LINE) {
                thread.window.prefetch(GlobalAddr::from_raw(line), AccessIntent::Read);
            }
        });
    }
}
