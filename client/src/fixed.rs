//! Fixed objects, and the array that notes those that the program owns: that it has and has
//! published nowhere.
//!
//! An object is noted in the array from the time it leaves the inbox until the program disowns it,
//! reserves it, or frees it. In each case it is noted at its next place before the cell is cleared.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};

use rackpool_model::{GlobalAddr, SizeClass};
use rackpool_ring::client_file::{ArrayKind, ClientFile, EXCHANGE};
use rackpool_ring::objects::NoteCell;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::cells::Cells;
use crate::connection::{DaemonLink, lock};
use crate::reservation::Reservation;
use crate::thread::{Target, Thread};
use crate::translation::{Place, Translation};
use crate::{AccessError, AllocError, DaemonError, NoCell, PinnedBytesMut, Pool};

/// The most bytes that one refill brings, if that is more than one object.
const REFILL_BYTES: u64 = 1 << 20;

/// The objects in the owned array of this process.
#[derive(Debug)]
pub(crate) struct Owned {
    cells: Cells,
    /// The cell of each object that the program has.
    held: HashMap<u64, usize>,
    /// Those of them that the program writes in place.
    written: HashSet<u64>,
    /// Objects that the program has not got yet, by the index of their class, with their cells.
    stock: Vec<Vec<(u64, usize)>>,
}

impl Owned {
    /// The state of a new client.
    pub(crate) fn new() -> Self {
        Self {
            cells: Cells::of(ArrayKind::Owned),
            held: HashMap::new(),
            written: HashSet::new(),
            stock: Vec::new(),
        }
    }

    /// Hands out an object of this class.
    fn hand_out(&mut self, class: SizeClass) -> Option<GlobalAddr> {
        let (object, cell) = self.stock.get_mut(usize::from(class.index()))?.pop()?;
        self.held.insert(object, cell);
        Some(GlobalAddr::from_raw(object))
    }

    /// Notes an object of this class that the program has not got yet.
    fn keep(&mut self, file: &ClientFile, class: SizeClass, object: u64) -> Result<(), NoCell> {
        let cell = self.cells.take(file)?;
        file.array(ArrayKind::Owned).note(cell, object);
        let class = usize::from(class.index());
        if self.stock.len() <= class {
            self.stock.resize_with(class + 1, Vec::new);
        }
        self.stock[class].push((object, cell));
        Ok(())
    }

    /// Returns true if the program writes the object in place.
    pub(crate) fn is_written(&self, addr: GlobalAddr) -> bool {
        self.written.contains(&addr.raw())
    }

    /// Notes that the program writes an object in place, which it must own.
    pub(crate) fn begin_writing(&mut self, addr: GlobalAddr) -> Result<(), AccessError> {
        if !self.held.contains_key(&addr.raw()) {
            return Err(AccessError::NotOwned(addr));
        }
        if !self.written.insert(addr.raw()) {
            return Err(AccessError::BeingWritten(addr));
        }
        Ok(())
    }

    /// Notes that the program no longer writes an object in place.
    pub(crate) fn end_writing(&mut self, addr: GlobalAddr) {
        self.written.remove(&addr.raw());
    }

    /// Takes the cell of an object that the program has and does not write in place.
    fn take(&mut self, addr: GlobalAddr) -> Result<usize, AccessError> {
        if self.is_written(addr) {
            return Err(AccessError::BeingWritten(addr));
        }
        self.take_written(addr)
    }

    /// Takes the cell of an object that the program has.
    fn take_written(&mut self, addr: GlobalAddr) -> Result<usize, AccessError> {
        self.held.remove(&addr.raw()).ok_or(AccessError::NotOwned(addr))
    }

    /// Removes the note of an object that the program has. Returns false if there is none.
    pub(crate) fn disown(&mut self, file: &ClientFile, addr: GlobalAddr) -> bool {
        let Some(cell) = self.held.remove(&addr.raw()) else { return false };
        self.cells.give_back(file, cell);
        true
    }
}

impl Pool {
    /// Allocates an object of at least `bytes` bytes in the own rack that keeps its place: its page
    /// neither moves to another rack nor is shared. `bytes` is at most
    /// [`page_bytes`](Self::page_bytes); [`alloc_extents`](Self::alloc_extents) adds memory.
    ///
    /// The program *owns* the object: if the program is killed, the pool takes the object back. It
    /// stays if the program has published it by [`reserve_owned`](Self::reserve_owned), or has
    /// called [`disown`](Self::disown). [`Pool::free`] frees it; memory that is
    /// [pinned](Self::pin) is reused later. A program owns up to 2^20 objects, with those that are
    /// allocated ahead for it.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let head = pool.alloc_fixed(64)?;
    /// for extent in pool.alloc_extents(head, 100 << 20)? {
    ///     println!("{} B at {}", extent.bytes, extent.addr);
    /// }
    /// pool.free(head)?; // with its extents
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError`]: `bytes` is 0 or more than a page, the own rack has no room
    /// ([`AllocError::RackFull`]), the program owns too many objects, or the daemon does not
    /// answer.
    pub fn alloc_fixed(&self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        self.with(|thread| thread.alloc_fixed(bytes))?
    }

    /// Declares that the object stays if this program is killed, because other programs can find
    /// it.
    ///
    /// A program that is killed between the store that makes the object reachable and this call
    /// leaves an address of free memory there. [`reserve_owned`](Self::reserve_owned) has no such
    /// gap.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let object = pool.alloc_fixed(64)?;
    /// pool.disown(object)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AccessError::NotOwned`] if this program does not own the object,
    /// [`AccessError::BeingWritten`] if it writes the object in place.
    pub fn disown(&self, addr: GlobalAddr) -> Result<(), AccessError> {
        self.with(|thread| {
            let connection = &thread.connection;
            let mut owned = lock(&connection.owned);
            let cell = owned.take(addr)?;
            owned.cells.give_back(&connection.file, cell);
            Ok(())
        })?
    }

    /// Makes a [reservation](Self::reserve) of an object that this program owns. If the program is
    /// killed before it has linked the object, the pool takes the object back with its extents.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let head = pool.alloc_fixed(64)?;
    /// let extents = pool.alloc_extents(head, 10 << 20)?;
    /// // The contents are written here; then the head is linked like any reservation.
    /// let reservation = pool.reserve_owned(head)?;
    /// pool.write(head, &reservation.token().to_le_bytes())?;
    /// # pool.finish(reservation)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError::TooManyReservations`], [`AccessError::NotOwned`], or
    /// [`AccessError::BeingWritten`].
    pub fn reserve_owned(&self, addr: GlobalAddr) -> Result<Reservation, AllocError> {
        self.with(|thread| thread.reserve_owned(addr, Owned::take))?
    }

    /// As [`reserve_owned`](Self::reserve_owned), of the object of `bytes`, which this program goes
    /// on writing after it has linked the object. Those who find it must find out which of its
    /// bytes count, for example from a word that is stored when all are there.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let head = pool.alloc_fixed(64)?;
    /// let mut bytes = pool.pin(head)?.map_head_mut(0..64)?;
    /// let reservation = pool.reserve_written(&bytes)?;
    /// // Here the head is linked like any reservation.
    /// bytes[..32].fill(7);
    /// # pool.finish(reservation)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError::TooManyReservations`], or [`AccessError::NotOwned`] if the object was reserved
    /// before.
    pub fn reserve_written<P: Borrow<Self>>(
        &self,
        bytes: &PinnedBytesMut<P>,
    ) -> Result<Reservation, AllocError> {
        self.with(|thread| thread.reserve_owned(bytes.head(), Owned::take_written))?
    }
}

impl Thread {
    fn alloc_fixed(&mut self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let page_size = self.connection.page_size;
        let Some(class) = SizeClass::for_bytes(bytes, page_size) else {
            return Err(AllocError::LargerThanPage { bytes, page_bytes: page_size.bytes() });
        };
        loop {
            if let Some(object) = lock(&self.connection.owned).hand_out(class) {
                return Ok(object);
            }
            self.refill_fixed(class)?;
        }
    }

    /// Fetches fixed objects of a class and notes them in the owned array.
    #[cold]
    fn refill_fixed(&mut self, class: SizeClass) -> Result<(), AllocError> {
        let bytes = class.bytes();
        let count = (REFILL_BYTES / bytes).clamp(1, EXCHANGE as u64);
        let request = RackRequest::RefillFixed { bytes, count };
        let mut answer = self.ask_for_objects(request)?;
        if matches!(answer, RackAnswer::OutOfMemory { .. }) && self.free_memory()? {
            answer = self.ask_for_objects(request)?;
        }
        match answer {
            RackAnswer::Done(count) if count > 0 => {}
            RackAnswer::OutOfMemory { .. } => return Err(self.rack_full(bytes, &answer)),
            _ => return Err(DaemonError::Protocol.into()),
        }
        let mut kept = 0;
        for cell in &self.slot().inbox {
            let object = cell.load(Ordering::Relaxed);
            if object == 0 {
                continue;
            }
            if let Err(error) =
                lock(&self.connection.owned).keep(&self.connection.file, class, object)
            {
                // The objects left in the inbox go back with the next request.
                return if kept > 0 { Ok(()) } else { Err(error.into()) };
            }
            cell.set(0);
            kept += 1;
        }
        if kept > 0 { Ok(()) } else { Err(DaemonError::Protocol.into()) }
    }

    /// Returns to the daemon all free objects that this thread holds, and the fixed ones that the
    /// process holds. Returns true if there were any.
    pub(crate) fn free_memory(&mut self) -> Result<bool, DaemonError> {
        self.check_exchanges()?;
        let stock = std::mem::take(&mut lock(&self.connection.owned).stock);
        let mut any = false;
        for (object, cell) in stock.into_iter().flatten() {
            any = true;
            self.put_into_outbox(object)?;
            lock(&self.connection.owned).cells.give_back(&self.connection.file, cell);
        }
        any |= self.flush_everything()?;
        // What the thread freed in the parts of siblings, too: they may be asked next. One that
        // does not answer has nothing to give.
        for sibling in &mut self.siblings {
            if sibling.connection.link() == DaemonLink::Up {
                any |= sibling.flush_everything().unwrap_or(false);
            }
        }
        Ok(any)
    }

    /// The error for a demand that only the own rack can serve and for which it has no room.
    pub(crate) fn rack_full(&self, bytes: u64, answer: &RackAnswer) -> AllocError {
        let (frames, free) = match *answer {
            RackAnswer::OutOfMemory { rack_frames, rack_free, .. } => (rack_frames, rack_free),
            _ => (0, 0),
        };
        AllocError::RackFull { bytes, rack: self.connection.rack, frames, free }
    }

    fn reserve_owned(
        &mut self,
        addr: GlobalAddr,
        take: impl FnOnce(&mut Owned, GlobalAddr) -> Result<usize, AccessError>,
    ) -> Result<Reservation, AllocError> {
        // Another thread finds no object from here on.
        let cell = take(&mut lock(&self.connection.owned), addr)?;
        let reservation = self.reservation_of(addr);
        let mut owned = lock(&self.connection.owned);
        if reservation.is_ok() {
            // The record notes the object now. Armed records are resolved by their link, so an
            // object that one names must be in no array.
            owned.cells.give_back(&self.connection.file, cell);
        } else {
            owned.held.insert(addr.raw(), cell);
        }
        reservation
    }

    /// Fails unless the address is the start of a fixed object, free or in use, in a page of this
    /// rack.
    pub(crate) fn check_fixed(&mut self, addr: GlobalAddr) -> Result<(), AccessError> {
        let target = self.target(addr, 1)?;
        let known = self.translate_here(&target)?;
        match (known.place, known.page_use(self.connection.page_size)) {
            (Place::Local { .. }, PageUse::Fixed(class))
                if target.offset & (class.bytes() - 1) == 0 =>
            {
                Ok(())
            }
            _ => Err(AccessError::NotFixed(addr)),
        }
    }

    /// Translates like [`translate`](Self::translate) for reading. What was remembered counts only
    /// while the page is still in its frame: the page may have been freed and used anew.
    pub(crate) fn translate_here(&mut self, target: &Target) -> Result<Translation, AccessError> {
        let known = self.translate(target, AccessIntent::Read)?;
        if self.is_there(&known) {
            return Ok(known);
        }
        self.forget(target.page);
        self.translate(target, AccessIntent::Read)
    }
}
