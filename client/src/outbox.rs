//! Giving objects back to the daemon, through the thread's outbox in the client file.

use rackpool_model::GlobalAddr;
use rackpool_ring::client_file::{EXCHANGE, MAGAZINE_CLASSES, Route};
use rackpool_ring::objects;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::connection::DaemonLink;
use crate::thread::{Thread, access_error};
use crate::{AccessError, DaemonError, FreeError};

/// Objects of other racks that are given back together.
const REMOTE_BATCH: u8 = 32;
/// An outbox without room.
#[expect(clippy::cast_possible_truncation, reason = "64")]
const FULL: u8 = EXCHANGE as u8;

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
        if self.first_left_over().is_none() {
            return Ok(());
        }
        // A daemon may have died between the note and the handing out. The next one strikes such
        // notes out before it serves this client; they must not be moved under its eyes.
        self.connection.wait_for_daemon(&self.connection.overdue())?;
        while let Some(object) = self.first_left_over() {
            self.put_into_outbox(object)?;
            let slot = self.slot();
            objects::strike(&slot.inbox, |found| found == object);
        }
        self.flush_outbox_if_possible()
    }

    fn first_left_over(&self) -> Option<u64> {
        let mut cells = self.slot().inbox.iter();
        cells.find_map(|cell| Some(cell.load(Ordering::Relaxed)).filter(|object| *object != 0))
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
        if self.outbox == FULL {
            self.flush_outbox_if_possible()?;
        }
        let room = self.slot().outbox.get(usize::from(self.outbox));
        room.ok_or(DaemonError::Unavailable)?.store(object, Ordering::Release);
        self.outbox += 1;
        Ok(())
    }

    /// Gives the objects of a magazine from the top down to `keep` back to the daemon.
    #[cold]
    pub(crate) fn drain_magazine(&mut self, class: usize, keep: usize) -> Result<(), DaemonError> {
        self.check_exchanges()?;
        while self.magazines.count(class) > keep {
            let object = self.magazines.last(class);
            if object != 0 {
                self.put_into_outbox(object)?;
            }
            let _in_the_outbox = self.magazines.take(class, None);
        }
        self.flush_outbox_if_possible()
    }

    /// Puts an object into the outbox, which is emptied at once or when enough are there.
    /// `record` is the reservation record that speaks of it.
    pub(crate) fn give_back(
        &mut self,
        addr: GlobalAddr,
        at_once: bool,
        record: Option<u8>,
    ) -> Result<(), FreeError> {
        let access = |error: DaemonError| FreeError::Access(error.into());
        self.check_exchanges().map_err(access)?;
        // Whoever wants to know at once travels alone: the answer is about this object.
        if self.outbox >= if at_once { 1 } else { REMOTE_BATCH } {
            match self.flush_outbox() {
                Err(error) if is_away(&error) && self.outbox < FULL => {}
                other => drop(other?),
            }
        }
        let slot = self.slot();
        let waiting = &slot.outbox[..usize::from(self.outbox)];
        if waiting.iter().any(|cell| cell.load(Ordering::Relaxed) == addr.raw()) {
            return Err(FreeError::NotAllocated(addr));
        }
        let alone = waiting.is_empty();
        self.put_into_outbox(addr.raw()).map_err(access)?;
        if let Some(record) = record {
            self.end_record(record);
        }
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
        if self.outbox == 0 {
            return Ok(0);
        }
        self.check_exchanges()?;
        match self.calls.ask(&self.connection, RackRequest::Release, Route::Rack)? {
            RackAnswer::Done(refused) => {
                self.outbox = 0;
                if refused > 0 {
                    tracing::warn!("{refused} objects were freed twice");
                }
                Ok(refused)
            }
            refusal => {
                let left = objects::close_ranks(&self.slot().outbox);
                self.outbox = u8::try_from(left).unwrap_or(FULL);
                Err(access_error(refusal, GlobalAddr::NULL))
            }
        }
    }

    /// Gives everything back that the thread holds; whether there was anything.
    pub(crate) fn flush_everything(&mut self) -> Result<bool, DaemonError> {
        let any = self.outbox > 0 || !self.magazines.is_empty();
        self.flush_outbox_if_possible()?;
        for class in 0..MAGAZINE_CLASSES {
            self.drain_magazine(class, 0)?;
        }
        Ok(any)
    }

    /// Gives everything back as far as the daemon can be reached; the rest goes back with the next
    /// owner of the slot, or when the client goes.
    pub(crate) fn give_back_everything(&mut self) {
        self.calls.end();
        if self.connection.link() == DaemonLink::Up && self.clear_inbox().is_ok() {
            let _ = self.flush_everything();
        }
    }
}
