//! Swaps of pages with other racks: executes the machine `proto::swap::SwapPeer`. The rules are in
//! `docs/design/swap.md`; how other operations behave meanwhile is in
//! `docs/design/swap-operations.md`.

mod awaiting_quiesced;
mod bandwidth_budget;
mod copy;
mod forwarded;
mod history;
mod history_events;
mod memory_view;
mod metrics;
mod prefetch_lease;
mod quiesce;
mod waiters;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rackpool_fabric::RegionId;
use rackpool_model::{Access, HeatRules, HeatRulesError, PageId, PageState};
use rackpool_proto::Time;
use rackpool_proto::heat::{Found, Heats, READS_A_WRITE};
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::swap::{RackAction, RackEvent, SwapEvent, SwapPeer, SwapRules};
use rackpool_rrpc::RequestId;
use rackpool_shm::metadata::RackMetadata;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::swap::{Between, FromServer, PrepareRefusal, SwapMessage, ToServer};

use super::command::count;
use super::peers::Purpose;
use super::stalled_transfers::Progress;
use super::{ControlNotification, DataPlane};
use crate::slab::DAMAGED;
use awaiting_quiesced::Unleft;
use bandwidth_budget::BandwidthBudget;
use copy::SwapCopies;
use forwarded::Forwarded;
use history::History;
use memory_view::View;
use metrics::Refused;
use quiesce::Quiesces;
use waiters::Waiters;

pub(super) use copy::is_copy;
pub(crate) use metrics::SwapMetrics;
pub(super) use waiters::Work;

/// A swap message that could not be sent for this time is dropped. The machines repeat the message
/// or do without it.
pub(super) const MESSAGE: Duration = Duration::from_millis(50);
/// Frames by which the search for the coldest page advances with each request.
const STRIDE: u32 = 4096;

/// The operator's settings of swaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwapSettings {
    /// Whether this rack requests pages and gives pages away.
    pub(crate) enabled: bool,
    /// Whether racks keep copies of pages that they mostly read.
    pub(crate) share: bool,
    pub(crate) heat: HeatRules,
    pub(crate) rules: SwapRules,
    /// Bytes a second that copies may take; 0 for no limit.
    pub(crate) bytes_per_second: u64,
}

/// The swaps of this rack.
#[derive(Debug)]
pub(super) struct Swaps {
    machine: SwapPeer<Sound>,
    enabled: bool,
    /// The zero of the machine's clock.
    start: Instant,
    heats: Heats,
    /// The machine's deadline.
    due: Option<Time>,
    /// Whether the machine has swaps under way, cached for the poll loop.
    under_way: bool,
    /// Events that the machine has not handled yet.
    inputs: VecDeque<RackEvent>,
    /// Set while the machine's actions are executed: new events are handled afterwards.
    runs: bool,
    /// The frames as a region of the fabric.
    frames: RegionId,
    quiesces: Quiesces,
    copies: SwapCopies,
    forwarded: Forwarded,
    waiters: Waiters,
    budget: BandwidthBudget,
    cursor: u32,
    history: History,
    unleft: Unleft,
}

impl Swaps {
    /// Restores the swaps from the records in the metadata. `pages` is the number of the rack's
    /// pages.
    pub(super) fn new(
        now: Instant,
        settings: &SwapSettings,
        incarnation: rackpool_model::Incarnation,
        metadata: &RackMetadata,
        frames: RegionId,
        pages: u32,
    ) -> Result<Self, NewError> {
        let records: Vec<_> = metadata
            .swaps()?
            .iter()
            .map(|record| std::array::from_fn(|word| record.words[word].load(Ordering::Acquire)))
            .collect();
        let mut all = [[0; rackpool_proto::swap::RECORD_WORDS]; rackpool_proto::swap::RECORDS];
        for (into, words) in all.iter_mut().zip(records) {
            *into = words;
        }
        let machine = SwapPeer::restore(Time::ZERO, settings.rules, incarnation, &all, Sound);
        Ok(Self {
            due: machine.deadline(),
            under_way: machine.under_way() > 0,
            machine,
            enabled: settings.enabled,
            start: now,
            heats: Heats::with_room(settings.heat, pages as usize)?,
            inputs: VecDeque::new(),
            runs: false,
            frames,
            quiesces: Quiesces::default(),
            copies: SwapCopies::default(),
            forwarded: Forwarded::default(),
            waiters: Waiters::default(),
            budget: BandwidthBudget::new(now, settings.bytes_per_second),
            cursor: 0,
            history: History::default(),
            unleft: Unleft::default(),
        })
    }

    fn at(&self, now: Instant) -> Time {
        Time::ZERO.after(now.saturating_duration_since(self.start))
    }

    /// Counts `times` accesses of this rack to a page.
    pub(super) fn accessed(
        &mut self,
        now: Instant,
        page: PageId,
        access: Access,
        times: u32,
    ) -> Found {
        let at = self.at(now);
        self.heats.accessed(at, page, access, times)
    }

    /// Returns true if this rack's reads of the page outnumber its writes enough for a copy to pay
    /// off.
    pub(super) fn is_hardly_written(&self, page: PageId) -> bool {
        let (reads, writes) = self.heats.counts(page);
        reads >= writes.saturating_mul(READS_A_WRITE)
    }

    /// The page is free: its hotness does not predict its next use.
    pub(super) fn freed(&mut self, page: PageId) {
        self.heats.freed(page);
    }

    /// Examines a part of the hotness table and drops pages that are not used any more.
    pub(super) fn forget_some(&mut self, now: Instant, places: usize) {
        let at = self.at(now);
        self.heats.forget_some(at, places);
    }

    /// Returns true if anything has to be done at a later time without an event.
    pub(super) fn has_deadlines(&self) -> bool {
        let waits = !self.quiesces.is_empty() || !self.waiters.is_empty();
        self.due.is_some() || waits || !self.inputs.is_empty()
    }

    /// Returns true if pages are moving.
    pub(super) const fn are_under_way(&self) -> bool {
        self.under_way
    }

    /// Returns true if a writer waits for a few messages only: then the data plane must not sleep.
    pub(super) fn is_urgent(&self, now: Instant) -> bool {
        self.waiters.has_recent_writer(now)
    }

    /// Returns the copies in progress, the oldest first.
    pub(super) fn copies_on_their_way(&self) -> impl Iterator<Item = Progress> {
        self.copies.on_their_way()
    }
}

/// Why the swaps can't be restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum NewError {
    #[error("the rack metadata is damaged ({0}): {DAMAGED}")]
    Bounds(#[from] rackpool_shm::OutsideMapping),
    #[error(transparent)]
    Heat(#[from] HeatRulesError),
}

impl DataPlane {
    /// A page of another rack is hot here; `milli` is its hotness in thousandths.
    pub(super) fn heated(
        &mut self,
        page: PageId,
        milli: u64,
        read_hot: bool,
    ) -> anyhow::Result<()> {
        if !self.swaps.enabled {
            return Ok(());
        }
        if !self.swaps.budget.has_any(self.now()) {
            self.metrics.swaps.refuse(Refused::Budget);
            return Ok(());
        }
        self.tell_swaps(RackEvent::Heated { page, milli, read_hot })
    }

    /// Returns true if a swap under way concerns the page.
    pub(super) fn swap_is_busy(&self, page: PageId) -> bool {
        self.swaps.machine.is_busy(page) || self.slab.is_moving(page)
    }

    /// Returns true if the page moves or is shared: an operation that the page does not allow now
    /// waits for the end of that. A page that was lost on its way here is not waited for.
    pub(super) fn is_moving(&self, page: PageId) -> bool {
        self.slab.is_moving(page) && !self.swap_has_lost(page)
    }

    /// Returns true if a swap may use the free page or its frame at any time.
    pub(super) fn swap_offers(&self, page: PageId) -> bool {
        self.swaps.machine.offers(page) || self.swaps.machine.is_busy(page)
    }

    /// Returns true if the bandwidth budget allows a copy now.
    pub(super) fn may_copy(&mut self, now: Instant) -> bool {
        self.swaps.budget.has_any(now)
    }

    /// Takes a page's bytes from the bandwidth budget.
    pub(super) fn copied_bytes(&mut self, now: Instant) {
        self.swaps.budget.take(now, self.rack.geometry.page_size.bytes());
    }

    /// For a page whose home is this rack according to the metadata server: returns true if the
    /// page is here, on its way here or away, or known to have gone. If not, the page does not
    /// exist.
    pub(super) fn is_near(&self, page: PageId) -> bool {
        self.slab.lookup(page).is_some() || self.swap_is_busy(page) || self.home_of(page).is_some()
    }

    /// Handles a swap message of the metadata server.
    pub(super) fn server_sent(&mut self, message: FromServer) -> anyhow::Result<()> {
        self.tell_swaps(RackEvent::ServerSent(message))
    }

    /// Handles a swap message of another rack. The message is not trusted.
    pub(super) fn serve_swap(&mut self, ask: RequestId, between: Between) -> anyhow::Result<()> {
        self.reply(ask, &PeerReply::Heard)?;
        let Some(rack) = self.peers.rack_at(ask.endpoint) else { return Ok(()) };
        if matches!(between.message, SwapMessage::Prepare { .. }) {
            count(&self.metrics.swaps.served);
        }
        if between.message == SwapMessage::IsQuiesced
            && self.leases.may_be_used_by_the_dead(self.now())
        {
            // The leases that the rack's previous memory granted are unknown. The other rack asks
            // again.
            return Ok(());
        }
        if let SwapMessage::Prepare { wanted, read_hot: false, .. } = between.message {
            // `Prepare` is refused while the page is shared, and is sent again.
            self.sharing.need(wanted);
        }
        self.swaps.remember_offer(rack, &between);
        self.tell_swaps(RackEvent::RackSent(rack, between))
    }

    /// Does what is due.
    pub(super) fn drive_swaps(&mut self, now: Instant) -> anyhow::Result<()> {
        let due = self.swaps.due.is_some_and(|due| self.swaps.at(now) >= due);
        if due {
            self.tell_swaps(RackEvent::DeadlinePassed)?;
        } else if !self.swaps.quiesces.is_empty() || !self.swaps.inputs.is_empty() {
            self.run_swaps()?;
        }
        self.drive_waiters(now)
    }

    /// Passes an event to the machine and executes all resulting actions.
    fn tell_swaps(&mut self, event: RackEvent) -> anyhow::Result<()> {
        self.swaps.inputs.push_back(event);
        self.run_swaps()
    }

    fn run_swaps(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.swaps.runs, true) {
            return Ok(());
        }
        let result = self.run_all_swaps();
        self.swaps.runs = false;
        self.swaps.due = self.swaps.machine.deadline();
        self.swaps.under_way = self.swaps.machine.under_way() > 0;
        result?;
        if self.swaps.waiters.is_empty() { Ok(()) } else { self.wake_waiters() }
    }

    fn run_all_swaps(&mut self) -> anyhow::Result<()> {
        loop {
            while let Some(event) = self.swaps.inputs.pop_front() {
                let now = self.now();
                let at = self.swaps.at(now);
                let view = View {
                    slab: &self.slab,
                    heats: &self.swaps.heats,
                    now: at,
                    may_copy: self.swaps.budget.has_any(now),
                    may_give: self.swaps.enabled,
                    cursor: self.swaps.cursor,
                };
                self.swaps.machine.handle(at, &view, event);
                while let Some(action) = self.swaps.machine.poll() {
                    self.do_swap(now, action)?;
                }
            }
            if !self.look_at_quiesces() {
                return Ok(());
            }
        }
    }

    fn do_swap(&mut self, now: Instant, action: RackAction) -> anyhow::Result<()> {
        self.swaps.remember(now, &action);
        match action {
            RackAction::TellServer(message) => {
                if let ToServer::Request { .. } = message {
                    self.swaps.cursor = self.swaps.cursor.wrapping_add(STRIDE);
                }
                self.notify(ControlNotification::TellServer(message));
            }
            RackAction::TellRack(rack, between) => {
                if let SwapMessage::Prepare { .. } = between.message {
                    count(&self.metrics.swaps.asked);
                }
                if between.message == SwapMessage::IsQuiesced {
                    self.tell_of_unleft(now, rack);
                }
                self.meet(rack);
                let request = PeerRequest::Swap(between);
                self.ask(rack, request, Purpose::Swap, now + MESSAGE)?;
            }
            RackAction::StoreRecord { slot, words } => self.slab.note_swap(slot, &words)?,
            RackAction::EraseRecord { slot } => self.slab.erase_swap(slot)?,
            RackAction::StoreWord(frame, word) => {
                self.slab.follow_swap(frame, word)?;
                if word.state() != Some(PageState::Frozen) {
                    self.swaps.forwarded.forget(frame);
                }
            }
            RackAction::SendDirtyLines { swap, to, frame, known } => {
                self.send_dirty_lines(now, swap, to, frame, known)?;
            }
            RackAction::ApplyDirtyLines { swap, frame } => self.apply_dirty_lines(swap, frame)?,
            RackAction::Quiesce { swap, frame, page, who } => {
                self.begin_quiesce(now, swap, frame, page, who)?;
            }
            RackAction::CancelQuiesce(swap, page) => self.cancel_quiesce(swap, page)?,
            RackAction::Copy { swap, from, theirs, ours } => {
                self.begin_copy(swap, from, theirs, ours)?;
            }
            RackAction::PrefetchLease { swap, page, to } => {
                self.begin_lease_prefetch(now, swap, page, to)?
            }
            RackAction::Record(event) => self.report(now, &event)?,
        }
        Ok(())
    }

    fn report(&mut self, now: Instant, event: &SwapEvent) -> anyhow::Result<()> {
        self.metrics.swaps.note(event);
        match *event {
            SwapEvent::Arrived(page) => {
                let at = self.swaps.at(now);
                self.swaps.heats.arrived(at, page);
                tracing::debug!("{page} has come");
                self.arrived(page)?;
                // Callers that search for the page elsewhere find it here.
                self.seek(page)?;
            }
            SwapEvent::Thawed(page) => {
                tracing::debug!("{page} can be written");
                self.swaps.unleft.forget(page);
            }
            SwapEvent::Departed(page) => {
                tracing::debug!("{page} has gone");
                if let Some(home) = self.swaps.machine.goes_to(page) {
                    self.leases.note_gone(now, page, home);
                }
            }
            SwapEvent::Quiesced(page) => self.left(page)?,
            SwapEvent::Damaged(slot, error) => {
                tracing::error!(
                    "the record of swap {slot} is damaged, its frames are lost: {error}"
                );
            }
            SwapEvent::Lost(page) => {
                tracing::error!(
                    "{page} is lost: its old home lost its memory while the page moved here, and some of what was written in it meanwhile was nowhere else"
                );
            }
            SwapEvent::Aborted(swap) => {
                tracing::debug!("swap {:x} is given up", swap.0);
                self.swaps.copies.give_up(swap);
            }
            SwapEvent::PrepareRefused(page, PrepareRefusal::ReadHot) => self.copy_wanted(page)?,
            SwapEvent::NoColdPage(_)
            | SwapEvent::RequestRefused(..)
            | SwapEvent::PrepareRefused(..) => {}
        }
        Ok(())
    }
}
