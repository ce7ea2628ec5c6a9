//! Memory of the own rack that never moves to another one. A pool's other memory moves to the rack
//! that uses it most: a rack that ends would take records of others with it.

use std::sync::Arc;

use rackpool_client::{
    AllocError, GlobalAddr, Pool, PublishCas, ReadRequest, Reservation, RootUpdate,
};
use rackpool_kv::{CasError, CasRequest, Memory, PoolError, Roots};

/// A pool whose allocations are fixed objects of the own rack. Only if that is full, they are other
/// memory of any rack.
#[derive(Clone, Debug)]
pub(super) struct UnmovedMemory(pub(super) Arc<Pool>);

type Swapped<T> = Result<T, CasError<PoolError>>;

impl Memory for UnmovedMemory {
    type Error = PoolError;
    type Reservation = Reservation;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, PoolError> {
        let addr = match self.0.alloc_fixed(bytes) {
            Err(AllocError::RackFull { .. }) => return Memory::allocate(&*self.0, bytes),
            allocated => allocated?,
        };
        self.0.disown(addr)?;
        Ok(addr)
    }

    fn free(&self, addr: GlobalAddr) -> Result<(), PoolError> {
        Memory::free(&*self.0, addr)
    }

    fn reserve(&self, bytes: u64) -> Result<Reservation, PoolError> {
        let addr = match self.0.alloc_fixed(bytes) {
            Err(AllocError::RackFull { .. }) => return Memory::reserve(&*self.0, bytes),
            allocated => allocated?,
        };
        self.0.reserve_owned(addr).map_err(|error| {
            // If this fails too, the daemon takes it back when the program ends.
            let _ = Pool::free(&self.0, addr);
            error.into()
        })
    }

    fn tombstone(&self) -> Result<Reservation, PoolError> {
        Memory::tombstone(&*self.0)
    }

    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Reservation>, PoolError> {
        Memory::take(&*self.0, place, object)
    }

    fn abort(&self, reservation: &mut Reservation) {
        Memory::abort(&*self.0, reservation);
    }

    fn publish(&self, reservation: &mut Reservation, link: &PublishCas) -> Swapped<u64> {
        Memory::publish(&*self.0, reservation, link)
    }

    fn resolve(&self, reservation: &mut Reservation, published: bool) {
        Memory::resolve(&*self.0, reservation, published);
    }

    fn finish(&self, reservation: Reservation) -> Result<(), PoolError> {
        Memory::finish(&*self.0, reservation)
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), PoolError> {
        Memory::read(&*self.0, addr, into)
    }

    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), PoolError> {
        Memory::write(&*self.0, addr, from)
    }

    fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), PoolError> {
        Memory::read_batch(&*self.0, reads)
    }

    fn compare_and_swap(&self, addr: GlobalAddr, expected: u64, new: u64) -> Swapped<u64> {
        Memory::compare_and_swap(&*self.0, addr, expected, new)
    }

    fn compare_and_swap_batch(&self, requests: &[CasRequest]) -> Swapped<()> {
        Memory::compare_and_swap_batch(&*self.0, requests)
    }

    fn is_unallocated(&self, error: &PoolError) -> bool {
        self.0.is_unallocated(error)
    }

    fn is_lost(&self, error: &PoolError) -> bool {
        self.0.is_lost(error)
    }

    fn page_bytes(&self) -> u64 {
        Memory::page_bytes(&*self.0)
    }

    fn prefetch(&self, addr: GlobalAddr, bytes: usize) {
        Memory::prefetch(&*self.0, addr, bytes);
    }

    fn is_near(&self, addr: GlobalAddr) -> bool {
        self.0.is_near(addr)
    }
}

impl Roots for UnmovedMemory {
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, PoolError> {
        Roots::root(&*self.0, name)
    }

    fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Swapped<RootUpdate> {
        Roots::set_root(&*self.0, name, expected, new)
    }
}
