//! Allocation from the thread's magazines in the client file.
//!
//! Wherever an object is between the daemon and the program it stands in exactly one array of the
//! thread's slot, or for an instant in two; the daemon counts it once when it cleans up after a
//! client. So each step here is one store, and dying between two steps loses nothing.

use rackpool_model::{GlobalAddr, SizeClass};
use rackpool_ring::client_file::{MAGAZINE, MAGAZINE_CLASSES, Route, ThreadSlot};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::Outcome;
use crate::thread::Thread;
use crate::{AllocError, DaemonError};

/// Bytes that a magazine may hold: of large objects it holds fewer.
const MAGAZINE_BYTES: u64 = 1 << 20;

/// How far the thread's arrays are in use. The truth is in the client file; a cell in use may have
/// been emptied by the daemon.
#[derive(Debug)]
pub(crate) struct Magazines {
    pub(crate) counts: [u8; MAGAZINE_CLASSES],
    pub(crate) outbox: u8,
}

impl Magazines {
    /// Counts what stands in the slot: nothing, or what a thread left there that ended while the
    /// daemon was away.
    pub(crate) fn of(slot: &ThreadSlot) -> Self {
        let mut counts = [0; MAGAZINE_CLASSES];
        for (count, magazine) in counts.iter_mut().zip(&slot.magazines) {
            *count = extent(magazine);
        }
        Self { counts, outbox: extent(&slot.outbox) }
    }
}

/// Cells up to the last object. Objects are not moved to fill gaps: a new daemon that looks for
/// notes of free objects just now could miss one.
fn extent(cells: &[AtomicU64]) -> u8 {
    let last = cells.iter().rposition(|cell| cell.load(Ordering::Relaxed) != 0);
    last.and_then(|last| u8::try_from(last + 1).ok()).unwrap_or(0)
}

/// How many objects of a class a magazine holds; 0 for classes that are not cached.
pub(crate) fn capacity(class: SizeClass) -> u8 {
    if usize::from(class.index()) >= MAGAZINE_CLASSES {
        return 0;
    }
    let by_bytes = (MAGAZINE_BYTES >> class.bits()).min(MAGAZINE as u64);
    u8::try_from(by_bytes).unwrap_or(0)
}

fn take(cell: &AtomicU64) -> u64 {
    let value = cell.load(Ordering::Relaxed);
    cell.store(0, Ordering::Release);
    value
}

impl Thread {
    /// Hands out an object of at least `bytes` bytes.
    pub(crate) fn alloc(&mut self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let class = SizeClass::for_bytes(bytes, self.connection.page_size);
        let Some(class) = class.filter(|class| capacity(*class) > 0) else {
            self.refill(bytes, 1)?;
            let object = self.slot()?.inbox.iter().map(take).find(|object| *object != 0);
            return Ok(GlobalAddr::from_raw(object.ok_or(DaemonError::Protocol)?));
        };
        let index = usize::from(class.index());
        loop {
            while let Some(top) = self.magazines.counts[index].checked_sub(1) {
                self.magazines.counts[index] = top;
                let object = take(&self.slot()?.magazines[index][usize::from(top)]);
                // A restarted daemon strikes out what it finds to be free.
                if object != 0 {
                    return Ok(GlobalAddr::from_raw(object));
                }
            }
            self.fill_magazine(class)?;
        }
    }

    #[cold]
    fn fill_magazine(&mut self, class: SizeClass) -> Result<(), AllocError> {
        let wanted = u64::from(capacity(class)).div_ceil(2);
        self.refill(class.bytes(), wanted)?;
        let slot = self.slot()?;
        let magazine = &slot.magazines[usize::from(class.index())];
        let objects = slot.inbox.iter().filter(|cell| cell.load(Ordering::Relaxed) != 0);
        let mut filled = 0;
        for (inbox, cell) in objects.zip(&magazine[..usize::from(capacity(class))]) {
            cell.store(inbox.load(Ordering::Relaxed), Ordering::Release);
            inbox.store(0, Ordering::Release);
            filled += 1;
        }
        self.magazines.counts[usize::from(class.index())] = filled;
        if filled == 0 {
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
            let outcome = self.calls.ask_once(&self.connection, request, Route::Rack, overdue)?;
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
