use std::os::fd::OwnedFd;

use rackpool_sync::eventfd::signal;
use rackpool_sync::{Awaited, Doorbell, EventCount, SleepWord};

use super::link::{SharedLink, Word};
use crate::FabricError;

/// Publishes this side's sleep to the peer, and wakes the peer from its own.
pub(super) struct Sleep {
    event_count: EventCount,
    doorbell: Doorbell,
    peer_wake: OwnedFd,
}

impl Sleep {
    pub(super) fn new(peer_wake: OwnedFd) -> Self {
        Self { event_count: EventCount::default(), doorbell: Doorbell::default(), peer_wake }
    }

    /// Publishes that this side is about to sleep. The caller must then check for events.
    pub(super) fn arm(&mut self, link: &SharedLink, wants_room: bool) -> Result<(), FabricError> {
        link.store(Word::Sleep, self.event_count.begin(wants_room).raw())?;
        link.fence();
        Ok(())
    }

    /// Publishes that this side is awake.
    pub(super) fn disarm(&self, link: &SharedLink) -> Result<(), FabricError> {
        link.store(Word::Sleep, self.event_count.end().raw())
    }

    /// Wakes the peer if it sleeps and awaits the kind of event that was just stored in the link.
    pub(super) fn tell(&mut self, link: &SharedLink, awaited: Awaited) -> Result<(), FabricError> {
        link.fence();
        let word = SleepWord::from_raw(link.peer(Word::Sleep)?);
        if self.doorbell.must_ring(word, awaited) {
            self.wake();
        }
        Ok(())
    }

    /// Wakes the peer unconditionally.
    pub(super) fn wake(&self) {
        signal(&self.peer_wake);
    }
}
