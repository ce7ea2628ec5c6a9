//! The pool as the table's memory.

use rackpool_client::{AccessError, AllocError, FreeError, GlobalAddr, Pool};

use crate::{CasError, Memory, ReadRequest};

/// Why the pool did not do what the table asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No memory was allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Memory could not be read or changed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Memory was not freed.
    #[error(transparent)]
    Free(#[from] FreeError),
}

impl Memory for Pool {
    type Error = PoolError;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, PoolError> {
        Ok(self.alloc(bytes)?)
    }

    fn free(&self, addr: GlobalAddr) -> Result<(), PoolError> {
        Ok(Self::free(self, addr)?)
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), PoolError> {
        Ok(Self::read(self, addr, into)?)
    }

    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), PoolError> {
        Ok(Self::write(self, addr, from)?)
    }

    fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), PoolError> {
        let transfers = reads.iter_mut().map(|read| (read.addr, &mut *read.into));
        Ok(self.read_many(transfers)?)
    }

    fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, CasError<PoolError>> {
        match Self::compare_and_swap(self, addr, expected, new) {
            Ok(before) => Ok(before),
            Err(AccessError::Indeterminate(_)) => Err(CasError::Indeterminate),
            Err(error) => Err(CasError::Failed(error.into())),
        }
    }

    fn page_bytes(&self) -> u64 {
        Self::page_bytes(self)
    }

    fn is_near(&self, addr: GlobalAddr) -> bool {
        // An address that is wrong is found out by the access itself.
        self.is_local(addr).unwrap_or(true)
    }
}
