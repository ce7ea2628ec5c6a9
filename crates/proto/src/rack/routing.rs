//! How events reach the machines of a rack, and where each machine's actions go: to another
//! machine, or to the shell.
//!
//! The machines of leases and replicas do not read memory: they handle an event at once, in the
//! middle of another machine's actions. The machines of swaps and of sharing read memory. Their
//! events wait in the queue until the shell has executed all earlier actions.

use rackpool_model::{Access, FrameId, PageId, PageWord, RackId};
use rackpool_wire::swap::{Between, PrepareRefusal, SwapMessage};

use super::memory::View;
use super::{LeaseAnswer, Queued, RackAction, RackEvent, RackMachine, RackMemory, RackRecord};
use crate::Time;
use crate::exchange::ExchangeEvent;
use crate::lease::{HolderAction, HolderEvent, HomeAction, HomeEvent};
use crate::lock::LockEvent;
use crate::planted_bugs::Bugs;
use crate::share::{CopiesEvent, ShareAction, ShareEvent};
use crate::swap::{PeerAction, PeerEvent, SwapEvent};

impl<B: Bugs> RackMachine<B> {
    pub(super) fn step(&mut self, now: Time, memory: &impl RackMemory, event: Queued) {
        match event {
            Queued::Swap(event) => self.tell_swap(now, memory, event),
            Queued::Shares(event) => self.tell_shares(now, memory, event),
            Queued::Arrived(page) => self.seek(now, memory, page),
            Queued::Rack(event) => self.happened(now, memory, event),
            Queued::ContinueAllocation => self.continue_allocation(memory),
        }
    }

    fn happened(&mut self, now: Time, memory: &impl RackMemory, event: RackEvent) {
        match event {
            RackEvent::Heated { page, milli, read_hot } => {
                self.tell_swap(now, memory, PeerEvent::Heated { page, milli, read_hot });
            }
            RackEvent::ServerSent(message) => {
                self.tell_swap(now, memory, PeerEvent::ServerSent(message));
            }
            RackEvent::RackSent(rack, between) => {
                if self.may_answer(now, &between) {
                    if let SwapMessage::Prepare { wanted, read_hot: false, .. } = between.message {
                        // `Prepare` is refused while the page is shared, and is sent again.
                        self.tell_shares(now, memory, ShareEvent::Needed(wanted));
                    }
                    // Before later events: messages of a rack keep their order.
                    self.queue.push_front(Queued::Swap(PeerEvent::RackSent(rack, between)));
                }
            }
            RackEvent::PageCopied { swap, whole } => {
                self.tell_swap(now, memory, PeerEvent::Copied { swap, whole });
            }
            RackEvent::WriteWanted(page) => {
                self.tell_swap(now, memory, PeerEvent::WriteWanted(page));
            }
            RackEvent::DirtyLinesReceived { from, swap, theirs, known } => {
                let event = PeerEvent::DirtyLinesReceived { from, swap, theirs, known };
                self.tell_swap(now, memory, event);
            }
            RackEvent::AccessWanted { .. }
            | RackEvent::PageLocated { .. }
            | RackEvent::LeaseAnswered { .. }
            | RackEvent::LeaseUnanswered { .. }
            | RackEvent::WrittenByHome { .. } => self.tell_searches(now, memory, event),
            RackEvent::LeaseRevoked(revocation) => {
                // The replica is hidden before the lease is returned.
                self.tell_copies(now, CopiesEvent::Revoked(revocation.page));
                self.tell_holder(now, HolderEvent::Revoked(revocation));
            }
            RackEvent::LeaseReturned(revocation) => {
                self.tell_home(now, HomeEvent::Returned(revocation));
            }
            RackEvent::OperationEnded { page, endpoint, access } => {
                self.tell_holder(now, HolderEvent::OperationEnded(page, endpoint, access));
                if access == Access::Read {
                    self.request_replica(now, memory, page);
                }
            }
            RackEvent::EndpointFenced(endpoint) => {
                self.tell_locks(now, memory, LockEvent::EndpointEnded(endpoint));
                self.tell_home(now, HomeEvent::EndpointEnded(endpoint));
            }
            RackEvent::EndpointEnded(endpoint) => {
                self.tell_locks(now, memory, LockEvent::EndpointEnded(endpoint));
                self.tell_holder(now, HolderEvent::EndpointEnded(endpoint));
                self.tell_home(now, HomeEvent::EndpointEnded(endpoint));
            }
            RackEvent::PageFreed { frame, page } => self.page_freed(now, memory, frame, page),
            RackEvent::ReplicaRequested(page) => self.replica_requested(now, memory, page),
            RackEvent::WriteNeeded(page) => {
                self.tell_shares(now, memory, ShareEvent::Needed(page));
            }
            RackEvent::ReplicaWanted(page) => self.replica_wanted(now, memory, page),
            RackEvent::ReplicaCopied { page, endpoint, whole } => {
                self.tell_copies(now, CopiesEvent::Copied { page, whole });
                self.tell_holder(now, HolderEvent::OperationEnded(page, endpoint, Access::Read));
                self.keep_replica(now, memory, page);
            }
            RackEvent::FramesNeeded => self.drop_replicas(now),
            RackEvent::Exchange(event) => self.tell_exchanges(now, memory, event),
            RackEvent::Recovery(event) => self.tell_recovery(now, memory, event),
            RackEvent::Lock(event) => self.tell_locks(now, memory, event),
            RackEvent::DeadlinePassed => self.deadline_passed(now, memory),
        }
    }

    fn page_freed(&mut self, now: Time, memory: &impl RackMemory, frame: FrameId, page: PageId) {
        self.quiesce_to_free(now, frame, page);
        self.tell_locks(now, memory, LockEvent::PageChanged(page));
    }

    /// Handles an event of the search for pages of other racks.
    fn tell_searches(&mut self, now: Time, memory: &impl RackMemory, event: RackEvent) {
        match event {
            RackEvent::AccessWanted { caller, page, access } => {
                self.access_wanted(now, memory, caller, page, access);
            }
            RackEvent::PageLocated { page, question, located } => {
                let located = self.checked_location(page, located);
                // Exchanges and recovery number no questions. An answer to a search may be older
                // than the page.
                if question == 0 {
                    self.tell_exchanges(now, memory, ExchangeEvent::Located(page, located));
                }
                self.page_located(now, memory, page, question, located);
                if question == 0 {
                    self.recovery_located(now, memory, page, located);
                }
            }
            RackEvent::LeaseAnswered { page, question, home, answer } => {
                self.lease_answered(now, memory, page, (question, home), &answer);
            }
            RackEvent::LeaseUnanswered { page, question } => {
                self.lease_unanswered(now, memory, page, question);
            }
            RackEvent::WrittenByHome { page, home } => self.written_by_home(now, page, home),
            _ => {}
        }
    }

    /// A home has answered a lease request, whatever its purpose.
    fn lease_answered(
        &mut self,
        now: Time,
        memory: &impl RackMemory,
        page: PageId,
        (question, home): (u64, RackId),
        answer: &LeaseAnswer,
    ) {
        if !matches!(answer, LeaseAnswer::Granted { .. }) {
            self.holder.unanswered(page, question);
        }
        match *answer {
            LeaseAnswer::Granted { lease, usage, forwards } => {
                self.locations.note_found(page, home, usage, forwards);
                self.tell_holder(now, HolderEvent::Granted { page, question, lease });
                if self.swap.goes_to(page).is_some() {
                    self.tell_swap(now, memory, PeerEvent::LeasePrefetched(page));
                }
                self.keep_replica(now, memory, page);
            }
            LeaseAnswer::NotHere => {
                if self.locations.of(page).is_none_or(|found| found.home == home) {
                    self.locations.forget(page);
                    self.holder.drop_held(page);
                }
            }
            LeaseAnswer::NotAllocated => self.holder.drop_held(page),
            LeaseAnswer::Busy | LeaseAnswer::Lost | LeaseAnswer::Invalid => {}
        }
        self.continue_search(now, memory, page, (question, home), answer);
    }

    fn deadline_passed(&mut self, now: Time, memory: &impl RackMemory) {
        self.drive_searches(now, memory);
        self.tell_home(now, HomeEvent::DeadlinePassed);
        self.tell_copies(now, CopiesEvent::DeadlinePassed);
        self.queue.push_back(Queued::Shares(ShareEvent::DeadlinePassed));
        self.queue.push_back(Queued::Swap(PeerEvent::DeadlinePassed));
    }

    /// Returns false for the question whether a page is quiesced, while leases that this rack's
    /// previous memory has granted may be in use: they are unknown. The other rack asks again.
    fn may_answer(&self, now: Time, between: &Between) -> bool {
        between.message != SwapMessage::IsQuiesced || now >= self.previous_leases_end
    }

    fn tell_swap(&mut self, now: Time, memory: &impl RackMemory, event: PeerEvent) {
        let view = View { memory, locks: &self.locks, heats: &self.heats, now };
        self.swap.handle(now, &view, event);
        self.is_due_stale = true;
        while let Some(action) = self.swap.poll() {
            self.do_for_swap(now, memory, action);
        }
    }

    fn do_for_swap(&mut self, now: Time, memory: &impl RackMemory, action: PeerAction) {
        let action = match action {
            PeerAction::TellServer(message) => RackAction::TellServer(message),
            PeerAction::TellRack(rack, between) => RackAction::TellRack(rack, between),
            PeerAction::StoreRecord { slot, words } => RackAction::StoreRecord { slot, words },
            PeerAction::EraseRecord { slot } => RackAction::EraseRecord { slot },
            PeerAction::StoreWord(frame, word) => RackAction::StoreWord(frame, word),
            PeerAction::Copy { swap, from, theirs, ours } => {
                RackAction::CopyPage { swap, from, theirs, ours }
            }
            PeerAction::SendDirtyLines { swap, to, frame, known } => {
                RackAction::SendDirtyLines { swap, to, frame, known }
            }
            PeerAction::ApplyDirtyLines { swap, frame } => {
                RackAction::ApplyDirtyLines { swap, frame }
            }
            PeerAction::PrefetchLease { page, to } => {
                self.ask_for_lease(now, page, to, Access::Read);
                return;
            }
            PeerAction::Quiesce { swap, frame, page, who } => {
                return self.quiesce_for_swap(now, swap, frame, page, who);
            }
            PeerAction::CancelQuiesce(swap, page) => {
                return self.cancel_swap_quiesce(now, swap, page);
            }
            PeerAction::Record(event) => {
                self.note_swap_event(now, memory, event);
                RackAction::Record(RackRecord::Swap(event))
            }
        };
        self.actions.push_back(action);
    }

    fn note_swap_event(&mut self, now: Time, memory: &impl RackMemory, event: SwapEvent) {
        match event {
            SwapEvent::Arrived(page) => {
                self.heats.arrived(now, page);
                self.exchanges.page_arrived(page);
                // The replica is hidden before the lease is returned, and the old home has the
                // lease back before it hears that the page can be read here: it need not revoke it.
                self.tell_copies(now, CopiesEvent::Revoked(page));
                self.tell_holder(now, HolderEvent::Arrived(page));
                // After the page word is stored: callers that search for the page find it here.
                self.queue.push_back(Queued::Arrived(page));
            }
            SwapEvent::Departed(page) => {
                if let Some(home) = self.swap.goes_to(page) {
                    self.locations.note_gone(now, page, home);
                }
            }
            SwapEvent::PrepareRefused(page, PrepareRefusal::ReadHot) => {
                self.replica_wanted(now, memory, page);
            }
            // No word changes.
            SwapEvent::Lost(page) => self.page_changed(page),
            SwapEvent::Thawed(_)
            | SwapEvent::Aborted(_)
            | SwapEvent::NoColdPage(_)
            | SwapEvent::RequestRefused(..)
            | SwapEvent::PrepareRefused(..)
            | SwapEvent::Damaged(..) => {}
        }
    }

    pub(super) fn tell_shares(&mut self, now: Time, memory: &impl RackMemory, event: ShareEvent) {
        self.shares.handle(now, &|page| memory.find(page), event);
        self.is_due_stale = true;
        while let Some(action) = self.shares.poll() {
            match action {
                ShareAction::Store(frame, word) => self.store_shared_word(frame, word),
                ShareAction::Quiesce(frame, page) => self.quiesce_to_share(now, frame, page),
                ShareAction::CancelQuiesce(page) => self.cancel_share_quiesce(now, page),
            }
        }
    }

    fn store_shared_word(&mut self, frame: FrameId, word: PageWord) {
        let page = word.page();
        let is_shared = !word.is_writable();
        let record = if is_shared { RackRecord::Shared(page) } else { RackRecord::Unshared(page) };
        self.actions.push_back(RackAction::StoreWord(frame, word));
        self.actions.push_back(RackAction::Record(record));
    }

    pub(super) fn tell_home(&mut self, now: Time, event: HomeEvent) {
        self.home.handle(now, event);
        self.is_due_stale = true;
        while let Some(action) = self.home.poll() {
            match action {
                HomeAction::Revoke(revocation) => {
                    self.actions.push_back(RackAction::RevokeLease(revocation));
                }
                HomeAction::Fence(endpoint) => {
                    self.actions.push_back(RackAction::FenceEndpoint(endpoint));
                }
                HomeAction::Clean(page, users) => self.quiesces.clean(page, users),
            }
        }
    }

    pub(super) fn tell_holder(&mut self, now: Time, event: HolderEvent) {
        self.holder.handle(now, event);
        self.drain_holder(now);
    }

    pub(super) fn drain_holder(&mut self, now: Time) {
        while let Some(action) = self.holder.poll() {
            match action {
                HolderAction::Return(revocation) => {
                    self.actions.push_back(RackAction::ReturnLease(revocation));
                }
                HolderAction::Renew(page, home) => {
                    self.ask_for_lease(now, page, home, Access::Read);
                }
            }
        }
    }
}
