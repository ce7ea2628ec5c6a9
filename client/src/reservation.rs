//! Reservations: objects that go back to the pool when the program is killed before it has linked
//! them anywhere. How that is found out is in `docs/design/publication.md`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::marker::PhantomData;
use std::num::NonZeroU64;

use rackpool_ring::client_file::ThreadSlot;
use rackpool_ring::reservation::{RESERVATIONS, ReservationRecord};

use crate::{AccessError, AllocError, FreeError, GlobalAddr, Pool};

mod steps;

/// An object that nothing points to yet: should this program be killed, the pool takes it back.
/// [`Pool::publish`] links it somewhere, [`Pool::finish`] ends the reservation in any case.
///
/// It belongs to the thread that made it, of which each has 16 at a time. One that is dropped
/// instead of finished counts until the program ends.
#[derive(Debug)]
#[must_use = "a reservation that is not finished takes up one of the thread's records"]
pub struct Reservation {
    addr: GlobalAddr,
    token: u64,
    pool: NonZeroU64,
    record: u8,
    phase: Phase,
    replaced: Option<GlobalAddr>,
    /// The word that the object was taken out of; null when it is the pool's.
    place: GlobalAddr,
    mode: PublishMode,
    of_one_thread: PhantomData<*const ()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody else knows the object.
    Held,
    /// The link points to it, or did.
    Published,
    /// The same, and nobody has said whether it counts.
    Unresolved,
    /// The link's home did not say.
    InDoubt,
}

/// The compare-and-swap that publishes a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishCas {
    /// The word that will point to the reservation; aligned to 8 bytes.
    pub addr: GlobalAddr,
    /// What the word must be.
    pub expected: u64,
    /// What it becomes: a word that nobody stores there but to point to this reservation.
    pub new: u64,
    /// The bits of the word which others change only to make it point elsewhere; all, if unsure.
    pub mask: u64,
    /// The object that `expected` points to and that is to be freed once the swap was made.
    pub replaced: Option<GlobalAddr>,
    /// What else belongs to it.
    pub mode: PublishMode,
}

/// What else belongs to a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PublishMode {
    /// Nothing.
    #[default]
    Plain,
    /// It counts only if the second word of what is replaced still is this, its *stamp*, after the
    /// swap. Then the reservation's owner word is swapped from the token to 0, else to `!token`, by
    /// whoever is the first to look at it, the publisher as well; before that nobody frees what is
    /// replaced. If it does not count, the reservation stands for what it was to replace until it
    /// is unlinked, which is to be freed by whoever unlinks that.
    Compare(u64),
    /// Once the swap is known to be made, the link becomes this in the bits of its mask, before
    /// what was replaced is freed: for links that are used again only then.
    Settle(u64),
}

impl Reservation {
    /// Where the object is; null for a [`Pool::tombstone`].
    #[must_use]
    pub const fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// What the object's first 8 bytes (little endian) must hold when it is published. Random,
    /// 2^48 to 2^63 - 1 (so that it is no address of a small pool), and never used again.
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.token
    }
}

/// A thread's reservations.
#[derive(Debug)]
pub(crate) struct Reservations {
    /// Records of reservations that the program has, one bit each.
    used: u16,
    /// Records that still say something though the program has done with their reservation.
    left: u16,
    seed: u64,
    drawn: u64,
}

const _: () = assert!(RESERVATIONS == u16::BITS as usize);

impl Reservations {
    /// Those of a new thread; an earlier one may have left records in its slot.
    pub(crate) fn of(slot: &ThreadSlot) -> Self {
        let says_something =
            slot.reservations.iter().rev().map(|record| u16::from(!record.is_free()));
        let left = says_something.fold(0, |bits, bit| bits << 1 | bit);
        // The only source of randomness in the standard library: the keys of its hash maps.
        let seed = RandomState::new().build_hasher().finish();
        Self { used: 0, left, seed, drawn: 0 }
    }

    /// Whether the program has reservations.
    pub(crate) const fn has_any(&self) -> bool {
        self.used != 0
    }

    fn take(&mut self) -> Option<u8> {
        // What is left is worth less than going on: it is lost if the program is killed.
        let known =
            if self.used | self.left == u16::MAX { self.used } else { self.used | self.left };
        let record = u8::try_from((!known).trailing_zeros())
            .ok()
            .filter(|r| usize::from(*r) < RESERVATIONS)?;
        self.used |= 1 << record;
        self.left &= !(1 << record);
        Some(record)
    }

    /// SplitMix64: a permutation of the numbers, so that tokens hardly ever come twice.
    fn token(&mut self) -> u64 {
        loop {
            self.drawn += 1;
            let mut word = self.seed.wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^= word >> 31;
            word >>= 1;
            if word >> 48 != 0 {
                return word;
            }
        }
    }
}

impl Pool {
    /// Allocates like [`Pool::alloc`], for an object that is to be linked somewhere: until it is,
    /// the pool takes it back when this program is killed.
    ///
    /// The object's first 8 bytes are its *owner word*: write [`Reservation::token`] there with the
    /// rest of its contents. They are 0 once it is published. Whoever unlinks, moves or frees an
    /// object that was published reads them first, and if they are not 0 swaps them to 0
    /// ([`Pool::compare_and_swap`]) before doing so: a kill of the publisher can't be told
    /// otherwise from one before the publication.
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

    /// A reservation without an object, to take an object out of a link without a new one in its
    /// place: the link's `new` word must hold bits of the [`Reservation::token`], as nothing else
    /// tells then whether this program stored it. The more bits, the surer. If others overwrite the
    /// word before it is settled ([`PublishMode::Settle`]) and this program is killed, the object
    /// stays in use.
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
    /// [`AllocError::TooManyReservations`], or that of a daemon that is needed and away.
    pub fn tombstone(&self) -> Result<Reservation, AllocError> {
        self.with(|thread| thread.reservation(None))?
    }

    /// Takes `object` out of the word at `place` if it is there (the word is its address): the word
    /// holds the [`Reservation::token`] then until the reservation is finished, and gets back the
    /// object, or what it replaced (0 if nothing) if it was published. Should this program be
    /// killed, the pool does so. Whoever finds a token there leaves it alone.
    ///
    /// For objects that are used again and again but never freed. Those that nobody has used wait
    /// in such words.
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
    /// [`AllocError::TooManyReservations`], or that of the access. In the latter case the object may be
    /// taken out, and is put back when this program ends.
    pub fn borrow(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Reservation>, AllocError> {
        self.with(|thread| thread.take_out(place, object))?
    }

    /// Says of a published reservation that it does not count ([`PublishMode::Compare`]) and is not
    /// linked any more: [`Pool::finish`] frees it, and not what it was to replace. That it does
    /// count is said with [`Pool::resolve`].
    ///
    /// ```no_run
    /// use rackpool_client::{Reservation, FreeError, Pool};
    ///
    /// fn judge(pool: &Pool, mut reservation: Reservation, counts: bool) -> Result<(), FreeError> {
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

    /// Swaps `link` if it is as expected, and returns what it was. If that is `link.expected` the
    /// reservation is published: [`Pool::finish`] frees what it replaced, [`Pool::publish`] is not
    /// called again. If not, the reservation is as before.
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
    /// [`AccessError::Daemon`] nobody knows whether the swap was made: find out and
    /// [`Pool::resolve`], or finish the reservation and leave it to the daemon when this program
    /// ends. [`AccessError::NotAReservation`] if it is published, in doubt, or of another pool.
    pub fn publish(
        &self,
        reservation: &mut Reservation,
        link: &PublishCas,
    ) -> Result<u64, AccessError> {
        self.with(|thread| thread.publish(reservation, link))?
    }

    /// Says of a reservation whose publication gave no answer whether it is published, as this
    /// program has found out otherwise; and of one with [`PublishMode::Compare`] that it counts. Of
    /// other reservations it is known already, and nothing happens; nor does a "no" count while a
    /// daemon may still make the swap, after an error of the daemon.
    ///
    /// ```no_run
    /// use rackpool_client::{AccessError, Reservation, PublishCas, Pool};
    ///
    /// /// Links a reservation into a word that nobody else changes.
    /// fn link(pool: &Pool, mut reservation: Reservation, link: &PublishCas) -> Result<(), Box<dyn std::error::Error>> {
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

    /// Ends a reservation: frees what is reachable by nobody, which is the reservation if it was
    /// not published, and what it replaced if it was. Of a reservation in doubt, or of which nobody
    /// has said that it counts, it frees nothing; the daemon decides when this program ends.
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
    /// Those of [`Pool::free`]; unless the object was free already it goes back when the program
    /// ends.
    pub fn finish(&self, reservation: Reservation) -> Result<(), FreeError> {
        self.with(|thread| thread.finish(&reservation)).map_err(AccessError::from)?
    }
}

#[cfg(test)]
mod tests;
