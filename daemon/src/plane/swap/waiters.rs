//! What can't be done while a page moves, and is done when the swap has ended: here, or wherever
//! the page is then.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_model::{Access, ClientId, GlobalAddr, PageId};
use rackpool_rrpc::RequestId;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::plane::DataPlane;
use crate::plane::clients::Caller;
use crate::plane::transfers::Within;

/// Who wants to write a page that moves mostly waits for a few messages between two daemons. For so
/// long a daemon in which somebody does so does not sleep.
const PROMPT: Duration = Duration::from_millis(1);

/// What waits.
#[derive(Clone, Debug)]
pub(in crate::plane) enum Work {
    /// A client wants to know where the page is, to use it like that.
    Translate(Caller, Access),
    /// A client writes, in this batch, or changes 8 bytes.
    Write(Caller, Within, u64),
    Atomic(Caller, RackRequest),
    /// A client frees what stands in its outbox; so many were refused already.
    Release(Caller, u64),
    /// What a gone client had noted goes back.
    GiveBack(ClientId, u16, Vec<GlobalAddr>),
    /// Another rack frees objects, looks a page up, or wants something written in it; for
    /// so long.
    Serve(RequestId, PeerRequest, Instant),
}

impl Work {
    /// What a page is used for that another rack wants; `None`: it only frees.
    const fn access(request: &PeerRequest) -> Option<Access> {
        match *request {
            PeerRequest::Lookup { access, .. } => Some(access),
            PeerRequest::PrefetchLease { .. } => Some(Access::Read),
            // Who adds nothing reads.
            PeerRequest::FetchAndAdd { delta: 0, .. } => Some(Access::Read),
            PeerRequest::Write { .. }
            | PeerRequest::CompareAndSwap { .. }
            | PeerRequest::FetchAndAdd { .. } => Some(Access::Write),
            _ => None,
        }
    }

    /// Whether somebody's bytes may be other ones when it has been done.
    const fn changes(&self) -> bool {
        match self {
            Self::Write(..) | Self::Atomic(..) => true,
            Self::Serve(_, request, _) => {
                !matches!(request, PeerRequest::Lookup { .. } | PeerRequest::PrefetchLease { .. })
            }
            Self::Translate(..) | Self::Release(..) | Self::GiveBack(..) => false,
        }
    }

    /// Whether a page that can be read is all that is waited for.
    const fn is_reading(&self) -> bool {
        matches!(self, Self::Serve(_, request, _) if matches!(Self::access(request), Some(Access::Read)))
    }

    /// Whether somebody waits who wants to write, and can have it done.
    const fn is_writing(&self) -> bool {
        match self {
            Self::Translate(_, access) => matches!(access, Access::Write),
            Self::Write(..) | Self::Atomic(..) => true,
            Self::Serve(_, request, _) => matches!(Self::access(request), Some(Access::Write)),
            Self::Release(..) | Self::GiveBack(..) => false,
        }
    }
}

#[derive(Debug)]
struct Waiter {
    work: Work,
    /// Since when it waits to write a page that moves; `None`: for something else.
    since: Option<Instant>,
    /// `None`: as long as it takes.
    until: Option<Instant>,
}

impl Waiter {
    fn is_late(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now > until)
    }
}

/// All who wait, by page.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    all: BTreeMap<PageId, Vec<Waiter>>,
}

impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether somebody has lately begun to wait who wants to write a page that moves.
    pub(super) fn has_recent_writer(&self, now: Instant) -> bool {
        let is_recent = |since: Instant| now < since + PROMPT;
        self.all.values().flatten().any(|waiter| waiter.since.is_some_and(is_recent))
    }
}

impl DataPlane {
    /// Puts something off until the swap of the page has ended.
    pub(in crate::plane) fn wait_for_swap(&mut self, page: PageId, work: Work) {
        self.sharing.need(page);
        let now = self.now();
        let until = match work {
            Work::Translate(..) | Work::Write(..) | Work::Atomic(..) | Work::Release(..) => {
                Some(now + self.lease)
            }
            Work::Serve(.., until) => Some(until),
            Work::GiveBack(..) => None,
        };
        let mut since = None;
        if work.is_writing() {
            self.want_to_write(page);
            // Otherwise the page is shared.
            since = Some(now).filter(|_| self.swaps.machine.is_busy(page));
        }
        self.swaps.waiters.all.entry(page).or_default().push(Waiter { work, since, until });
    }

    /// The other rack can't be answered any more: what it has asked for is not done, for it may
    /// have heard that it was not, and gone on.
    pub(in crate::plane) fn forget_asks(&mut self, are_meant: impl Fn(RequestId) -> bool) {
        self.swaps.waiters.all.retain(|_, waiters| {
            waiters.retain(|waiter| match waiter.work {
                Work::Serve(ask, ..) => !are_meant(ask),
                _ => true,
            });
            !waiters.is_empty()
        });
    }

    /// Goes on with what waited for pages that do not move any more, or can be read by now. A
    /// change that has waited for too long is answered by [`Self::drive_waiters`].
    pub(in crate::plane) fn wake_waiters(&mut self) -> anyhow::Result<()> {
        let mut awake = Vec::new();
        let now = self.now();
        let (slab, machine) = (&self.slab, &self.swaps.machine);
        let forwarded = &self.swaps.forwarded;
        self.swaps.waiters.all.retain(|page, waiters| {
            let moves = slab.is_moving(*page) && !machine.is_lost(*page);
            let is_readable = slab.lookup(*page).is_some();
            let is_written = forwarded.frame(machine, slab, *page).is_some();
            let goes_on = |waiter: &mut Waiter| {
                let goes_on = is_readable && waiter.work.is_reading();
                let goes_on = !moves || goes_on || is_written && waiter.work.is_writing();
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

    /// Counts for how long somebody has waited who wants to write a page that moves.
    fn time_pause(&self, since: Option<Instant>) {
        if let Some(since) = since {
            let pause = self.now().saturating_duration_since(since);
            self.metrics.swaps.pauses.record(pause);
        }
    }

    fn go_on_with(&mut self, page: PageId, work: Work) -> anyhow::Result<()> {
        match work {
            Work::Translate(caller, access) => self.translate(caller, page, access),
            Work::Write(caller, within, batch) => self.go_on_writing(caller, within, batch),
            // Of a client that has gone it is settled that it was not done.
            Work::Atomic(caller, _) if !self.clients.is_waiting(caller) => Ok(()),
            Work::Atomic(caller, request) => self.forward_atomic(caller, request),
            Work::Release(caller, refused) => self.release_rest(caller, refused),
            Work::GiveBack(client, thread, addrs) => self.give_back_rest(client, thread, addrs),
            Work::Serve(ask, request, until) => self.serve_peer_until(ask, request, Some(until)),
        }
    }

    /// Answers those who have waited long enough.
    pub(super) fn drive_waiters(&mut self, now: Instant) -> anyhow::Result<()> {
        let mut late = Vec::new();
        self.swaps.waiters.all.retain(|_, waiters| {
            late.extend(waiters.extract_if(.., |waiter| waiter.is_late(now)));
            !waiters.is_empty()
        });
        let busy = RackAnswer::PageBusy(self.rack.geometry.rack);
        for Waiter { work, since, .. } in late {
            self.time_pause(since);
            match work {
                // What stands in the outbox stays there.
                Work::Translate(caller, _) | Work::Release(caller, _) => {
                    self.clients.finish(caller, busy);
                }
                // It comes again: a client has more time than that.
                Work::Write(caller, _, batch) => {
                    self.transfers.forwarding.remove(&(caller.client, caller.thread));
                    self.refuse_transfer(caller, batch, RackAnswer::Moved);
                }
                Work::Atomic(caller, _) => self.clients.finish(caller, RackAnswer::Moved),
                // Nothing was done and nothing noted: the other rack asks where they are.
                Work::Serve(ask, PeerRequest::Free { addrs, .. }, _) => {
                    self.reply(ask, &PeerReply::Freed { refused: 0, moved: addrs })?;
                }
                Work::Serve(ask, ..) => self.reply(ask, &PeerReply::Busy)?,
                Work::GiveBack(..) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_to_write_keeps_a_daemon_awake_and_not_for_long() {
        let now = Instant::now();
        let caller = Caller { client: ClientId(1), thread: 0, cell: 0, call: 1 };
        let waiter = |access, since| Waiter {
            work: Work::Translate(caller, access),
            since,
            until: Some(now + 2 * PROMPT),
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
