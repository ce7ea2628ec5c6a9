//! Executes the actions of the rack's machine, which decides about swaps, leases, sharing and
//! replicas: `rackpool_proto::rack`.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rackpool_model::{FrameId, FrameWord, LockClaim, Occupants, PageId, PageSize, PageWord};
use rackpool_proto::Time;
use rackpool_proto::exchange::{ExchangeIdentity, ExchangeRules};
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::publication::RecoveryRules;
use rackpool_proto::rack::{
    PageWords, RackAction, RackEvent, RackMachine, RackMemory, RackPast, RackRecord, RackRules,
};
use rackpool_proto::swap::{RECORD_WORDS, RECORDS};
use rackpool_shm::access::is_quiesced;
use rackpool_shm::lock_words::LockWords;
use rackpool_sync::atomic::fence;
use rackpool_wire::history::PageHistoryEvent;

use super::clients::Clients;
use super::command::{count, set};
use super::peers::Peers;
use super::transfers::Transfers;
use super::{ControlNotification, DataPlane};
use crate::data_plane::error::Result;
use crate::rack::Rack;
use crate::slab::Slab;

/// The delay of the barrier for the readers of a vacated frame. Only the next page that arrives
/// waits for the frame.
pub(super) const BARRIER_DELAY: Duration = Duration::from_millis(1);

/// Number of frames examined in a search for the coldest page.
const LOOK: u32 = 4096;

/// The rack's memory at one point in time.
pub(super) struct View<'a> {
    pub(super) slab: &'a Slab,
    pub(super) clients: &'a Clients,
    pub(super) lock_words: &'a LockWords,
    pub(super) transfers: &'a Transfers,
    pub(super) peers: &'a Peers,
    /// Whether the bandwidth budget allows copies now.
    may_copy: bool,
    /// Whether this rack gives pages away.
    may_give: bool,
    /// The frame at which the search for the coldest page begins.
    cursor: u32,
    /// Number of free frames that replicas leave to other uses.
    stay: usize,
}

impl PageWords for Slab {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        Self::find(self, page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.word_of(frame)
    }
}

impl PageWords for View<'_> {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        self.slab.find(page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.slab.word_of(frame)
    }
}

impl RackMemory for View<'_> {
    fn spare(&self) -> Option<FrameId> {
        self.slab.spare().filter(|_| self.may_copy)
    }

    fn free_pages(&self) -> impl Iterator<Item = PageId> {
        self.slab.free_pages()
    }

    fn movable_pages(&self) -> impl Iterator<Item = PageId> {
        self.slab.movable_pages(self.cursor, LOOK)
    }

    fn may_move(&self, page: PageId) -> bool {
        self.may_give && self.slab.is_of_objects(page)
    }

    fn may_share(&self, page: PageId) -> bool {
        self.slab.is_of_objects(page)
    }

    fn frame_for_replica(&self, busy: &dyn Fn(PageId) -> bool) -> Option<FrameId> {
        self.slab.frame_to_borrow(self.stay, busy).filter(|_| self.may_copy)
    }

    fn is_short_of_frames(&self) -> bool {
        self.slab.unborrowed_frames() < self.stay / 2
    }

    fn is_quiesced(&self, frame: FrameId, occupants: Occupants) -> bool {
        // SYNC: pairs with the fence of `AccessSlot::enter_dirty_logged`: this thread sees the slot
        // of a thread that enters, or that thread sees the word that was stored before.
        fence(Ordering::SeqCst);
        is_quiesced(frame, occupants, self.clients.access_slots())
    }
}

/// Returns the rules of exchanges for a lease time.
pub(super) fn exchange_rules(lease: Duration, page_size: PageSize) -> ExchangeRules {
    // The other rack cuts this one off after a lease time without an answer.
    let defer = lease / 4;
    ExchangeRules { page_size, timeout: lease, defer, again: Duration::from_millis(20) }
}

/// Returns the rules of the recovery of reservations for a lease time, after which racks execute no
/// request of an earlier daemon any more.
pub(super) const fn recovery_rules(lease: Duration, page_size: PageSize) -> RecoveryRules {
    RecoveryRules { page_size, again: Duration::from_millis(100), earlier_requests: lease }
}

/// Restores the machine from the rack's memory.
pub(super) fn restore(
    rules: RackRules,
    restarted: bool,
    rack: &Rack,
    slab: &Slab,
    own: ExchangeIdentity,
) -> anyhow::Result<RackMachine> {
    let mut records = [[0; RECORD_WORDS]; RECORDS];
    for (into, record) in records.iter_mut().zip(rack.metadata.swaps()?) {
        *into = std::array::from_fn(|word| record.words[word].load(Ordering::Acquire));
    }
    let foreign: Vec<(u32, LockClaim)> = rack.lock_words.foreign().collect();
    let past = RackPast {
        // The incarnation, in nanoseconds, grows faster than the numbers that the machine draws.
        first: rack.incarnation.0.max(1),
        restarted,
        records: &records,
        foreign_claims: &foreign,
        own,
    };
    let (shared, pages) = (slab.shared_pages(), rack.geometry.frames as usize);
    Ok(RackMachine::restore(Time::ZERO, rules, &past, shared, pages, Sound)?)
}

impl DataPlane {
    /// Converts to the machine's time.
    pub(super) fn at(&self, now: Instant) -> Time {
        Time::ZERO.after(now.saturating_duration_since(self.start))
    }

    /// Returns true if the machine has something to do now, or later without an event.
    pub(super) fn machine_has_deadlines(&self) -> bool {
        self.machine.has_events()
            || self.machine.is_quiescing()
            || self.machine.deadline().is_some()
            || self.slab.has_newly_leaving()
            || !self.machine.copies().is_empty()
    }

    /// Passes what is due to the machine.
    pub(super) fn drive_machine(&mut self, now: Instant) -> Result<()> {
        for frame in self.slab.take_newly_leaving() {
            let page = self.slab.page_of(frame)?;
            self.machine.handle(RackEvent::PageFreed { frame, page });
        }
        if self.machine.deadline().is_some_and(|due| self.at(now) >= due) {
            self.machine.handle(RackEvent::DeadlinePassed);
        }
        self.execute_all()
    }

    /// Handles the machine's waiting events, if there are any, and executes all resulting actions.
    pub(super) fn run_machine(&mut self) -> Result<()> {
        if self.machine.has_events() { self.execute_all() } else { Ok(()) }
    }

    fn execute_all(&mut self) -> Result<()> {
        if self.execute_actions()? && !self.swaps.waiters.is_empty() {
            self.wake_waiters()?;
            self.execute_actions()?;
        }
        Ok(())
    }

    /// Returns true if there were events or actions.
    fn execute_actions(&mut self) -> Result<bool> {
        let mut any = self.machine.has_events();
        let now = self.cached_now();
        let at = self.at(now);
        loop {
            let view = View {
                slab: &self.slab,
                clients: &self.clients,
                lock_words: &self.rack.lock_words,
                transfers: &self.transfers,
                peers: &self.peers,
                may_copy: self.swaps.budget.has_any(now),
                may_give: self.swaps.enabled,
                cursor: self.swaps.cursor,
                stay: self.sharing.stay,
            };
            let Some(action) = self.machine.poll(at, &view) else { break };
            self.execute(now, action)?;
            any = true;
        }
        if any {
            self.end_loans();
            set(&self.metrics.sharing.shared, self.machine.shares().len() as u64);
            set(&self.metrics.sharing.copies, self.machine.copies().len() as u64);
        }
        Ok(any)
    }

    fn execute(&mut self, now: Instant, action: RackAction) -> Result<()> {
        self.remember(now, &action);
        match action {
            RackAction::TellServer(message) => self.tell_server(message),
            RackAction::TellRack(rack, between) => self.tell_rack(now, rack, between)?,
            RackAction::StoreRecord { slot, words } => self.slab.note_swap(slot, &words)?,
            RackAction::EraseRecord { slot } => self.slab.erase_swap(slot)?,
            RackAction::StoreWord(frame, word) => {
                self.slab.follow_swap(frame, word)?;
            }
            RackAction::NoteLastWrites(frame) => self.remember_noted_last(frame),
            RackAction::SendDirtyLines { swap, to, frame, known } => {
                self.send_dirty_lines(now, swap, to, frame, known)?;
            }
            RackAction::ApplyDirtyLines { swap, frame } => self.apply_dirty_lines(swap, frame)?,
            RackAction::CopyPage { swap, from, theirs, ours } => {
                self.begin_copy(swap, from, theirs, ours)?;
            }
            RackAction::RequestLease { page, home, question, access, replica } => {
                self.ask_for_lease(page, home, question, access, replica)?;
            }
            RackAction::LocatePage { page, question } => {
                self.notify(ControlNotification::Find { page, question });
            }
            RackAction::AskForMembers => self.notify(ControlNotification::Meet),
            RackAction::Answer { caller, answer } => self.clients.finish(caller, answer),
            RackAction::DisconnectRack(rack) => self.disconnect_rack(rack),
            RackAction::RevokeLease(revocation) => self.revoke(now, revocation)?,
            RackAction::ReturnLease(revocation) => self.return_lease(now, revocation)?,
            RackAction::FenceEndpoint(endpoint) => self.fence_endpoint(endpoint),
            RackAction::Barrier => self.rack.client_host.barrier(),
            RackAction::FreeFrame { frame, .. } => self.slab.quiesced(frame)?,
            RackAction::CopyReplica { page, lease, ours } => {
                self.begin_replica(now, page, &lease, ours);
            }
            RackAction::PublishReplica { page, ours, copy, until } => {
                self.publish_replica(now, page, ours, copy, until)?;
            }
            RackAction::HideReplica(ours) => self.hide_replica(now, ours)?,
            RackAction::Exchange(action) => self.execute_exchange(action)?,
            RackAction::Recovery(action) => self.execute_recovery(action)?,
            RackAction::Lock(action) => self.execute_lock(now, action)?,
            RackAction::Record(RackRecord::Swap(event)) => self.report(&event)?,
            RackAction::Record(RackRecord::Shared(page)) => {
                count(&self.metrics.sharing.begun);
                self.remember_event(now, page, PageHistoryEvent::Shared);
            }
            RackAction::Record(RackRecord::Unshared(page)) => {
                count(&self.metrics.sharing.ended);
                self.remember_event(now, page, PageHistoryEvent::Unshared);
            }
        }
        Ok(())
    }
}
