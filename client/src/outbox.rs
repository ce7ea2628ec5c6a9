//! Returning objects to the daemon through the thread's outbox in the client file.

use rackpool_model::GlobalAddr;
use rackpool_ring::client_file::{EXCHANGE, MAGAZINE_CLASSES, RingKind};
use rackpool_ring::objects;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::connection::{DaemonLink, lock};
use crate::thread::{Thread, access_error};
use crate::{AccessError, DaemonError, FreeError};

/// Number of objects of other racks that are returned together.
const REMOTE_BATCH: u8 = 32;
/// Count of a full outbox.
#[expect(clippy::cast_possible_truncation, reason = "64")]
const FULL: u8 = EXCHANGE as u8;

/// Returns true if objects stay in the outbox because a rack or the metadata server is unreachable.
const fn is_away(error: &AccessError) -> bool {
    matches!(
        error,
        AccessError::RackUnavailable(_) | AccessError::Daemon(DaemonError::MetadataUnreachable)
    )
}

impl Thread {
    /// Returns the objects that are in the inbox: those of an earlier refill that this thread
    /// abandoned or whose daemon died, and those that an earlier thread left in this slot. They may
    /// have any size.
    pub(crate) fn clear_inbox(&mut self) -> Result<(), DaemonError> {
        self.check_exchanges()?;
        if self.first_left_over().is_none() {
            return Ok(());
        }
        // A daemon may have died between noting an object and setting its bit. The next daemon
        // clears such notes before it serves this client; until then they must stay where they are.
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

    /// Fails while the daemon may still use this thread's inbox and outbox for an abandoned call.
    pub(crate) fn check_exchanges(&mut self) -> Result<(), DaemonError> {
        if self.calls.settle_exchanges(&self.connection) {
            return Ok(());
        }
        self.connection.check_link()?;
        Err(DaemonError::Unavailable)
    }

    /// Notes an object in the outbox. Flushes the outbox first if it is full.
    pub(crate) fn put_into_outbox(&mut self, object: u64) -> Result<(), DaemonError> {
        if self.outbox == FULL {
            self.flush_outbox_if_possible()?;
        }
        let room = self.slot().outbox.get(usize::from(self.outbox));
        room.ok_or(DaemonError::Unavailable)?.store(object, Ordering::Release);
        self.outbox += 1;
        Ok(())
    }

    /// Returns the objects of a magazine above the first `keep` to the daemon.
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

    /// Notes an object in the outbox and clears the reservation record, or the owned cell, that
    /// names it. Flushes the outbox at once, or when it holds a batch.
    pub(crate) fn give_back(
        &mut self,
        addr: GlobalAddr,
        at_once: bool,
        record: Option<u8>,
    ) -> Result<(), FreeError> {
        let access = |error: DaemonError| FreeError::Access(error.into());
        self.check_exchanges().map_err(access)?;
        // An object that is returned at once must be alone in the outbox: then the answer is about
        // it.
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
        lock(&self.connection.owned).disown(&self.connection.file, addr);
        if !at_once {
            return Ok(());
        }
        match self.flush_outbox() {
            Ok(refused) if refused > 0 && alone => Err(FreeError::NotAllocated(addr)),
            // The refused object may be one that waited for its rack; that is logged.
            Ok(_) => Ok(()),
            // The object stays in the outbox. It is returned with a later one, or when this client
            // ends.
            Err(error) if is_away(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Flushes the outbox. Objects of unreachable racks stay in it without an error.
    fn flush_outbox_if_possible(&mut self) -> Result<(), DaemonError> {
        match self.flush_outbox() {
            Err(AccessError::Daemon(error)) if error != DaemonError::MetadataUnreachable => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Flushes the outbox and returns how many of its objects were not allocated. After an error
    /// for an unreachable rack, the objects of that rack stay in the outbox.
    fn flush_outbox(&mut self) -> Result<u64, AccessError> {
        if self.outbox == 0 {
            return Ok(0);
        }
        self.check_exchanges()?;
        match self.calls.ask(&self.connection, RackRequest::Release, RingKind::Rack)? {
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

    /// Returns all objects that the thread holds for reuse. Returns true if there were any.
    pub(crate) fn flush_everything(&mut self) -> Result<bool, DaemonError> {
        let any = self.outbox > 0 || !self.magazines.is_empty();
        self.flush_outbox_if_possible()?;
        for class in 0..MAGAZINE_CLASSES {
            self.drain_magazine(class, 0)?;
        }
        Ok(any)
    }

    /// Returns all objects if a daemon serves the client. What remains is returned by the next
    /// owner of the slot, or when the client ends.
    pub(crate) fn give_back_everything(&mut self) {
        self.calls.end();
        if self.connection.link() == DaemonLink::Up && self.clear_inbox().is_ok() {
            let _ = self.flush_everything();
        }
    }
}
