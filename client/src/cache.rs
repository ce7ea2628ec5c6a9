//! Allocation from the thread's magazines in the client file.
//!
//! Wherever an object is between the daemon and the program it stands in exactly one array of the
//! thread's slot, or for an instant in two; the daemon counts it once when it cleans up after a
//! client. So each step here is one store, and dying between two steps loses nothing.

use rackpool_model::{GlobalAddr, SizeClass};
use rackpool_ring::client_file::Route;
use rackpool_ring::draft::DraftRecord;
use rackpool_ring::magazines::capacity;
use rackpool_ring::objects;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::Outcome;
use crate::thread::Thread;
use crate::{AllocError, DaemonError};

/// Takes what stands in a cell; a draft is noted in its record before.
fn take(cell: &AtomicU64, draft: Option<&DraftRecord>) -> u64 {
    let value = cell.load(Ordering::Relaxed);
    if let Some(record) = draft.filter(|_| value != 0) {
        record.hold(value);
    }
    objects::take(cell)
}

impl Thread {
    /// Hands out an object of at least `bytes` bytes.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        self.alloc_noting(bytes, None)
    }

    /// Hands out an object, which stands in the draft record from then on if there is one.
    #[inline]
    pub(crate) fn alloc_noting(
        &mut self,
        bytes: u64,
        record: Option<u8>,
    ) -> Result<GlobalAddr, AllocError> {
        let draft = record.and_then(|record| self.record(record));
        match self.magazines.take(SizeClass::index_for(bytes), draft) {
            Some(object) => Ok(GlobalAddr::from_raw(object)),
            None => self.alloc_anywhere(bytes, record),
        }
    }

    /// The same when the magazine has none ready, or there is no magazine for that size.
    #[cold]
    fn alloc_anywhere(&mut self, bytes: u64, record: Option<u8>) -> Result<GlobalAddr, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let class = SizeClass::for_bytes(bytes, self.connection.page_size);
        let Some(class) = class.filter(|class| capacity(usize::from(class.index())) > 0) else {
            return self.alloc_uncached(bytes, record);
        };
        loop {
            while self.magazines.count(usize::from(class.index())) > 0 {
                let draft = record.and_then(|record| self.record(record));
                if let Some(object) = self.magazines.take(usize::from(class.index()), draft) {
                    return Ok(GlobalAddr::from_raw(object));
                }
            }
            self.fill_magazine(class)?;
        }
    }

    fn alloc_uncached(&mut self, bytes: u64, record: Option<u8>) -> Result<GlobalAddr, AllocError> {
        self.refill(bytes, 1)?;
        let draft = record.and_then(|record| self.record(record));
        let mut objects = self.slot().inbox.iter().map(|cell| take(cell, draft));
        let object = objects.find(|object| *object != 0);
        Ok(GlobalAddr::from_raw(object.ok_or(DaemonError::Protocol)?))
    }

    #[cold]
    fn fill_magazine(&mut self, class: SizeClass) -> Result<(), AllocError> {
        let wanted = capacity(usize::from(class.index())).div_ceil(2);
        self.refill(class.bytes(), wanted as u64)?;
        if self.magazines.fill(usize::from(class.index())) == 0 {
            return Err(DaemonError::Protocol.into());
        }
        Ok(())
    }

    /// Asks for objects in the inbox, which is empty before: what lies there afterwards is of this
    /// size.
    fn ask_for_objects(&mut self, bytes: u64, count: u64) -> Result<RackAnswer, DaemonError> {
        let request = RackRequest::Refill { bytes, count };
        let overdue = self.connection.overdue();
        loop {
            self.clear_inbox()?;
            let outcome = self.calls.ask_once(&self.connection, request, Route::Rack, &overdue)?;
            if let Outcome::Answered(answer) = outcome {
                return Ok(answer);
            }
        }
    }

    /// Gets 1 to `count` objects into the inbox.
    fn refill(&mut self, bytes: u64, count: u64) -> Result<(), AllocError> {
        let mut answer = self.ask_for_objects(bytes, count)?;
        if matches!(answer, RackAnswer::OutOfMemory { .. }) && self.flush_everything()? {
            answer = self.ask_for_objects(bytes, count)?;
        }
        match answer {
            RackAnswer::Done(count) if count > 0 => Ok(()),
            RackAnswer::Invalid => Err(AllocError::TooLarge(bytes)),
            RackAnswer::OutOfMemory { rack_frames, rack_free, racks, pool_frames, pool_free } => {
                Err(AllocError::OutOfMemory {
                    bytes,
                    rack_frames,
                    rack_free,
                    racks,
                    pool_frames,
                    pool_free,
                })
            }
            _ => Err(DaemonError::Protocol.into()),
        }
    }
}
