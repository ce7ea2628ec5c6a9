//! Locks, within a rack's machine.

use rackpool_model::{ClientId, LockClaim, PageId};

use super::{Queued, RackAction, RackEvent, RackMachine, RackMemory};
use crate::Time;
use crate::lease::EndpointToken;
use crate::lock::{LockAction, LockEvent};
use crate::planted_bugs::Bugs;

impl<B: Bugs> RackMachine<B> {
    pub(super) fn tell_locks(&mut self, now: Time, memory: &impl RackMemory, event: LockEvent) {
        self.remote_locks.handle(now, memory, &event);
        self.locks.handle(now, memory, event);
        // The times of held locks change without an action.
        self.is_due_stale = true;
        self.drain_locks();
    }

    /// Does what is due for locks. Returns true if there was anything.
    pub(super) fn look_at_locks(&mut self, now: Time, memory: &impl RackMemory) -> bool {
        let here = self.locks.deadline().is_some_and(|at| at <= now);
        let remote = self.remote_locks.deadline().is_some_and(|at| at <= now);
        let any = here && self.locks.look(now, memory);
        let any = (remote && self.remote_locks.look(now, memory)) || any;
        self.is_due_stale |= here || remote;
        self.drain_locks();
        any
    }

    /// Ends locks under which no access is under way any more. Returns true if there were any.
    pub(super) fn end_locks(&mut self, now: Time, memory: &impl RackMemory) -> bool {
        let any = self.locks.is_losing() && self.locks.end_lost(now, memory);
        let any = (self.remote_locks.is_ending() && self.remote_locks.end(now, memory)) || any;
        self.drain_locks();
        any
    }

    fn drain_locks(&mut self) {
        while let Some(action) = self.locks.poll().or_else(|| self.remote_locks.poll()) {
            self.is_due_stale = true;
            match action {
                LockAction::Queue(event) => {
                    self.queue.push_back(Queued::Rack(RackEvent::Lock(event)));
                }
                LockAction::Barrier => self.actions.push_back(RackAction::Barrier),
                action => self.actions.push_back(RackAction::Lock(action)),
            }
        }
    }

    /// Returns false if the thread holds a lock of the page that is valid for another endpoint than
    /// this one, over which an operation on the page would go: the lock is being lost.
    #[must_use]
    pub fn may_operate(
        &self,
        client: ClientId,
        thread: u16,
        page: PageId,
        endpoint: EndpointToken,
    ) -> bool {
        self.remote_locks.is_empty()
            || self.remote_locks.endpoints(client, thread, page).all(|over| over == endpoint)
    }

    /// Returns the lines that another rack's client has locked for writing over this endpoint,
    /// under its rack's number of the lock.
    #[must_use]
    pub fn remote_writer(&self, endpoint: EndpointToken, number: u64) -> Option<LockClaim> {
        self.locks.writer(endpoint, number)
    }

    /// Returns true if the client holds or requests locks of other racks' lines. What is in its
    /// line caches is needed until they have ended.
    #[must_use]
    pub fn has_remote_locks(&self, client: ClientId) -> bool {
        self.remote_locks.has_any_of(client)
    }

    /// Returns the number of locks of this rack's pages that are held or requested, except those
    /// that clients have taken without their daemon.
    #[must_use]
    pub fn lock_count(&self) -> usize {
        self.locks.count()
    }
}
