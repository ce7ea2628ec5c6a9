//! Reservations: objects that the pool takes back if the program is killed before it has linked
//! them. Protocol and recovery: `docs/design/publication.md`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::marker::PhantomData;
use std::num::NonZeroU64;

use rackpool_ring::client_file::ThreadSlot;
use rackpool_ring::reservation::{RESERVATIONS, ReservationRecord};
use rackpool_sync::SplitMix64;

use crate::{AccessError, AllocError, FreeError, GlobalAddr, Pool};

mod steps;

/// An object that nothing points to yet. If the program is killed, the pool takes the object back.
/// [`Pool::publish`] links it; [`Pool::finish`] ends the reservation in every case.
///
/// A reservation belongs to the thread that made it. A thread can have 16 at a time. A reservation
/// that is dropped without [`Pool::finish`] counts until the program ends.
#[derive(Debug)]
#[must_use = "a reservation that is not finished takes up one of the thread's records"]
pub struct Reservation {
    addr: GlobalAddr,
    token: u64,
    pool: NonZeroU64,
    record: u8,
    phase: Phase,
    replaced: Option<GlobalAddr>,
    /// The word that the object was borrowed from; null if the object came from the allocator.
    place: GlobalAddr,
    mode: PublishMode,
    of_one_thread: PhantomData<*const ()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The record is held or borrowed: no link to the object exists.
    Held,
    /// The compare-and-swap was made and counts: the link points to the object, or did.
    Published,
    /// The compare-and-swap was made with [`PublishMode::Compare`]; whether it counts is not
    /// resolved.
    Unresolved,
    /// The compare-and-swap got no answer: it may or may not have been made.
    InDoubt,
}

/// The compare-and-swap that publishes a reservation by linking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishCas {
    /// Address of the link, the word that will point to the reservation; a multiple of 8.
    pub addr: GlobalAddr,
    /// The expected value of the link.
    pub expected: u64,
    /// The new value of the link. No other client may store this value there except to point to
    /// this reservation.
    pub new: u64,
    /// The bits of the link that other clients change only to make it point elsewhere. `u64::MAX`
    /// is always correct.
    pub mask: u64,
    /// The object that `expected` points to, if it is to be freed once the swap was made.
    pub replaced: Option<GlobalAddr>,
    /// The variant of the publication.
    pub mode: PublishMode,
}

/// Variants of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishMode {
    /// The publication counts once the swap was made.
    #[default]
    Plain,
    /// The publication counts only if, after the swap, the second word of `replaced` (its *stamp*)
    /// still has this value. The first client that checks it, which may be the publisher, swaps the
    /// reservation's owner word from the token to 0 if the publication counts, and to `!token` if
    /// not. No client may free `replaced` before. A publication that does not count leaves the
    /// reservation linked in place of `replaced` until a client unlinks it. The publisher then ends
    /// the reservation with [`Pool::abort`], which frees its object and not `replaced`.
    Compare(u64),
    /// Once the swap is known to be made, and before `replaced` is freed, the bits of `mask` in the
    /// link are set to those of this value. For links whose memory is reused only after that.
    Settle(u64),
}

impl Reservation {
    /// The object's address; null for a [`Pool::tombstone`].
    #[must_use]
    pub const fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// The token that the object's first 8 bytes (little endian) must hold when it is published. It
    /// is random, lies between 2^48 and 2^63 - 1 (so it is not an address of a small pool), and is
    /// never used again.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }
}

/// The state of a thread's reservation records.
#[derive(Debug)]
pub(crate) struct Reservations {
    /// Bit set of the records whose reservation the program has.
    used: u16,
    /// Bit set of the records that are not free although their reservation has ended. The daemon
    /// resolves them when the program ends.
    left: u16,
    tokens: SplitMix64,
}

const _: () = assert!(RESERVATIONS == u16::BITS as usize);

impl Reservations {
    /// The state for a new thread. An earlier thread may have left records in its slot.
    pub(crate) fn of(slot: &ThreadSlot) -> Self {
        let says_something =
            slot.reservations.iter().rev().map(|record| u16::from(!record.is_free()));
        let left = says_something.fold(0, |bits, bit| bits << 1 | bit);
        // The standard library's only source of randomness: the keys of its hash maps.
        let seed = RandomState::new().build_hasher().finish();
        Self { used: 0, left, tokens: SplitMix64::new(seed) }
    }

    /// Returns true if the program has reservations in this slot.
    pub(crate) const fn has_any(&self) -> bool {
        self.used != 0
    }

    fn take(&mut self) -> Option<u8> {
        // When all other records are taken, a left record is reused. Its content is then lost if
        // the program is killed, which is better than refusing the reservation.
        let known =
            if self.used | self.left == u16::MAX { self.used } else { self.used | self.left };
        let record = u8::try_from((!known).trailing_zeros())
            .ok()
            .filter(|r| usize::from(*r) < RESERVATIONS)?;
        self.used |= 1 << record;
        self.left &= !(1 << record);
        Some(record)
    }

    /// Draws a token. It practically never repeats, because the numbers drawn do not.
    fn token(&mut self) -> u64 {
        loop {
            let token = self.tokens.draw() >> 1;
            if token >> 48 != 0 {
                return token;
            }
        }
    }
}

impl Pool {
    /// Allocates like [`Pool::alloc`] an object that is to be linked. If this program is killed
    /// before it has linked the object, the pool takes the object back.
    ///
    /// The object's first 8 bytes are its *owner word*. The program writes [`Reservation::token`]
    /// there with the rest of the contents. The owner word is 0 once the object is published. A
    /// client that unlinks, moves or frees a published object must first read its owner word and,
    /// if it is not 0, swap it to 0 with [`Pool::compare_and_swap`]. Without this step a publisher
    /// that was killed after the publication could not be distinguished from one that was killed
    /// before it.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, GlobalAddr, PublishCas, Pool, RackId, PublishMode};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let list_head = pool.alloc(8)?;
    /// // Puts a new first element into a list; its next pointer is in its second 8 bytes.
    /// let mut reservation = pool.reserve(64)?;
    /// let mut head = [0; 8];
    /// pool.read(list_head, &mut head)?;
    /// pool.write(reservation.addr(), &[reservation.token().to_le_bytes(), head].concat())?;
    /// let expected = u64::from_le_bytes(head);
    /// let link = PublishCas {
    ///     addr: list_head,
    ///     expected,
    ///     new: reservation.addr().raw(),
    ///     mask: u64::MAX,
    ///     replaced: None,
    ///     mode: PublishMode::Plain,
    /// };
    /// let is_first = pool.publish(&mut reservation, &link)? == expected;
    /// // Frees the element if the list has changed meanwhile.
    /// pool.finish(reservation)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Pool::alloc`], and [`AllocError::TooManyReservations`].
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, AllocError> {
        self.with(|thread| thread.reservation(Some(bytes)))?
    }

    /// Makes a reservation without an object, to unlink an object without linking a new one. The
    /// `new` value of the link must contain bits of the [`Reservation::token`], because nothing
    /// else proves that this program stored it; more bits make the proof stronger. If another
    /// client overwrites the link before it is settled ([`PublishMode::Settle`]) and this program
    /// is killed, the unlinked object stays in use.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, PublishCas, Pool, RackId, PublishMode};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (word, object) = (pool.alloc(8)?, pool.alloc(64)?);
    /// // Takes the object out of the word that holds its address, and frees it.
    /// let mut tombstone = pool.tombstone()?;
    /// let link = PublishCas {
    ///     addr: word,
    ///     expected: object.raw(),
    ///     new: tombstone.token(),
    ///     mask: u64::MAX,
    ///     replaced: Some(object),
    ///     mode: PublishMode::Settle(0),
    /// };
    /// let is_mine = pool.publish(&mut tombstone, &link)? == object.raw();
    /// // The word is 0 now if it was this program that took the object out.
    /// pool.finish(tombstone)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError::TooManyReservations`], or that of a daemon that is needed and does not answer.
    pub fn tombstone(&self) -> Result<Reservation, AllocError> {
        self.with(|thread| thread.reservation(None))?
    }

    /// Borrows `object` from the word at `place`, if that word holds its address. The word then
    /// holds the [`Reservation::token`] until the reservation is finished. [`Pool::finish`] stores
    /// the object there again or, if the object was published, the object that it replaced (0 if
    /// none). If this program is killed, the daemon does so. Other clients must not change a word
    /// that holds a token.
    ///
    /// Use it for objects that are reused and never freed: they wait in such words while no client
    /// uses them.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (word, buffer) = (pool.alloc(8)?, pool.alloc(64)?);
    /// // Uses the buffer that waits in the word, and puts it back.
    /// if let Some(taken) = pool.borrow(word, buffer)? {
    ///     pool.write(taken.addr(), b"mine")?;
    ///     pool.finish(taken)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError::TooManyReservations`], or that of the access. After an access error the object
    /// may have been taken out; it is then put back when this program ends.
    pub fn borrow(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Reservation>, AllocError> {
        self.with(|thread| thread.take_out(place, object))?
    }

    /// Declares that a published reservation with [`PublishMode::Compare`] does not count and is
    /// not linked any more. [`Pool::finish`] then frees the reservation and not what it was to
    /// replace. [`Pool::resolve`] declares that it counts.
    ///
    /// ```no_run
    /// use rackpool_client::{Reservation, FreeError, Pool};
    ///
    /// fn end(pool: &Pool, mut reservation: Reservation, counts: bool) -> Result<(), FreeError> {
    ///     if counts {
    ///         pool.resolve(&mut reservation, true);
    ///     } else {
    ///         pool.abort(&mut reservation);
    ///     }
    ///     pool.finish(reservation)
    /// }
    /// ```
    pub fn abort(&self, reservation: &mut Reservation) {
        if reservation.phase == Phase::Unresolved && reservation.pool == self.id() {
            let _ = self
                .with(|thread| thread.record(reservation.record).map(ReservationRecord::disarm));
            reservation.phase = Phase::Held;
        }
    }

    /// Swaps `link` if it has the expected value, and returns its previous value. If that is
    /// `link.expected`, the reservation is published: [`Pool::finish`] frees what it replaced, and
    /// [`Pool::publish`] must not be called again. Otherwise the reservation is unchanged.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, PublishCas, Pool, RackId, PublishMode};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let word = pool.alloc(8)?;
    /// let mut reservation = pool.reserve(64)?;
    /// pool.write(reservation.addr(), &reservation.token().to_le_bytes())?;
    /// let link = PublishCas {
    ///     addr: word,
    ///     expected: 0,
    ///     new: reservation.addr().raw(),
    ///     mask: u64::MAX,
    ///     replaced: None,
    ///     mode: PublishMode::Plain,
    /// };
    /// let is_first = pool.publish(&mut reservation, &link)? == 0;
    /// pool.finish(reservation)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Pool::compare_and_swap`]. After [`AccessError::Indeterminate`] or
    /// [`AccessError::Daemon`] it is unknown whether the swap was made: either find out and call
    /// [`Pool::resolve`], or finish the reservation; the daemon then resolves it when this program
    /// ends. [`AccessError::NotAReservation`] if the reservation is published, in doubt, or of
    /// another pool.
    pub fn publish(
        &self,
        reservation: &mut Reservation,
        link: &PublishCas,
    ) -> Result<u64, AccessError> {
        self.with(|thread| thread.publish(reservation, link))?
    }

    /// Declares whether a reservation is published whose publication got no answer, as this program
    /// has found out in another way. For a published reservation with [`PublishMode::Compare`],
    /// `true` declares that it counts; if it was in doubt, that takes a second call. Other
    /// reservations are not changed. After an error of the daemon, `false` has no effect while a
    /// daemon may still make the swap.
    ///
    /// ```no_run
    /// use rackpool_client::{AccessError, Reservation, PublishCas, Pool};
    ///
    /// /// Links a reservation into a word that nobody else changes.
    /// fn link(
    ///     pool: &Pool,
    ///     mut reservation: Reservation,
    ///     link: &PublishCas,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     match pool.publish(&mut reservation, link) {
    ///         Err(AccessError::Indeterminate(_)) => {
    ///             let mut word = [0; 8];
    ///             pool.read(link.addr, &mut word)?;
    ///             pool.resolve(&mut reservation, u64::from_le_bytes(word) == link.new);
    ///         }
    ///         published => drop(published?),
    ///     }
    ///     Ok(pool.finish(reservation)?)
    /// }
    /// ```
    pub fn resolve(&self, reservation: &mut Reservation, published: bool) {
        let is_open = reservation.phase == Phase::InDoubt
            || (reservation.phase == Phase::Unresolved && published);
        if is_open && reservation.pool == self.id() {
            let _ = self.with(|thread| thread.resolve(reservation, published));
        }
    }

    /// Ends a reservation and frees what is unreachable: the reserved object if it was not
    /// published, the object that it replaced if it was. Frees nothing if the reservation is in
    /// doubt or not resolved; the daemon then resolves it when this program ends.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let reservation = pool.reserve(64)?;
    /// // It is not linked anywhere, so this frees it.
    /// pool.finish(reservation)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Pool::free`]. The object goes back to the pool when the program ends, unless it
    /// was already free.
    pub fn finish(&self, reservation: Reservation) -> Result<(), FreeError> {
        self.with(|thread| thread.finish(&reservation)).map_err(AccessError::from)?
    }
}

#[cfg(test)]
mod tests;
