//! What a volume needs of the pool beyond what its table needs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rackpool_client::{AllocError, GlobalAddr, Pool, RootError, WriteRequest};
use rackpool_kv::{Memory, PoolError};

/// The size and free space of the memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// All memory.
    pub total: u64,
    /// Free memory.
    pub free: u64,
}

/// A seat that is taken.
#[derive(Debug)]
pub struct HeldSeat<S> {
    /// The token that the seat's word holds meanwhile.
    pub token: u64,
    /// What keeps the seat taken.
    pub seat: S,
}

/// The memory that holds a volume: the pool, or a test's memory.
pub trait VolumeMemory: Memory + Clone {
    /// Keeps a seat taken; see `docs/design/publication.md`.
    type Seat: std::fmt::Debug + Send;

    /// Borrows `object` out of the word at `seat`, until the seat is left or the program ends.
    /// Returns `None` if the word does not hold `object`.
    fn sit(
        &self,
        seat: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<HeldSeat<Self::Seat>>, Self::Error>;

    /// Gives a seat back.
    fn leave(&self, seat: Self::Seat);

    /// Refills the reserve that belongs to the seat, and returns whether it is whole. The reserve
    /// is large enough to remove files when no other memory is left.
    fn keep_reserve(&self, seat: &Self::Seat) -> bool;

    /// Gives the reserve back to the pool. Returns whether there was one.
    fn release_reserve(&self, seat: &Self::Seat) -> bool;

    /// Stores bytes at any addresses, in one round trip for consecutive writes to one rack.
    fn write_batch(&self, writes: &[WriteRequest<'_>]) -> Result<(), Self::Error>;

    /// Returns the size and free space of the memory.
    fn capacity(&self) -> Result<Capacity, Self::Error>;

    /// Returns the address stored under a name.
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, RootError>;

    /// Stores an address under a name that has none. Returns the address stored there afterwards.
    fn set_root(&self, name: &str, addr: GlobalAddr) -> Result<Option<GlobalAddr>, RootError>;

    /// Whether an operation failed because no memory is left.
    fn is_full(error: &Self::Error) -> bool;
}

/// A seat, held by a thread of its own: reservations belong to the thread that made them.
#[derive(Debug)]
pub struct PoolSeat {
    wishes: Sender<Wish>,
    thread: JoinHandle<()>,
}

/// A request to the thread that holds a seat. The thread leaves the seat when the channel closes.
#[derive(Debug)]
struct Wish {
    reserve: bool,
    said: Sender<Reserve>,
}

/// The reserve of a seat.
#[derive(Clone, Copy, Debug, Default)]
struct Reserve {
    /// Whether there was one before.
    was_there: bool,
    /// Whether it is whole now.
    is_whole: bool,
}

impl PoolSeat {
    fn wish(&self, reserve: bool) -> Reserve {
        let (said, answer) = channel();
        // Without an answer the pool is closed.
        match self.wishes.send(Wish { reserve, said }) {
            Ok(()) => answer.recv().unwrap_or_default(),
            Err(_) => Reserve::default(),
        }
    }
}

/// The number of whole pages in the reserve. All objects of a page have one size, and removing
/// files needs each of the small sizes: with fewer pages than sizes, the first removal could leave
/// no memory for the second. A rack of less than 96 pages reserves only one 16th of them, at least
/// one.
fn reserve_pages(pool: &Pool) -> usize {
    let frames = pool.rack_status().map_or(0, |status| status.frames);
    usize::try_from(frames / 16).unwrap_or(0).clamp(1, MAX_RESERVE_PAGES)
}

/// Objects of 64 B to 2 KiB have six sizes.
const MAX_RESERVE_PAGES: usize = 6;

/// Takes the seat and holds it and the reserve until the channel of requests closes. Both are
/// reservations: the daemon releases them if the program is killed.
fn keep_seat(
    pool: &Pool,
    seat: GlobalAddr,
    object: GlobalAddr,
    said: &Sender<Result<Option<u64>, PoolError>>,
    wishes: &Receiver<Wish>,
) {
    let reservation = match pool.borrow(seat, object) {
        Ok(Some(reservation)) => reservation,
        Ok(None) => return drop(said.send(Ok(None))),
        Err(error) => return drop(said.send(Err(error.into()))),
    };
    let pages = reserve_pages(pool);
    let mut reserve = Vec::with_capacity(pages);
    // The caller waits for the answer, unless its thread panicked; then the channel of requests is
    // closed.
    let _ = said.send(Ok(Some(reservation.token())));
    while let Ok(wish) = wishes.recv() {
        let was_there = !reserve.is_empty();
        if !wish.reserve {
            reserve.drain(..).for_each(|reservation| drop(pool.finish(reservation)));
        }
        while wish.reserve && reserve.len() < pages {
            let Ok(reservation) = pool.reserve(pool.page_bytes()) else { break };
            reserve.push(reservation);
        }
        let _ = wish.said.send(Reserve { was_there, is_whole: reserve.len() == pages });
    }
    // If these fail, the daemon does it when the program ends.
    reserve.into_iter().for_each(|reservation| drop(pool.finish(reservation)));
    let _ = pool.finish(reservation);
}

impl VolumeMemory for Arc<Pool> {
    type Seat = PoolSeat;

    fn sit(
        &self,
        seat: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<HeldSeat<PoolSeat>>, PoolError> {
        let (said, answer) = channel();
        let (wishes, wished) = channel();
        let pool = Self::clone(self);
        let thread = std::thread::spawn(move || keep_seat(&pool, seat, object, &said, &wished));
        match answer.recv() {
            Ok(Ok(Some(token))) => Ok(Some(HeldSeat { token, seat: PoolSeat { wishes, thread } })),
            Ok(Ok(None)) | Err(_) => Ok(None),
            Ok(Err(error)) => Err(error),
        }
    }

    fn leave(&self, seat: PoolSeat) {
        drop(seat.wishes);
        let _ = seat.thread.join();
    }

    fn keep_reserve(&self, seat: &PoolSeat) -> bool {
        seat.wish(true).is_whole
    }

    fn release_reserve(&self, seat: &PoolSeat) -> bool {
        seat.wish(false).was_there
    }

    fn write_batch(&self, writes: &[WriteRequest<'_>]) -> Result<(), PoolError> {
        Ok(Pool::write_batch(self, writes)?)
    }

    fn capacity(&self) -> Result<Capacity, PoolError> {
        let status = self.rack_status().map_err(AllocError::from)?;
        let page = self.page_bytes();
        let own = u64::from(status.frames).saturating_mul(page);
        // Pages with objects have room for more objects; memory in caches counts as used. Of other
        // racks only whole free pages are known.
        let free = own.saturating_sub(status.allocated_bytes);
        let others = (status.other_frames, status.other_free_frames);
        Ok(Capacity {
            total: own.saturating_add(others.0.saturating_mul(page)),
            free: free.saturating_add(others.1.saturating_mul(page)),
        })
    }

    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, RootError> {
        Pool::root(self, name)
    }

    fn set_root(&self, name: &str, addr: GlobalAddr) -> Result<Option<GlobalAddr>, RootError> {
        Pool::set_root(self, name, None, Some(addr)).map(|root| root.addr)
    }

    fn is_full(error: &PoolError) -> bool {
        matches!(error, PoolError::Alloc(AllocError::OutOfMemory { .. }))
    }
}
