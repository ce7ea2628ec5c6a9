//! Operations that a page does not allow while it moves. They continue when the swap has ended:
//! here, or at the page's new home.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_model::{Access, PageId};
use rackpool_proto::rack::{PageAccess, RackEvent};
use rackpool_rrpc::RequestId;
use rackpool_wire::lock::LockEnd;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::data_plane::DataPlane;
use crate::data_plane::clients::Caller;
use crate::data_plane::error::Result;
use crate::data_plane::transfers::Within;

/// A writer of a moving page usually waits for a few messages between two daemons. While a writer
/// has waited for less than this, the data plane does not sleep.
const PROMPT: Duration = Duration::from_millis(1);

/// A waiting operation.
#[derive(Clone, Debug)]
pub(in crate::data_plane) enum Work {
    /// A client's translation, for this access.
    Translate(Caller, Access),
    /// A client's write, in this batch.
    Write(Caller, Within, u64),
    Atomic(Caller, RackRequest),
    /// Another rack's request to look a page up, to write, or to unlock; it waits until this time.
    Serve(RequestId, PeerRequest, Instant),
}

impl Work {
    /// Returns the access that another rack's request needs.
    const fn access(request: &PeerRequest) -> Option<Access> {
        match *request {
            PeerRequest::Lookup { access, .. } => Some(access),
            // Adding 0 is a read.
            PeerRequest::FetchAndAdd { delta: 0, .. } => Some(Access::Read),
            PeerRequest::Write { .. }
            | PeerRequest::Unlock { .. }
            | PeerRequest::CompareAndSwap { .. }
            | PeerRequest::FetchAndAdd { .. } => Some(Access::Write),
            _ => None,
        }
    }

    /// Returns true if the operation may change bytes.
    const fn changes(&self) -> bool {
        match self {
            Self::Write(..) | Self::Atomic(..) => true,
            Self::Serve(_, request, _) => !matches!(request, PeerRequest::Lookup { .. }),
            Self::Translate(..) => false,
        }
    }

    /// Returns true if the operation waits only until the page can be read.
    const fn is_reading(&self) -> bool {
        matches!(self, Self::Serve(_, request, _) if matches!(Self::access(request), Some(Access::Read)))
    }

    /// Returns true if the operation is a write, which can be forwarded.
    const fn is_writing(&self) -> bool {
        match self {
            Self::Translate(_, access) => matches!(access, Access::Write),
            Self::Write(..) | Self::Atomic(..) => true,
            Self::Serve(_, request, _) => matches!(Self::access(request), Some(Access::Write)),
        }
    }
}

#[derive(Debug)]
struct Waiter {
    work: Work,
    /// Since when it waits to write a page that moves; `None` if it waits for something else.
    since: Option<Instant>,
    /// The end of its wait.
    until: Instant,
}

impl Waiter {
    fn is_late(&self, now: Instant) -> bool {
        now > self.until
    }
}

/// All waiting operations, by page.
#[derive(Debug, Default)]
pub(in crate::data_plane) struct Waiters {
    all: BTreeMap<PageId, Vec<Waiter>>,
}

impl Waiters {
    pub(in crate::data_plane) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns true if a writer of a moving page has begun to wait recently.
    pub(super) fn has_recent_writer(&self, now: Instant) -> bool {
        let is_recent = |since: Instant| now < since + PROMPT;
        self.all.values().flatten().any(|waiter| waiter.since.is_some_and(is_recent))
    }
}

impl DataPlane {
    /// Queues an operation until the swap of the page has ended.
    pub(in crate::data_plane) fn wait_for_swap(&mut self, page: PageId, work: Work) {
        self.need(page);
        let now = self.now();
        let until = match work {
            Work::Translate(..) | Work::Write(..) | Work::Atomic(..) => now + self.lease,
            Work::Serve(.., until) => until,
        };
        let mut since = None;
        if work.is_writing() {
            self.machine.handle(RackEvent::WriteWanted(page));
            // If no swap concerns the page, it is shared.
            since = Some(now).filter(|_| self.machine.swap().is_busy(page));
        }
        self.swaps.waiters.all.entry(page).or_default().push(Waiter { work, since, until });
    }

    /// Drops waiting requests of other racks that can't be answered any more. They must not be
    /// executed: the other rack may have learned that they were not, and continued.
    pub(in crate::data_plane) fn forget_asks(&mut self, are_meant: impl Fn(RequestId) -> bool) {
        self.forget_exchanges(&are_meant);
        self.swaps.waiters.all.retain(|_, waiters| {
            waiters.retain(|waiter| match waiter.work {
                Work::Serve(ask, ..) => !are_meant(ask),
                _ => true,
            });
            !waiters.is_empty()
        });
    }

    /// Continues operations on pages that do not move any more, or that can be read or written now.
    /// A change that has waited for too long is answered by [`Self::drive_waiters`].
    pub(in crate::data_plane) fn wake_waiters(&mut self) -> Result<()> {
        let mut awake = Vec::new();
        let now = self.now();
        let (slab, machine) = (&self.slab, &self.machine);
        self.swaps.waiters.all.retain(|page, waiters| {
            let moves = machine.is_moving(slab, *page) && !machine.swap().is_lost(*page);
            let [reads, writes] = [Access::Read, Access::Write]
                .map(|access| machine.access(slab, *page, access) != PageAccess::Busy);
            let goes_on = |waiter: &mut Waiter| {
                let goes_on = reads && waiter.work.is_reading();
                let goes_on = !moves || goes_on || writes && waiter.work.is_writing();
                goes_on && !(waiter.work.changes() && waiter.is_late(now))
            };
            awake.extend(waiters.extract_if(.., goes_on).map(|waiter| (*page, waiter)));
            !waiters.is_empty()
        });
        for (page, Waiter { work, since, .. }) in awake {
            self.time_pause(since);
            self.go_on_with(page, work)?;
        }
        Ok(())
    }

    /// Records how long a writer has waited for a page that moves.
    fn time_pause(&self, since: Option<Instant>) {
        if let Some(since) = since {
            let pause = self.now().saturating_duration_since(since);
            self.metrics.swaps.pauses.record(pause);
        }
    }

    fn go_on_with(&mut self, page: PageId, work: Work) -> Result<()> {
        match work {
            Work::Translate(caller, access) => self.translate(caller, page, access),
            Work::Write(caller, within, batch) => self.go_on_writing(caller, within, batch),
            // For a client that has gone it is settled that the operation was not executed.
            Work::Atomic(caller, _) if !self.clients.is_waiting(caller) => Ok(()),
            Work::Atomic(caller, request) => self.forward_atomic(caller, request),
            Work::Serve(ask, request, until) => self.serve_peer_until(ask, request, Some(until)),
        }
    }

    /// Answers operations that have waited long enough.
    pub(in crate::data_plane) fn drive_waiters(&mut self, now: Instant) -> Result<()> {
        let mut late = Vec::new();
        self.swaps.waiters.all.retain(|_, waiters| {
            late.extend(waiters.extract_if(.., |waiter| waiter.is_late(now)));
            !waiters.is_empty()
        });
        let busy = RackAnswer::PageBusy(self.rack.geometry.rack);
        for Waiter { work, since, .. } in late {
            self.time_pause(since);
            match work {
                Work::Translate(caller, _) => self.clients.finish(caller, busy),
                // The client repeats the write: its timeout is longer.
                Work::Write(caller, _, batch) => {
                    self.transfers.forwarding.remove(&caller.client_thread());
                    self.refuse_transfer(caller, batch, RackAnswer::Moved);
                }
                Work::Atomic(caller, _) => self.clients.finish(caller, RackAnswer::Moved),
                // Its bytes are lost, and the next holder is told.
                Work::Serve(ask, PeerRequest::Unlock { number, written, .. }, _) => {
                    let len = written.bytes.len();
                    tracing::error!("{len} B of the holder of a lock are lost: no write in time");
                    self.unlocked_elsewhere(ask, number, LockEnd::Abandoned)?;
                }
                Work::Serve(ask, ..) => self.reply(ask, &PeerReply::Busy)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::ClientId;

    use super::*;

    #[test]
    fn who_wants_to_write_keeps_a_daemon_awake_and_not_for_long() {
        let now = Instant::now();
        let caller = Caller { client: ClientId(1), thread: 0, cell: 0, call: 1 };
        let waiter = |access, since| Waiter {
            work: Work::Translate(caller, access),
            since,
            until: now + 2 * PROMPT,
        };
        let mut waiters = Waiters::default();
        assert!(!waiters.has_recent_writer(now));
        waiters.all.insert(PageId(1), vec![waiter(Access::Read, None)]);
        assert!(!waiters.has_recent_writer(now), "nobody waits to write");
        let both = vec![waiter(Access::Read, None), waiter(Access::Write, Some(now))];
        waiters.all.insert(PageId(2), both);
        assert!(waiters.has_recent_writer(now));
        assert!(!waiters.has_recent_writer(now + PROMPT), "it takes longer than a few messages");
    }
}
