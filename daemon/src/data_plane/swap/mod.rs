//! Swaps of pages with other racks: executes the machine `proto::swap::SwapPeer`. The rules are in
//! `docs/design/swap.md`; how other operations behave meanwhile is in
//! `docs/design/swap-operations.md`.

mod awaiting_quiesced;
mod bandwidth_budget;
mod copy;
mod forwarded;
mod history;
mod history_events;
mod metrics;
mod waiters;

use std::time::{Duration, Instant};

use rackpool_fabric::RegionId;
use rackpool_model::{HeatRules, PageId, RackId};
use rackpool_proto::rack::RackEvent;
use rackpool_proto::swap::{SwapEvent, SwapRules};
use rackpool_rrpc::RequestId;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::swap::{Between, SwapMessage, ToServer};

use super::command::count;
use super::peers::Purpose;
use super::stalled_transfers::Progress;
use super::{ControlNotification, DataPlane};
use crate::data_plane::error::Result;
use awaiting_quiesced::Unleft;
use bandwidth_budget::BandwidthBudget;
use copy::SwapCopies;
use forwarded::Forwarded;
use history::History;
use metrics::Refused;
use waiters::Waiters;

pub(super) use forwarded::line_rules;
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

/// What the shell keeps for the swaps of this rack.
#[derive(Debug)]
pub(super) struct Swaps {
    pub(super) enabled: bool,
    /// The frames as a region of the fabric.
    frames: RegionId,
    copies: SwapCopies,
    forwarded: Forwarded,
    pub(super) waiters: Waiters,
    pub(super) budget: BandwidthBudget,
    /// The frame at which the next search for the coldest page begins.
    pub(super) cursor: u32,
    history: History,
    unleft: Unleft,
}

impl Swaps {
    pub(super) fn new(now: Instant, settings: &SwapSettings, frames: RegionId) -> Self {
        Self {
            enabled: settings.enabled,
            frames,
            copies: SwapCopies::default(),
            forwarded: Forwarded::default(),
            waiters: Waiters::default(),
            budget: BandwidthBudget::new(now, settings.bytes_per_second),
            cursor: 0,
            history: History::default(),
            unleft: Unleft::default(),
        }
    }

    /// Returns true if operations wait for pages that move.
    pub(super) fn has_deadlines(&self) -> bool {
        !self.waiters.is_empty()
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

impl DataPlane {
    /// A page of another rack is hot here; `milli` is its hotness in thousandths.
    pub(super) fn heated(&mut self, page: PageId, milli: u64, read_hot: bool) {
        if !self.swaps.enabled {
            return;
        }
        if !self.swaps.budget.has_any(self.now()) {
            return self.metrics.swaps.refuse(Refused::Budget);
        }
        self.machine.handle(RackEvent::Heated { page, milli, read_hot });
    }

    /// Returns true if pages are moving.
    pub(super) fn are_pages_moving(&self) -> bool {
        self.machine.swap().under_way() > 0
    }

    /// Takes a page's bytes from the bandwidth budget.
    pub(super) fn copied_bytes(&mut self, now: Instant) {
        self.swaps.budget.take(now, self.rack.geometry.page_size.bytes());
    }

    /// Handles a swap message of another rack. The message is not trusted.
    pub(super) fn serve_swap(&mut self, ask: RequestId, between: Between) -> Result<()> {
        self.reply(ask, &PeerReply::Heard)?;
        let Some(rack) = self.peers.rack_at(ask.endpoint) else { return Ok(()) };
        if matches!(between.message, SwapMessage::Prepare { .. }) {
            count(&self.metrics.swaps.served);
        }
        self.swaps.remember_offer(rack, &between);
        self.machine.handle(RackEvent::RackSent(rack, between));
        Ok(())
    }

    pub(super) fn tell_server(&mut self, message: ToServer) {
        if let ToServer::Request { .. } = message {
            self.swaps.cursor = self.swaps.cursor.wrapping_add(STRIDE);
        }
        self.notify(ControlNotification::TellServer(message));
    }

    pub(super) fn tell_rack(&mut self, now: Instant, rack: RackId, between: Between) -> Result<()> {
        if let SwapMessage::Prepare { .. } = between.message {
            count(&self.metrics.swaps.asked);
        }
        if between.message == SwapMessage::IsQuiesced {
            self.tell_of_unleft(now, rack);
        }
        self.meet(rack);
        self.ask(rack, PeerRequest::Swap(between), Purpose::Swap, now + MESSAGE)
    }

    pub(super) fn report(&mut self, event: &SwapEvent) -> Result<()> {
        self.metrics.swaps.note(event);
        match *event {
            SwapEvent::Arrived(page) => {
                tracing::debug!("{page} has come");
            }
            SwapEvent::Thawed(page) => {
                tracing::debug!("{page} can be written");
                self.swaps.unleft.forget(page);
            }
            SwapEvent::Departed(page) => tracing::debug!("{page} has gone"),
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
            SwapEvent::NoColdPage(_)
            | SwapEvent::RequestRefused(..)
            | SwapEvent::PrepareRefused(..) => {}
        }
        Ok(())
    }
}
