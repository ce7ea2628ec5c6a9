//! `Memory` for the pool.

use rackpool_client::{
    AccessError, AllocError, CompareAndSwap, FreeError, GlobalAddr, Pool, PublishCas, ReadRequest,
    RootError, RootUpdate,
};

use crate::memory::{CasError, CasRequest, Memory, ReservedObject, Roots};

/// Why the pool failed an operation of a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The allocation failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The access failed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Freeing failed.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// The root could not be read or set.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl ReservedObject for rackpool_client::Reservation {
    fn addr(&self) -> GlobalAddr {
        Self::addr(self)
    }

    fn token(&self) -> u64 {
        Self::token(self)
    }
}

/// Maps the error of a compare-and-swap to what is known of its outcome.
fn swapped<T>(found: Result<T, AccessError>) -> Result<T, CasError<PoolError>> {
    found.map_err(|error| match error {
        AccessError::Indeterminate(_) => CasError::Indeterminate,
        AccessError::Daemon(_) => CasError::GivenUp(error.into()),
        error => CasError::Failed(error.into()),
    })
}

impl Memory for Pool {
    type Error = PoolError;
    type Reservation = rackpool_client::Reservation;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, PoolError> {
        Ok(self.alloc(bytes)?)
    }

    fn free(&self, addr: GlobalAddr) -> Result<(), PoolError> {
        Ok(Self::free(self, addr)?)
    }

    fn reserve(&self, bytes: u64) -> Result<Self::Reservation, PoolError> {
        Ok(self.reserve(bytes)?)
    }

    fn tombstone(&self) -> Result<Self::Reservation, PoolError> {
        Ok(Self::tombstone(self)?)
    }

    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Self::Reservation>, PoolError> {
        Ok(self.borrow(place, object)?)
    }

    fn abort(&self, reservation: &mut Self::Reservation) {
        Self::abort(self, reservation);
    }

    fn publish(
        &self,
        reservation: &mut Self::Reservation,
        link: &PublishCas,
    ) -> Result<u64, CasError<PoolError>> {
        swapped(Self::publish(self, reservation, link))
    }

    fn resolve(&self, reservation: &mut Self::Reservation, published: bool) {
        Self::resolve(self, reservation, published);
    }

    fn finish(&self, reservation: Self::Reservation) -> Result<(), PoolError> {
        Ok(Self::finish(self, reservation)?)
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), PoolError> {
        Ok(Self::read(self, addr, into)?)
    }

    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), PoolError> {
        Ok(Self::write(self, addr, from)?)
    }

    fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), PoolError> {
        Ok(Self::read_batch(self, reads)?)
    }

    fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, CasError<PoolError>> {
        swapped(Self::compare_and_swap(self, addr, expected, new))
    }

    fn compare_and_swap_batch(&self, requests: &[CasRequest]) -> Result<(), CasError<PoolError>> {
        let swaps: Vec<CompareAndSwap> = requests
            .iter()
            .map(|&CasRequest { addr, expected, new }| CompareAndSwap { addr, expected, new })
            .collect();
        swapped(Self::compare_and_swap_batch(self, &swaps)).map(drop)
    }

    fn is_unallocated(&self, error: &PoolError) -> bool {
        use AccessError::{BeyondObject, NotAllocated};
        matches!(error, PoolError::Access(NotAllocated(_) | BeyondObject { .. }))
    }

    fn is_lost(&self, error: &PoolError) -> bool {
        matches!(error, PoolError::Access(AccessError::PageLost(_)))
    }

    fn page_bytes(&self) -> u64 {
        Self::page_bytes(self)
    }

    #[inline]
    fn prefetch(&self, addr: GlobalAddr, bytes: usize) {
        Self::prefetch(self, addr, bytes);
    }

    fn is_near(&self, addr: GlobalAddr) -> bool {
        // The access itself reports an invalid address.
        self.is_local(addr).unwrap_or(true)
    }
}

impl Roots for Pool {
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, PoolError> {
        Ok(Self::root(self, name)?)
    }

    fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<RootUpdate, CasError<PoolError>> {
        Self::set_root(self, name, expected, new).map_err(|error| {
            if error.is_unchanged() {
                CasError::Failed(error.into())
            } else {
                CasError::GivenUp(error.into())
            }
        })
    }
}
