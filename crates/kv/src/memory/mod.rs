//! The memory that holds a table.

pub(crate) mod pool;
pub(crate) mod words;

use std::sync::Arc;

#[cfg(doc)]
use rackpool_client::PublishMode;
use rackpool_client::{GlobalAddr, PublishCas, ReadRequest, RootUpdate};

/// The memory that holds a table: one-sided reads and writes and an 8-byte compare-and-swap, all at
/// global addresses.
///
/// The table relies on these properties:
/// - Aligned 8-byte words are read and written atomically; larger ranges may tear between words.
/// - A write has reached the memory when the call returns. A client that observes the effect of a
///   later compare-and-swap by the same client observes that write too.
/// - The calls of one client take effect in program order.
/// - A compare-and-swap is linearizable, for any client and any location of the page.
///
/// ```
/// use rackpool_kv::{Memory, ReadRequest};
/// # use rackpool_kv::GlobalAddr;
/// fn two_words<M: Memory>(memory: &M, addr: GlobalAddr) -> Result<[u8; 16], M::Error> {
///     let mut bytes = [0; 16];
///     let (low, high) = bytes.split_at_mut(8);
///     memory.read_batch(&mut [
///         ReadRequest { addr, into: low },
///         ReadRequest { addr: GlobalAddr::from_raw(addr.raw() + 8), into: high },
///     ])?;
///     Ok(bytes)
/// }
/// ```
pub trait Memory: Send + Sync {
    /// The error of a failed operation.
    type Error: std::error::Error + Send + Sync + 'static;

    /// A reserved object: allocated, and not yet linked from anywhere.
    type Reservation: ReservedObject;

    /// Allocates `bytes` bytes, from 16 to the page size, aligned to the next power of two. The
    /// content is unspecified.
    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, Self::Error>;

    /// Frees an object that [`allocate`](Self::allocate) returned.
    fn free(&self, addr: GlobalAddr) -> Result<(), Self::Error>;

    /// Like [`allocate`](Self::allocate), for an object that will be published. If the client is
    /// killed, the memory frees the object unless it was published. The caller writes
    /// [`ReservedObject::token`] into the first 8 bytes before it publishes the object. After the
    /// publication the memory swaps them to 0; other clients may do the same. With
    /// [`PublishMode::Compare`] only the table swaps them.
    fn reserve(&self, bytes: u64) -> Result<Self::Reservation, Self::Error>;

    /// A reservation without an object. It is published into a link whose new word contains bits of
    /// the token and thereby proves that the replaced object is unreachable.
    fn tombstone(&self) -> Result<Self::Reservation, Self::Error>;

    /// Borrows `object` from the word at `place`; `None` if the word does not contain it. Until the
    /// reservation is finished the word holds [`ReservedObject::token`]. Then the word gets back
    /// the object, or, if the object was published, the object that it replaced (0 if there is
    /// none). If the client is killed, the memory does this.
    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Self::Reservation>, Self::Error>;

    /// Publishes a reservation: swaps the word at `link.addr` from `link.expected` to `link.new`.
    /// Returns the word from before; the swap was made if that is `link.expected`. A published
    /// reservation must not be published again, nor one after [`CasError::Indeterminate`] before
    /// [`resolve`](Self::resolve) was called with `false`.
    fn publish(
        &self,
        reservation: &mut Self::Reservation,
        link: &PublishCas,
    ) -> Result<u64, CasError<Self::Error>>;

    /// Tells the memory the outcome of a publication that was indeterminate.
    fn resolve(&self, reservation: &mut Self::Reservation, published: bool);

    /// Marks a published reservation as aborted ([`PublishMode::Compare`]) and unlinked:
    /// [`finish`](Self::finish) then frees the object itself, not the one that it replaced.
    fn abort(&self, reservation: &mut Self::Reservation);

    /// Ends a reservation. Frees the object if it was not published, else the object that it
    /// replaced. If the outcome is unknown, neither is freed.
    fn finish(&self, reservation: Self::Reservation) -> Result<(), Self::Error>;

    /// Fills `into` from `addr`. Reading memory that is freed concurrently may return any bytes or
    /// an error, and must do no harm.
    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Stores `from` at `addr`.
    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), Self::Error>;

    /// Executes `reads` in order, in one round trip if they go to another rack.
    fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), Self::Error> {
        reads.iter_mut().try_for_each(|read| self.read(read.addr, read.into))
    }

    /// Replaces the aligned 8-byte little-endian word at `addr` by `new` if it equals `expected`.
    /// Returns the word from before in either case.
    fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, CasError<Self::Error>>;

    /// Executes several compare-and-swaps, in any order, and returns when all have completed. After
    /// an error each of them may or may not have happened; the table calls this only where that
    /// does not matter. An implementation pays off if it executes a batch in one round trip.
    fn compare_and_swap_batch(&self, requests: &[CasRequest]) -> Result<(), CasError<Self::Error>> {
        requests.iter().try_for_each(|request| {
            self.compare_and_swap(request.addr, request.expected, request.new).map(drop)
        })
    }

    /// Whether `error` proves that nothing is allocated at the accessed address, so the object that
    /// was there has been freed. An implementation returns false when in doubt.
    fn is_unallocated(&self, error: &Self::Error) -> bool;

    /// Whether `error` proves that the accessed memory is gone with its contents, and will never be
    /// allocated again. An implementation returns false when in doubt.
    fn is_lost(&self, error: &Self::Error) -> bool;

    /// The page size in bytes, which is the largest object.
    fn page_bytes(&self) -> u64;

    /// A hint that `bytes` bytes at `addr` will be read soon. Useful for local memory.
    fn prefetch(&self, addr: GlobalAddr, bytes: usize) {
        let _ = (addr, bytes);
    }

    /// A hint whether reading `addr` costs a memory access rather than a network round trip. From
    /// near memory the table reads as little as possible; from far memory it reads in one batch
    /// everything that it may need.
    fn is_near(&self, addr: GlobalAddr) -> bool {
        let _ = addr;
        true
    }
}

/// A memory with roots: names, each of which stands for an address.
///
/// ```
/// use rackpool_kv::{GlobalAddr, Roots};
///
/// fn is_free<M: Roots>(memory: &M, name: &str) -> Result<bool, M::Error> {
///     Ok(memory.root(name)?.is_none())
/// }
/// ```
pub trait Roots: Memory {
    /// The address of the root `name`; `None` if there is no such root.
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, Self::Error>;

    /// Sets the root `name` to `new` if it is `expected`; `None` means no such root.
    fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<RootUpdate, CasError<Self::Error>>;
}

impl<M: Roots + ?Sized> Roots for Arc<M> {
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, Self::Error> {
        (**self).root(name)
    }

    fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<RootUpdate, CasError<Self::Error>> {
        (**self).set_root(name, expected, new)
    }
}

/// A reserved object, which the memory knows to be not yet linked.
pub trait ReservedObject: std::fmt::Debug {
    /// The object's address; null for a [`Memory::tombstone`].
    fn addr(&self) -> GlobalAddr;

    /// The object's owner word until it is published: random, 2^48 to 2^63 - 1, never reused.
    fn token(&self) -> u64;
}

/// One compare-and-swap of [`Memory::compare_and_swap_batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasRequest {
    /// The address of the aligned 8-byte word.
    pub addr: GlobalAddr,
    /// The word is swapped only if it has this value.
    pub expected: u64,
    /// The word's new value.
    pub new: u64,
}

/// Why a compare-and-swap has no result.
#[derive(Debug, thiserror::Error)]
pub enum CasError<E> {
    /// The swap may have happened. It will not happen any more.
    #[error("it is unknown whether the compare-and-swap happened: its home went away during it")]
    Indeterminate,
    /// The client gave up waiting: the swap may have happened, and may still happen.
    #[error("it is unknown whether the compare-and-swap happens: {0}")]
    GivenUp(E),
    /// The swap did not happen.
    #[error(transparent)]
    Failed(E),
}

impl<M: Memory + ?Sized> Memory for Arc<M> {
    type Error = M::Error;
    type Reservation = M::Reservation;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, Self::Error> {
        (**self).allocate(bytes)
    }

    fn free(&self, addr: GlobalAddr) -> Result<(), Self::Error> {
        (**self).free(addr)
    }

    fn reserve(&self, bytes: u64) -> Result<Self::Reservation, Self::Error> {
        (**self).reserve(bytes)
    }

    fn tombstone(&self) -> Result<Self::Reservation, Self::Error> {
        (**self).tombstone()
    }

    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Self::Reservation>, Self::Error> {
        (**self).take(place, object)
    }

    fn abort(&self, reservation: &mut Self::Reservation) {
        (**self).abort(reservation);
    }

    fn publish(
        &self,
        reservation: &mut Self::Reservation,
        link: &PublishCas,
    ) -> Result<u64, CasError<Self::Error>> {
        (**self).publish(reservation, link)
    }

    fn resolve(&self, reservation: &mut Self::Reservation, published: bool) {
        (**self).resolve(reservation, published);
    }

    fn finish(&self, reservation: Self::Reservation) -> Result<(), Self::Error> {
        (**self).finish(reservation)
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), Self::Error> {
        (**self).read(addr, into)
    }

    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), Self::Error> {
        (**self).write(addr, from)
    }

    fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), Self::Error> {
        (**self).read_batch(reads)
    }

    fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, CasError<Self::Error>> {
        (**self).compare_and_swap(addr, expected, new)
    }

    fn compare_and_swap_batch(&self, requests: &[CasRequest]) -> Result<(), CasError<Self::Error>> {
        (**self).compare_and_swap_batch(requests)
    }

    fn is_unallocated(&self, error: &Self::Error) -> bool {
        (**self).is_unallocated(error)
    }

    fn is_lost(&self, error: &Self::Error) -> bool {
        (**self).is_lost(error)
    }

    fn page_bytes(&self) -> u64 {
        (**self).page_bytes()
    }

    fn prefetch(&self, addr: GlobalAddr, bytes: usize) {
        (**self).prefetch(addr, bytes);
    }

    fn is_near(&self, addr: GlobalAddr) -> bool {
        (**self).is_near(addr)
    }
}
