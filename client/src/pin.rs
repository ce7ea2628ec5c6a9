//! Pins: fixed objects whose memory is not reused while a program reads it in place.

use std::borrow::Borrow;

use rackpool_model::GlobalAddr;
use rackpool_ring::client_file::{ArrayKind, RingKind};
use rackpool_ring::pins;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::connection::{Connection, lock};
use crate::{AccessError, DaemonError, NoCell, Pool};

/// The reason why an object was not pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The address is no fixed object of the own rack, or it can't be found out.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The program has too many pins, or the file system has no room for more.
    #[error(transparent)]
    NoCell(#[from] NoCell),
}

/// Keeps the memory of a fixed object of the own rack, and of its extents, from being reused, until
/// it is dropped or its process ends.
///
/// A pin counts only if the object was not freed before it. The holder finds that out by reading
/// the link to the object again *after* the pin was made: the object is unlinked before it is
/// freed. `P` is a reference to the pool, or an `Arc` of it; the pool stays open while it has pins.
///
/// ```no_run
/// # use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
/// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
/// # let link = pool.alloc(8)?;
/// let linked = || -> Result<GlobalAddr, Box<dyn std::error::Error>> {
///     let mut word = [0; 8];
///     pool.read(link, &mut word)?;
///     Ok(GlobalAddr::from_raw(u64::from_le_bytes(word)))
/// };
/// let mut pin = pool.pin(linked()?)?;
/// while linked()? != pin.addr() {
///     pin = pool.pin(linked()?)?;
/// }
/// // The object's bytes stay, even if another program unlinks and frees it now.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the object's memory may be reused once the pin is dropped"]
pub struct Pin<P: Borrow<Pool>> {
    pool: P,
    addr: GlobalAddr,
    cell: usize,
}

impl<P: Borrow<Pool>> Pin<P> {
    /// Pins the fixed object at `addr`, as [`Pool::pin`] does.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use rackpool_client::{ClientOptions, Pin, Pool, RackId};
    /// let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?);
    /// let object = pool.alloc_fixed(64)?;
    /// let pin: Pin<Arc<Pool>> = Pin::new(Arc::clone(&pool), object)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::pin`].
    pub fn new(pool: P, addr: GlobalAddr) -> Result<Self, PinError> {
        let connection = pool.borrow().connection();
        pool.borrow().with(|thread| thread.check_fixed(addr)).map_err(AccessError::from)??;
        let cell = lock(&connection.pins).take(&connection.file)?;
        let array = connection.file.array(ArrayKind::Pins);
        if !pins::pin(&array, cell, addr.raw(), connection.barrier) {
            return Err(NoCell::AllInUse { most: cell }.into());
        }
        Ok(Self { pool, addr, cell })
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.pool.borrow()
    }

    pub(crate) const fn shared_pool(&self) -> &P {
        &self.pool
    }

    /// The address of the pinned object.
    #[must_use]
    pub const fn addr(&self) -> GlobalAddr {
        self.addr
    }
}

impl<P: Borrow<Pool>> Drop for Pin<P> {
    fn drop(&mut self) {
        let connection: &Connection = self.pool.borrow().connection();
        // In a forked child the pin belongs to the parent.
        if !connection.is_inherited() {
            lock(&connection.pins).give_back(&connection.file, self.cell);
        }
    }
}

impl Pool {
    /// Pins the fixed object at `addr`: its memory and that of its extents is not reused until the
    /// pin is dropped or this program ends. The cost is a store and, where the daemon's heavy
    /// barrier does not reach programs, a fence. A program has up to 2^20 pins.
    ///
    /// The caller must read the link to the object again afterwards: see [`Pin`].
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let object = pool.alloc_fixed(64)?;
    /// let pin = pool.pin(object)?;
    /// pool.free(object)?;
    /// // Until `pin` is dropped the object's bytes can be read.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PinError`]: the address is no fixed object of the own rack, the program has too many pins,
    /// or a daemon that is needed to find the object does not answer.
    pub fn pin(&self, addr: GlobalAddr) -> Result<Pin<&Self>, PinError> {
        Pin::new(self, addr)
    }

    /// Which of these fixed objects of the own rack a program pins now, this one included. The
    /// daemon looks at the pins of all programs, five objects at a time. A pin that is made or
    /// dropped during the call is seen or not.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let objects = [pool.alloc_fixed(64)?, pool.alloc_fixed(64)?];
    /// let pin = pool.pin(objects[1])?;
    /// assert_eq!(pool.pinned(&objects)?, [false, true]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DaemonError`]: the daemon does not answer.
    pub fn pinned(&self, objects: &[GlobalAddr]) -> Result<Vec<bool>, DaemonError> {
        let mut pinned = Vec::with_capacity(objects.len());
        for some in objects.chunks(RackRequest::PINNED) {
            let mut asked = [GlobalAddr::NULL; RackRequest::PINNED];
            asked[..some.len()].copy_from_slice(some);
            let request = RackRequest::Pinned { objects: asked };
            let answer =
                self.with(|thread| thread.calls.ask(&thread.connection, request, RingKind::Rack))??;
            let RackAnswer::Done(bits) = answer else { return Err(DaemonError::Protocol) };
            pinned.extend((0..some.len()).map(|bit| bits >> bit & 1 == 1));
        }
        Ok(pinned)
    }
}
