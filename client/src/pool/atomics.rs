//! Compare-and-swap and fetch-and-add.

use rackpool_shm::access::AccessIntent;
use rackpool_shm::window::{self, AtomicOperation};

use crate::atomic_batch::BatchedAtomic;
use crate::{AccessError, GlobalAddr, Pool};

/// One compare-and-swap of [`Pool::compare_and_swap_batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompareAndSwap {
    /// Address of the 8 bytes; a multiple of 8.
    pub addr: GlobalAddr,
    /// The expected value (little endian).
    pub expected: u64,
    /// The new value.
    pub new: u64,
}

impl Pool {
    /// Replaces the 8 bytes (little endian) at `addr` with `new` if they equal `expected`. Returns
    /// their previous value. `addr` must be a multiple of 8. Linearizable across racks.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let counter = pool.alloc(8)?;
    /// pool.write(counter, &0_u64.to_le_bytes())?;
    /// assert_eq!(pool.compare_and_swap(counter, 0, 5)?, 0);
    /// assert_eq!(pool.compare_and_swap(counter, 0, 6)?, 5, "refused");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Pool::read`], [`AccessError::Misaligned`], and [`AccessError::Indeterminate`] if
    /// the home's daemon died during the operation. After `Indeterminate` and after
    /// [`AccessError::Daemon`] the swap may or may not have been made.
    #[inline]
    pub fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        self.atomic(addr, AtomicOperation::CompareAndSwap { expected, new })
    }

    /// Executes several compare-and-swaps in any order. Returns the previous values in the order of
    /// `requests`. Swaps in other racks are in flight at the same time. After an error each swap
    /// may or may not have been made.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, CompareAndSwap, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (a, b) = (pool.alloc(8)?, pool.alloc(8)?);
    /// let before = pool.compare_and_swap_batch(&[
    ///     CompareAndSwap { addr: a, expected: 0, new: 1 },
    ///     CompareAndSwap { addr: b, expected: 0, new: 1 },
    /// ])?;
    /// assert_eq!(before.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// That of the first [`Pool::compare_and_swap`] that failed.
    pub fn compare_and_swap_batch(
        &self,
        requests: &[CompareAndSwap],
    ) -> Result<Vec<u64>, AccessError> {
        let mut batch: Vec<BatchedAtomic> = requests
            .iter()
            .map(|request| {
                let CompareAndSwap { addr, expected, new } = *request;
                BatchedAtomic {
                    addr,
                    atomic: AtomicOperation::CompareAndSwap { expected, new },
                    before: 0,
                }
            })
            .collect();
        self.with(|thread| thread.atomic_batch(&mut batch))??;
        Ok(batch.iter().map(|wanted| wanted.before).collect())
    }

    /// Adds `delta` (wrapping) to the 8 bytes (little endian) at `addr`. Returns their previous
    /// value. `addr` must be a multiple of 8. Linearizable across racks.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let ticket = pool.alloc(8)?;
    /// pool.write(ticket, &0_u64.to_le_bytes())?;
    /// assert_eq!(pool.fetch_and_add(ticket, 1)?, 0);
    /// assert_eq!(pool.fetch_and_add(ticket, 1)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::compare_and_swap`].
    #[inline]
    pub fn fetch_and_add(&self, addr: GlobalAddr, delta: u64) -> Result<u64, AccessError> {
        self.atomic(addr, AtomicOperation::FetchAndAdd { delta })
    }

    #[inline]
    fn atomic(&self, addr: GlobalAddr, atomic: AtomicOperation) -> Result<u64, AccessError> {
        match window::change(&self.permit, addr, atomic) {
            Some(before) => Ok(before),
            None => self.atomic_any(addr, atomic),
        }
    }

    #[cold]
    fn atomic_any(&self, addr: GlobalAddr, atomic: AtomicOperation) -> Result<u64, AccessError> {
        self.with(|thread| {
            let at = thread.failover_for(addr, 8, AccessIntent::Write);
            thread.at(at).atomic(addr, atomic)
        })?
    }
}
