use std::sync::Arc;

#[cfg(doc)]
use rackpool_client::PublishMode;
use rackpool_client::{GlobalAddr, PublishCas};

/// What a table needs of the memory it lives in: one-sided reads and writes and an 8-byte
/// compare-and-swap, all at global addresses.
///
/// What the table relies on:
/// - aligned 8-byte words are read and written whole; larger ranges may tear between words;
/// - a write has reached the memory when the call returns, and whoever sees the effect of a later
///   compare-and-swap of the same client sees that write too;
/// - one client's calls take effect in the order it makes them;
/// - compare-and-swap is linearizable, whoever asks and wherever the page is.
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
    /// Why an operation failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// An object that nothing points to yet.
    type Reservation: Reservation;

    /// Memory of `bytes` bytes, from 16 to the page size, aligned to the next power of two. Its
    /// content is unspecified.
    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, Self::Error>;

    /// Gives back what [`allocate`](Self::allocate) returned.
    fn free(&self, addr: GlobalAddr) -> Result<(), Self::Error>;

    /// Like [`allocate`](Self::allocate), for an object that is to be published: should the client
    /// be killed, the memory takes it back, unless it was published. The object's first 8 bytes
    /// hold [`Reservation::token`] when it is published; afterwards the memory swaps them to 0,
    /// which others may do as well; with [`PublishMode::Compare`] only the table does.
    fn reserve(&self, bytes: u64) -> Result<Self::Reservation, Self::Error>;

    /// A reservation without an object, for a link whose new word, which has bits of the token,
    /// tells that what it replaced is nobody's.
    fn tombstone(&self) -> Result<Self::Reservation, Self::Error>;

    /// Takes `object` out of the word at `place` if it is there: the word holds
    /// [`Reservation::token`] until the reservation is finished, and gets back the object, or what
    /// it replaced if it was published, 0 if that is nothing. Should the client be killed, the
    /// memory does so.
    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Self::Reservation>, Self::Error>;

    /// Swaps a word that points to the reservation afterwards, and returns what it was before; what
    /// it was to be means that it was published. Then, and after [`CasError::Indeterminate`], it is
    /// not published again.
    fn publish(
        &self,
        reservation: &mut Self::Reservation,
        link: &PublishCas,
    ) -> Result<u64, CasError<Self::Error>>;

    /// Says of a reservation whose publication gave no answer whether it was published.
    fn resolve(&self, reservation: &mut Self::Reservation, published: bool);

    /// Says of a published reservation that it does not count ([`PublishMode::Compare`]) and is not
    /// linked any more: it is freed, and what it was to replace is not.
    fn abort(&self, reservation: &mut Self::Reservation);

    /// Ends a reservation: frees it, or what it replaced if it was published. If nobody knows, both
    /// stay as they are.
    fn finish(&self, reservation: Self::Reservation) -> Result<(), Self::Error>;

    /// Fills `into` from `addr`. Reading memory that was freed meanwhile may give any bytes or an
    /// error, and must do no harm.
    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Stores `from` at `addr`.
    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), Self::Error>;

    /// Executes `reads` in order; in one round trip when they go to another rack.
    fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), Self::Error> {
        reads.iter_mut().try_for_each(|read| self.read(read.addr, read.into))
    }

    /// Replaces the aligned 8-byte word at `addr` by `new` if it is `expected`; returns what it was
    /// before in either case. The word's bytes are little-endian.
    fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, CasError<Self::Error>>;

    /// Executes several compare-and-swaps, in any order, and returns when all are done. After an
    /// error each of them may or may not have happened: the table uses this only where that does
    /// not matter. Worth implementing where a list costs one round trip.
    fn compare_and_swap_batch(&self, requests: &[CasRequest]) -> Result<(), CasError<Self::Error>> {
        requests.iter().try_for_each(|request| {
            self.compare_and_swap(request.addr, request.expected, request.new).map(drop)
        })
    }

    /// Whether an access failed with `error` because nothing is allocated where it went, and for no
    /// other reason: what the table has had there was freed. If in doubt, no.
    fn is_unallocated(&self, error: &Self::Error) -> bool;

    /// The page size in bytes: the largest object.
    fn page_bytes(&self) -> u64;

    /// A hint: `bytes` bytes at `addr` will be read soon. Worth following where they are near.
    fn prefetch(&self, addr: GlobalAddr, bytes: usize) {
        let _ = (addr, bytes);
    }

    /// A hint: whether reading `addr` costs a memory access rather than a round trip. Near, the
    /// table reads as little as it can; far, it reads more than it may need, in one batch.
    fn is_near(&self, addr: GlobalAddr) -> bool {
        let _ = addr;
        true
    }
}

/// A memory with names: its roots, each of which has an address.
///
/// ```
/// use rackpool_kv::{GlobalAddr, Roots};
///
/// fn is_free<M: Roots>(memory: &M, name: &str) -> Result<bool, M::Error> {
///     Ok(memory.root(name)?.is_none())
/// }
/// ```
pub trait Roots: Memory {
    /// The address under `name`, if there is such a name.
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, Self::Error>;

    /// Stores `new` under `name` if `expected` is stored there; `None` is no name. Returns what
    /// stands there now and whether this call put it there.
    fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<(Option<GlobalAddr>, bool), CasError<Self::Error>>;
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
    ) -> Result<(Option<GlobalAddr>, bool), CasError<Self::Error>> {
        (**self).set_root(name, expected, new)
    }
}

/// An object that a client has, and of which the memory knows that nothing points to it yet.
pub trait Reservation: std::fmt::Debug {
    /// Where it is; null for a [`Memory::tombstone`].
    fn addr(&self) -> GlobalAddr;

    /// What its first 8 bytes hold until it is published: random, 2^48 to 2^63 - 1, and used once.
    fn token(&self) -> u64;
}

/// One read of [`Memory::read_batch`].
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Where to read.
    pub addr: GlobalAddr,
    /// What to fill.
    pub into: &'a mut [u8],
}

/// One swap of [`Memory::compare_and_swap_batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CasRequest {
    /// The aligned 8-byte word.
    pub addr: GlobalAddr,
    /// Swap only if the word is this.
    pub expected: u64,
    /// What to put there.
    pub new: u64,
}

/// Why a compare-and-swap gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum CasError<E> {
    /// It may or may not have happened, and will not happen any more now that this is returned.
    #[error("it is unknown whether the compare-and-swap happened: its home went away during it")]
    Indeterminate,
    /// It was given up: it may have happened, and may still happen.
    #[error("it is unknown whether the compare-and-swap happens: {0}")]
    GivenUp(E),
    /// It did not happen.
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
