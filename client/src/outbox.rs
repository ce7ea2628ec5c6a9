//! Giving objects back to the daemon, through the thread's outbox in the client file.

use rackpool_model::{GlobalAddr, SizeClass};
use rackpool_ring::client_file::{EXCHANGE, MAGAZINE_CLASSES, Route};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::connection::Link;
use crate::thread::{Thread, access_error};
use crate::{AccessError, DaemonError, FreeError};

/// Objects of other racks that are given back together.
const REMOTE_BATCH: u8 = 32;
/// An outbox without room.
#[expect(clippy::cast_possible_truncation, reason = "64")]
const FULL: u8 = EXCHANGE as u8;

/// Moves the objects of an array to its front; returns how many there are. An object stands in two
/// places for an instant, and never in none.
fn close_ranks(cells: &[AtomicU64]) -> u8 {
    let mut count = 0_u8;
    for (index, cell) in cells.iter().enumerate() {
        let object = cell.load(Ordering::Relaxed);
        if object != 0 {
            if usize::from(count) != index {
                cells[usize::from(count)].store(object, Ordering::Release);
                cell.store(0, Ordering::Release);
            }
            count += 1;
        }
    }
    count
}

/// Whether objects stay in the outbox because a rack or the metadata server is away.
const fn is_away(error: &AccessError) -> bool {
    matches!(
        error,
        AccessError::RackUnavailable(_) | AccessError::Daemon(DaemonError::MetadataUnreachable)
    )
}

impl Thread {
    /// Gives back what stands between the daemon and the cache: what an earlier request brought
    /// after this thread had given it up, or a daemon that died, or what an earlier thread left in
    /// this slot. It may be of any size.
    pub(crate) fn clear_inbox(&mut self) -> Result<(), DaemonError> {
        self.check_exchanges()?;
        if self.first_left_over()?.is_none() {
            return Ok(());
        }
        // A daemon may have died between the note and the handing out. The next one strikes such
        // notes out before it serves this client; they must not be moved under its eyes.
        self.connection.wait_for_daemon(self.connection.overdue())?;
        while let Some(object) = self.first_left_over()? {
            self.put_into_outbox(object)?;
            let slot = self.slot()?;
            for cell in &slot.inbox {
                if cell.load(Ordering::Relaxed) == object {
                    cell.store(0, Ordering::Release);
                }
            }
        }
        self.flush_outbox_if_possible()
    }

    fn first_left_over(&self) -> Result<Option<u64>, DaemonError> {
        let slot = self.slot()?;
        let mut cells = slot.inbox.iter();
        Ok(cells.find_map(|cell| Some(cell.load(Ordering::Relaxed)).filter(|object| *object != 0)))
    }

    /// An error while the daemon may still be busy with this thread's inbox and outbox, for a call
    /// that was given up.
    fn check_exchanges(&mut self) -> Result<(), DaemonError> {
        if self.calls.settle_exchanges(&self.connection) {
            return Ok(());
        }
        self.connection.check_link()?;
        Err(DaemonError::Unavailable)
    }

    /// Notes an object for the daemon, making room first if there is none.
    fn put_into_outbox(&mut self, object: u64) -> Result<(), DaemonError> {
        if self.magazines.outbox == FULL {
            self.flush_outbox_if_possible()?;
        }
        let room = self.slot()?.outbox.get(usize::from(self.magazines.outbox));
        room.ok_or(DaemonError::Unavailable)?.store(object, Ordering::Release);
        self.magazines.outbox += 1;
        Ok(())
    }

    /// Gives the objects of a magazine from the top down to `keep` back to the daemon.
    #[cold]
    pub(crate) fn drain_magazine(&mut self, class: SizeClass, keep: u8) -> Result<(), DaemonError> {
        self.check_exchanges()?;
        let index = usize::from(class.index());
        while self.magazines.counts[index] > keep {
            let top = self.magazines.counts[index] - 1;
            let object = self.slot()?.magazines[index][usize::from(top)].load(Ordering::Relaxed);
            if object != 0 {
                self.put_into_outbox(object)?;
                self.slot()?.magazines[index][usize::from(top)].store(0, Ordering::Release);
            }
            self.magazines.counts[index] = top;
        }
        self.flush_outbox_if_possible()
    }

    /// Puts an object into the outbox, which is emptied at once or when enough are there.
    pub(crate) fn give_back(&mut self, addr: GlobalAddr, at_once: bool) -> Result<(), FreeError> {
        let access = |error: DaemonError| FreeError::Access(error.into());
        self.check_exchanges().map_err(access)?;
        // Whoever wants to know at once travels alone: the answer is about this object.
        if self.magazines.outbox >= if at_once { 1 } else { REMOTE_BATCH } {
            match self.flush_outbox() {
                Err(error) if is_away(&error) && self.magazines.outbox < FULL => {}
                other => drop(other?),
            }
        }
        let slot = self.slot().map_err(access)?;
        let waiting = &slot.outbox[..usize::from(self.magazines.outbox)];
        if waiting.iter().any(|cell| cell.load(Ordering::Relaxed) == addr.raw()) {
            return Err(FreeError::NotAllocated(addr));
        }
        let alone = waiting.is_empty();
        self.put_into_outbox(addr.raw()).map_err(access)?;
        if !at_once {
            return Ok(());
        }
        match self.flush_outbox() {
            Ok(refused) if refused > 0 && alone => Err(FreeError::NotAllocated(addr)),
            // One of those that had to wait for their rack may be the refused one: it is logged.
            Ok(_) => Ok(()),
            // It stands in the outbox, and goes home with a later one, or when this client goes.
            Err(error) if is_away(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Empties the outbox but for objects whose rack is away.
    fn flush_outbox_if_possible(&mut self) -> Result<(), DaemonError> {
        match self.flush_outbox() {
            Err(AccessError::Daemon(error)) if error != DaemonError::MetadataUnreachable => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Empties the outbox; returns how many of its objects were not allocated. When a rack is away
    /// its objects stay.
    fn flush_outbox(&mut self) -> Result<u64, AccessError> {
        if self.magazines.outbox == 0 {
            return Ok(0);
        }
        self.check_exchanges()?;
        match self.calls.ask(&self.connection, RackRequest::Release, Route::Rack)? {
            RackAnswer::Done(refused) => {
                self.magazines.outbox = 0;
                if refused > 0 {
                    tracing::warn!("{refused} objects were freed twice");
                }
                Ok(refused)
            }
            refusal => {
                self.magazines.outbox = close_ranks(&self.slot()?.outbox);
                Err(access_error(refusal, GlobalAddr::NULL))
            }
        }
    }

    /// Gives everything back that the thread holds; whether there was anything.
    pub(crate) fn flush_everything(&mut self) -> Result<bool, DaemonError> {
        let any = self.magazines.outbox > 0 || self.magazines.counts.iter().any(|count| *count > 0);
        self.flush_outbox_if_possible()?;
        for index in (0_u8..).take(MAGAZINE_CLASSES) {
            if let Some(class) = SizeClass::from_index(index, self.connection.page_size) {
                self.drain_magazine(class, 0)?;
            }
        }
        Ok(any)
    }

    /// Gives everything back as far as the daemon can be reached; the rest goes back with the next
    /// owner of the slot, or when the client goes.
    pub(crate) fn give_back_everything(&mut self) {
        self.calls.end();
        if self.connection.link() == Link::Up && self.clear_inbox().is_ok() {
            let _ = self.flush_everything();
        }
    }
}
