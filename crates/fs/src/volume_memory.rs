//! What a volume needs of the pool beyond what its table needs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rackpool_client::{AllocError, GlobalAddr, Pool, RootError, WriteRequest};
use rackpool_kv::{Memory, PoolError};

/// How much memory there is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// In all.
    pub total: u64,
    /// Free of it.
    pub free: u64,
}

/// The memory that a volume lives in: the pool, or a test's.
pub trait VolumeMemory: Memory + Clone {
    /// What keeps a seat taken; see `docs/design/publication.md`.
    type Seat: std::fmt::Debug + Send;

    /// Takes `object` out of the word at `seat` if it is there, until the seat is left or the
    /// program ends; gives the token that the word holds so long.
    fn sit(
        &self,
        seat: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<(u64, Self::Seat)>, Self::Error>;

    /// Gives a seat back.
    fn leave(&self, seat: Self::Seat);

    /// Has memory in reserve with the seat, and says whether it has: so much that files can be
    /// removed when none is left otherwise.
    fn keep_reserve(&self, seat: &Self::Seat) -> bool;

    /// Gives the reserve back to the pool; says whether there was one.
    fn release_reserve(&self, seat: &Self::Seat) -> bool;

    /// Stores bytes at any addresses, in one round trip where they follow each other in a rack.
    fn write_batch(&self, writes: &[WriteRequest<'_>]) -> Result<(), Self::Error>;

    /// Figures of the memory.
    fn capacity(&self) -> Result<Capacity, Self::Error>;

    /// The address stored under a name.
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, RootError>;

    /// Stores an address under a name that has none; gives what is stored there then.
    fn set_root(&self, name: &str, addr: GlobalAddr) -> Result<Option<GlobalAddr>, RootError>;

    /// Whether an operation failed because no memory is left.
    fn is_full(error: &Self::Error) -> bool;
}

/// A seat that a thread of its own keeps: reservations belong to the thread that made them.
#[derive(Debug)]
pub struct PoolSeat {
    wishes: Sender<Wish>,
    thread: JoinHandle<()>,
}

/// What is wanted of who keeps a seat; it stands up when nobody can want anything any more.
#[derive(Debug)]
struct Wish {
    reserve: bool,
    /// Whether there was a reserve before, and whether there is one now.
    said: Sender<(bool, bool)>,
}

impl PoolSeat {
    fn wish(&self, reserve: bool) -> (bool, bool) {
        let (said, answer) = channel();
        // Without an answer the pool is closed.
        match self.wishes.send(Wish { reserve, said }) {
            Ok(()) => answer.recv().unwrap_or_default(),
            Err(_) => (false, false),
        }
    }
}

/// Whole pages in reserve. All objects of a page have one size, and removing files needs each of
/// the small sizes: with fewer pages than sizes, the first removal could leave nothing for the
/// second. Only a rack of some few pages spares less, one 16th.
fn reserve_pages(pool: &Pool) -> usize {
    let frames = pool.rack_status().map_or(0, |status| status.frames);
    usize::try_from(frames / 16).unwrap_or(0).clamp(1, MAX_RESERVE_PAGES)
}

/// Objects of 64 B to 2 KiB have six sizes.
const MAX_RESERVE_PAGES: usize = 6;

/// Sits, and keeps the reserve, until nobody wants anything any more. A program that is killed
/// keeps neither: both are reservations.
fn keep_seat(
    pool: &Pool,
    (seat, object): (GlobalAddr, GlobalAddr),
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
    // Who asked is waiting, unless its thread panicked; then there are no wishes.
    let _ = said.send(Ok(Some(reservation.token())));
    while let Ok(wish) = wishes.recv() {
        let had = !reserve.is_empty();
        if !wish.reserve {
            reserve.drain(..).for_each(|reservation| drop(pool.finish(reservation)));
        }
        while wish.reserve && reserve.len() < pages {
            let Ok(reservation) = pool.reserve(pool.page_bytes()) else { break };
            reserve.push(reservation);
        }
        let _ = wish.said.send((had, reserve.len() == pages));
    }
    // Should these fail, the daemon does it when the program ends.
    reserve.into_iter().for_each(|reservation| drop(pool.finish(reservation)));
    let _ = pool.finish(reservation);
}

impl VolumeMemory for Arc<Pool> {
    type Seat = PoolSeat;

    fn sit(
        &self,
        seat: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<(u64, PoolSeat)>, PoolError> {
        let (said, answer) = channel();
        let (wishes, wished) = channel();
        let pool = Self::clone(self);
        let thread = std::thread::spawn(move || keep_seat(&pool, (seat, object), &said, &wished));
        match answer.recv() {
            Ok(Ok(Some(token))) => Ok(Some((token, PoolSeat { wishes, thread }))),
            Ok(Ok(None)) | Err(_) => Ok(None),
            Ok(Err(error)) => Err(error),
        }
    }

    fn leave(&self, seat: PoolSeat) {
        drop(seat.wishes);
        let _ = seat.thread.join();
    }

    fn keep_reserve(&self, seat: &PoolSeat) -> bool {
        seat.wish(true).1
    }

    fn release_reserve(&self, seat: &PoolSeat) -> bool {
        seat.wish(false).0
    }

    fn write_batch(&self, writes: &[WriteRequest<'_>]) -> Result<(), PoolError> {
        Ok(Pool::write_batch(self, writes)?)
    }

    fn capacity(&self) -> Result<Capacity, PoolError> {
        let status = self.rack_status().map_err(AllocError::from)?;
        let page = self.page_bytes();
        let own = u64::from(status.frames).saturating_mul(page);
        // Pages that have objects have room for more; what caches hold counts as used. Of other
        // racks only whole pages are known.
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
        Pool::set_root(self, name, None, Some(addr)).map(|(now, _)| now)
    }

    fn is_full(error: &PoolError) -> bool {
        matches!(error, PoolError::Alloc(AllocError::OutOfMemory { .. }))
    }
}
