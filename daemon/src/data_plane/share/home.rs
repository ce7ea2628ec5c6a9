//! The home's side of shared pages.

use rackpool_model::{FrameId, PageId, PageState, PageWord};
use rackpool_proto::Time;
use rackpool_proto::lease::{LeaseKind, Users};
use rackpool_proto::share::{ShareAction, ShareEvent};
use rackpool_shm::access::{self, is_quiesced};
use rackpool_sync::barrier;
use rackpool_wire::history::PageHistoryEvent;

use super::Sharing;
use crate::data_plane::DataPlane;
use crate::data_plane::command::{count, set};

/// Maximum number of pages whose sharing is ended for one allocation: each has room for many
/// objects.
const UNSHARED_AT_ONCE: usize = 4;

/// A page that becomes read-only, or unshared: other racks' leases and local writers are waited
/// for.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharingQuiesce {
    frame: FrameId,
    page: PageId,
    /// Set when no lease is left that permits writing or a copy.
    clean: bool,
}

impl DataPlane {
    /// Another rack requests a lease for a copy of a page.
    pub(in crate::data_plane) fn share_if_possible(&mut self, page: PageId) -> anyhow::Result<()> {
        let may = self.sharing.enabled
            && self.slab.is_of_objects(page)
            && self.swaps.is_hardly_written(page);
        if !may {
            return Ok(());
        }
        let busy = self.swap_is_busy(page);
        self.tell_shares(ShareEvent::Wanted { page, busy })
    }

    /// Returns the strongest lease that the page's word permits.
    pub(in crate::data_plane) fn most_of(
        &self,
        page: PageId,
        word: PageWord,
        keep: bool,
    ) -> LeaseKind {
        match word.state() {
            Some(PageState::Live) => LeaseKind::Write,
            Some(PageState::Shared) if keep => {
                self.sharing.home.sharing(page).map_or(LeaseKind::Read, LeaseKind::Share)
            }
            _ => LeaseKind::Read,
        }
    }

    /// Another rack keeps a copy of the page, or may soon.
    pub(in crate::data_plane) fn copy_leased(&mut self, page: PageId) -> anyhow::Result<()> {
        self.tell_shares(ShareEvent::Leased(page))
    }

    pub(super) fn tell_shares(&mut self, event: ShareEvent) -> anyhow::Result<()> {
        let now = self.leases.at(self.now());
        let slab = &self.slab;
        let find = |page| slab.find(page);
        self.sharing.home.handle(now, &find, event);
        self.run_home()
    }

    /// Ends sharings that are not used any more.
    pub(super) fn end_idle_sharings(&mut self, now: Time) -> anyhow::Result<()> {
        if self.sharing.home_due.is_some_and(|due| now >= due) {
            self.tell_shares(ShareEvent::DeadlinePassed)?;
        }
        Ok(())
    }

    /// No object of `bytes` bytes is free: ends the sharing of pages that have room for some.
    /// Returns true if any sharing is ending.
    pub(in crate::data_plane) fn unshare_for(&mut self, bytes: u64) -> bool {
        let Sharing { home, needed, .. } = &mut self.sharing;
        let with_room = home.pages().filter(|page| self.slab.has_room(*page, bytes));
        needed.extend(with_room.take(UNSHARED_AT_ONCE));
        self.is_unsharing()
    }

    /// Returns true if the sharing of pages is ending.
    pub(in crate::data_plane) fn is_unsharing(&self) -> bool {
        !self.sharing.needed.is_empty() || self.sharing.home.is_ending()
    }

    pub(super) fn run_home(&mut self) -> anyhow::Result<()> {
        let mut thawed = false;
        while let Some(action) = self.sharing.home.poll() {
            match action {
                ShareAction::Store(frame, word) => {
                    self.slab.follow_swap(frame, word)?;
                    self.sharing.changed = true;
                    let shared = !word.is_writable();
                    let event =
                        if shared { PageHistoryEvent::Shared } else { PageHistoryEvent::Unshared };
                    let now = self.now();
                    self.swaps.remember_event(now, word.page(), event);
                    if !shared {
                        thawed = true;
                        count(&self.metrics.sharing.ended);
                    } else {
                        count(&self.metrics.sharing.begun);
                    }
                }
                ShareAction::Quiesce(frame, page) => {
                    self.sharing.quiesces.push(SharingQuiesce { frame, page, clean: false });
                    self.page_needed(page, Users::Writers)?;
                }
                ShareAction::CancelQuiesce(page) => {
                    self.sharing.quiesces.retain(|quiescing| quiescing.page != page);
                    self.page_spared(page)?;
                }
            }
        }
        self.sharing.home_due = self.sharing.home.deadline();
        set(&self.metrics.sharing.shared, self.sharing.home.len() as u64);
        if thawed { self.wake_waiters() } else { Ok(()) }
    }

    /// No other rack writes the page or keeps a copy any more.
    pub(in crate::data_plane) fn share_page_clean(&mut self, page: PageId) {
        let waits = |quiescing: &&mut SharingQuiesce| quiescing.page == page;
        for quiescing in self.sharing.quiesces.iter_mut().filter(waits) {
            quiescing.clean = true;
        }
    }

    /// Tells the machine which pages are quiesced.
    pub(super) fn look_at_share_quiesces(&mut self) -> anyhow::Result<()> {
        if self.sharing.quiesces.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut self.sharing.changed) {
            barrier::heavy();
        }
        let mut quiesced = Vec::new();
        let clients = &self.clients;
        self.sharing.quiesces.retain(|quiescing| {
            // Clients of this rack continue to read.
            let out = quiescing.clean
                && is_quiesced(quiescing.frame, access::Occupants::Writers, clients.access_slots());
            if out {
                quiesced.push(ShareEvent::Quiesced(quiescing.page));
            }
            !out
        });
        for event in quiesced {
            self.tell_shares(event)?;
        }
        Ok(())
    }
}
