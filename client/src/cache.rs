//! Allocation from the thread's magazines in the client file.
//!
//! On its way between the daemon and the program an object is noted in exactly one array of the
//! thread's slot, or for an instant in two; the daemon counts it once when it reclaims a client.
//! Each step is one store, so a kill between two steps loses nothing. An object's mark states that
//! the program has it before its note is removed: docs/design/marks.md.

use rackpool_model::{FrameWord, GlobalAddr, SizeClass};
use rackpool_ring::client_file::RingKind;
use rackpool_ring::magazines::capacity;
use rackpool_ring::objects;
use rackpool_ring::reservation::ReservationRecord;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::marks::Mark;
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::Outcome;
use crate::deadline::Retries;
use crate::thread::Thread;
use crate::translation::{Place, Translation};
use crate::{AllocError, DaemonError, OutOfMemory};

/// Takes the object out of a cell. If `reservation` is given, notes the object there first.
fn take(cell: &AtomicU64, reservation: Option<&ReservationRecord>) -> u64 {
    let value = cell.load(Ordering::Relaxed);
    if let Some(record) = reservation.filter(|_| value != 0) {
        record.hold(value);
    }
    objects::take(cell)
}

impl Thread {
    /// Allocates an object of at least `bytes` bytes.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        self.alloc_noting(bytes, None)
    }

    /// Allocates an object and, if `record` is given, notes it in that reservation record.
    #[inline]
    pub(crate) fn alloc_noting(
        &mut self,
        bytes: u64,
        record: Option<u8>,
    ) -> Result<GlobalAddr, AllocError> {
        match self.take(SizeClass::index_for(bytes), record) {
            Some(object) => Ok(object),
            None => self.alloc_anywhere(bytes, record),
        }
    }

    /// Pops the last object of a magazine and marks it as the program's. Returns `None` if the
    /// magazine is empty, or if the daemon has cleared its last note.
    #[inline]
    fn take(&mut self, class: usize, record: Option<u8>) -> Option<GlobalAddr> {
        let last = GlobalAddr::from_raw(self.magazines.last(class));
        if !last.is_null() && !self.window.hand_out(last) {
            // Without the daemon the page of an object that an ended thread has left is not known.
            if record.is_none() && self.failover().is_some() {
                return None;
            }
            self.hand_out(last);
        }
        let reservation = record.and_then(|record| self.record(record));
        self.magazines.take(class, reservation).map(GlobalAddr::from_raw)
    }

    /// Marks an object as the program's whose page the window does not know. Does nothing for an
    /// object of another rack, which has no mark here.
    #[cold]
    fn hand_out(&mut self, addr: GlobalAddr) {
        let Ok(target) = self.target(addr, 1) else { return };
        let retries = Retries::within(self.connection.request_timeout());
        // If the page cannot be translated it is lost or moving: marks stay behind when a page
        // moves.
        while let Ok(translation) = self.translate(&target, AccessIntent::Read) {
            let (Place::Local { frame, word }, PageUse::Slab(class)) =
                (translation.place, translation.page_use(self.connection.page_size))
            else {
                return;
            };
            if self.with_mark(addr, FrameWord { frame, word }, class, Mark::hand_out).is_some() {
                return;
            }
            self.forget(target.page);
            if !retries.pause() {
                return;
            }
        }
    }

    /// The slow path of an allocation: the magazine is empty, or the size has no magazine.
    #[cold]
    fn alloc_anywhere(&mut self, bytes: u64, record: Option<u8>) -> Result<GlobalAddr, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        if record.is_none()
            && let Some(other) = self.failover()
        {
            return self.siblings[other].alloc(bytes);
        }
        let class = SizeClass::for_bytes(bytes, self.connection.page_size);
        let Some(class) = class.filter(|class| capacity(usize::from(class.index())) > 0) else {
            return self.alloc_uncached(bytes, record);
        };
        loop {
            while self.magazines.count(usize::from(class.index())) > 0 {
                // `take` refuses what a daemon that is away would have to find.
                if record.is_none()
                    && let Some(other) = self.failover()
                {
                    return self.siblings[other].alloc(bytes);
                }
                if let Some(object) = self.take(usize::from(class.index()), record) {
                    return Ok(object);
                }
            }
            self.fill_magazine(class)?;
        }
    }

    fn alloc_uncached(&mut self, bytes: u64, record: Option<u8>) -> Result<GlobalAddr, AllocError> {
        self.refill(bytes, 1)?;
        let reservation = record.and_then(|record| self.record(record));
        let mut objects = self.slot().inbox.iter().map(|cell| take(cell, reservation));
        let object = objects.find(|object| *object != 0);
        Ok(GlobalAddr::from_raw(object.ok_or(DaemonError::Protocol)?))
    }

    #[cold]
    fn fill_magazine(&mut self, class: SizeClass) -> Result<(), AllocError> {
        let wanted = capacity(usize::from(class.index())).div_ceil(2);
        self.refill(class.bytes(), wanted as u64)?;
        self.learn_inbox();
        if self.magazines.fill(usize::from(class.index())) == 0 {
            return Err(DaemonError::Protocol.into());
        }
        Ok(())
    }

    /// Translates the pages of the objects in the inbox again, except those known to be in this
    /// rack. A stale translation of a page that has come to this rack since would hide the marks of
    /// its objects.
    fn learn_inbox(&mut self) {
        let mut last = None;
        for index in 0..self.slot().inbox.len() {
            let addr = GlobalAddr::from_raw(self.slot().inbox[index].load(Ordering::Relaxed));
            let Ok(target) = self.target(addr, 1) else { continue };
            if addr.is_null() || last.replace(target.page) == Some(target.page) {
                continue;
            }
            let is_here = |known: &Translation| {
                matches!(known.place, Place::Local { .. }) && self.is_there(known)
            };
            if !self.known(target.page).as_ref().is_some_and(is_here) {
                self.forget(target.page);
                // A failure is harmless: the page is translated again when one of its objects is
                // handed out.
                let _ = self.translate(&target, AccessIntent::Read);
            }
        }
    }

    /// Requests objects. The inbox is emptied first, so that it holds only objects of this request
    /// afterwards.
    pub(crate) fn ask_for_objects(
        &mut self,
        request: RackRequest,
    ) -> Result<RackAnswer, DaemonError> {
        let overdue = self.connection.overdue();
        loop {
            self.clear_inbox()?;
            let outcome =
                self.calls.ask_once(&self.connection, request, RingKind::Rack, &overdue)?;
            if let Outcome::Answered(answer) = outcome {
                return Ok(answer);
            }
        }
    }

    /// Refills the inbox with 1 to `count` objects of `bytes` bytes.
    fn refill(&mut self, bytes: u64, count: u64) -> Result<(), AllocError> {
        let request = RackRequest::Refill { bytes, count };
        let mut answer = self.ask_for_objects(request)?;
        if matches!(answer, RackAnswer::OutOfMemory { .. }) && self.free_memory()? {
            answer = self.ask_for_objects(request)?;
        }
        match answer {
            RackAnswer::Done(count) if count > 0 => Ok(()),
            RackAnswer::TooLarge { most } => Err(AllocError::TooLarge { bytes, most }),
            RackAnswer::OutOfMemory {
                rack_frames,
                rack_free,
                asked,
                other_frames,
                other_free,
                unreachable,
            } => {
                let frames = self.connection.page_size.pages_for(bytes);
                let rack = self.connection.rack;
                Err(AllocError::OutOfMemory(OutOfMemory {
                    bytes,
                    frames,
                    rack,
                    rack_frames,
                    rack_free,
                    asked,
                    other_frames,
                    other_free,
                    unreachable,
                }))
            }
            _ => Err(DaemonError::Protocol.into()),
        }
    }
}
