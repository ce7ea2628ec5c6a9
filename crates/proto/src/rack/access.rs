//! What an operation may do with a page of this rack now, and the answers to other racks' lease
//! requests.

use rackpool_model::{Access, FrameWord, PageId, PageState, RackId};

use super::{PageWords, Queued, RackMachine};
use crate::Time;
use crate::lease::{EndpointToken, GrantedLease, LeaseKind};
use crate::planted_bugs::{Bug, Bugs};
use crate::share::ShareEvent;

/// What an operation may do with a page now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAccess {
    /// The page is here and permits the access.
    Usable(FrameWord),
    /// The page moves, and this rack writes it for all. The shell reports what it writes with
    /// [`RackMachine::note_forwarded`].
    Forwarded(FrameWord),
    /// The page moves, is shared, or is leaving: the operation waits.
    Busy,
    /// The page is here and free.
    Free,
    /// The page was to come here and was lost on the way.
    Lost,
    /// The page is not in this rack.
    Elsewhere,
}

/// Who executes a client's operation that its daemon does not post under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    /// The page moves, and this rack writes it for all. The shell reports what it writes with
    /// [`RackMachine::note_forwarded`].
    ThisRack(FrameWord),
    /// The page's home.
    Home(RackId),
    /// The page is here and moves or is shared: the operation waits.
    Later,
    /// The client must translate the page again.
    Unknown,
}

/// Another rack's request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The page.
    pub page: PageId,
    /// The access that the lease must permit.
    pub access: Access,
    /// Whether the lease should permit a replica.
    pub replica: bool,
    /// The endpoint for which the lease is valid.
    pub endpoint: EndpointToken,
}

/// The answer to a lease request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseReply {
    /// A lease was granted.
    Granted {
        /// The lease.
        lease: GrantedLease,
        /// The page.
        found: FrameWord,
        /// Whether this rack executes writes to the page for others.
        forwards: bool,
    },
    /// No lease for this access can be granted now, for what the page permits.
    Refused(PageAccess),
}

impl<B: Bugs> RackMachine<B> {
    /// Returns what an operation may do with a page now.
    #[must_use]
    pub fn access(&self, words: &impl PageWords, page: PageId, access: Access) -> PageAccess {
        let Some(found) = words.find(page) else {
            return match page {
                page if self.swap.is_lost(page) => PageAccess::Lost,
                page if self.swap.is_arriving(page) => PageAccess::Busy,
                _ => PageAccess::Elsewhere,
            };
        };
        match (found.word.state(), access) {
            (Some(PageState::Live), _)
            | (Some(PageState::Frozen | PageState::Shared), Access::Read) => {
                PageAccess::Usable(found)
            }
            (Some(PageState::Frozen), Access::Write)
                if self.bugs.has(Bug::GrantWriteWhileFrozen) =>
            {
                PageAccess::Usable(found)
            }
            (Some(PageState::Frozen), Access::Write) if self.writes_for_others(found) => {
                PageAccess::Forwarded(found)
            }
            (Some(PageState::Free) | None, _) => PageAccess::Free,
            _ => PageAccess::Busy,
        }
    }

    /// Returns true if the page is between two homes or shared. Operations that wait for it can be
    /// executed here or elsewhere when the swap or the sharing has ended.
    #[must_use]
    pub fn is_moving(&self, words: &impl PageWords, page: PageId) -> bool {
        match words.find(page) {
            Some(found) => {
                matches!(found.word.state(), Some(PageState::Frozen | PageState::Shared))
            }
            None => self.swap.is_arriving(page),
        }
    }

    /// Returns what a client may do with a page that is here. A client may write a page that moves
    /// if it logs the lines first.
    #[must_use]
    pub fn client_access(&self, found: FrameWord, access: Access) -> PageAccess {
        let FrameWord { word, .. } = found;
        let may_use = match access {
            Access::Read => word.is_readable(),
            Access::Write => word.is_writable() || word.is_dirty_logged(),
        };
        match word.state() {
            _ if may_use => PageAccess::Usable(found),
            Some(PageState::Frozen) if self.writes_for_others(found) => {
                PageAccess::Forwarded(found)
            }
            Some(PageState::Frozen | PageState::Shared) => PageAccess::Busy,
            _ => PageAccess::Free,
        }
    }

    /// Returns who executes a client's write for which there is no lease, or its atomic operation.
    #[must_use]
    pub fn executor(
        &self,
        now: Time,
        words: &impl PageWords,
        page: PageId,
        is_atomic: bool,
    ) -> Executor {
        let Some(found) = words.find(page) else {
            let home = match is_atomic {
                true => self.home_of(words, page),
                false => self.writing_home(now, page),
            };
            // A dead rack is not asked, except while a translation names it because its lease is
            // valid: the client would repeat the translation and the operation without a pause.
            let is_named = || self.known_access(now, page, Access::Write).is_some();
            let home = home.filter(|home| !self.is_dead(*home) || is_named());
            return home.map_or(Executor::Unknown, Executor::Home);
        };
        match (self.access(words, page, Access::Write), found.word.state()) {
            (PageAccess::Forwarded(found), _) => Executor::ThisRack(found),
            (_, Some(PageState::Frozen | PageState::Shared)) => Executor::Later,
            _ => Executor::Unknown,
        }
    }

    /// Returns the home that writes the page for this rack without a write lease: the page is
    /// leaving that home, or went there from this rack within the last lease time.
    fn writing_home(&self, now: Time, page: PageId) -> Option<RackId> {
        let found = self.locations.of(page)?;
        let has_gone = found.gone.is_some_and(|gone| now < gone.after(self.rules.lease.lease));
        let forwards = || {
            let lease = self.lease(now, page).filter(|lease| lease.kind == LeaseKind::Read);
            found.forwards && lease.is_some_and(|lease| lease.home == found.home)
        };
        (has_gone || forwards()).then_some(found.home)
    }

    /// Answers another rack's lease request. A rack that wants to write a page that moves gets a
    /// lease for reading; this rack executes its writes.
    pub fn request_lease(
        &mut self,
        now: Time,
        words: &impl PageWords,
        request: LeaseRequest,
    ) -> LeaseReply {
        let LeaseRequest { page, access, .. } = request;
        let to_write = self.access(words, page, Access::Write);
        let forwards = matches!(to_write, PageAccess::Forwarded(_));
        let access = if forwards { Access::Read } else { access };
        match self.access(words, page, access) {
            PageAccess::Usable(found) => match self.grant(now, found, request) {
                Some(lease) => LeaseReply::Granted { lease, found, forwards },
                None => LeaseReply::Refused(PageAccess::Busy),
            },
            refused => LeaseReply::Refused(refused),
        }
    }

    fn grant(
        &mut self,
        now: Time,
        found: FrameWord,
        request: LeaseRequest,
    ) -> Option<GrantedLease> {
        let LeaseRequest { page, replica, endpoint, .. } = request;
        let most = self.strongest(found, replica);
        let granted = self.home.grant(now, page, endpoint, most)?;
        if matches!(granted.kind, LeaseKind::Share(_)) {
            self.queue.push_back(Queued::Shares(ShareEvent::Leased(page)));
        }
        Some(granted)
    }

    /// Returns the strongest lease that the page's word permits.
    fn strongest(&self, found: FrameWord, replica: bool) -> LeaseKind {
        match (found.word.state(), replica) {
            (Some(PageState::Live), _) => LeaseKind::Write,
            (Some(PageState::Frozen), _) if self.bugs.has(Bug::GrantWriteWhileFrozen) => {
                LeaseKind::Write
            }
            (Some(PageState::Shared), true) => {
                let sharing = self.shares.sharing(found.word.page());
                sharing.map_or(LeaseKind::Read, LeaseKind::Share)
            }
            (Some(PageState::Shared), _) if self.bugs.has(Bug::GrantWriteWhileShared) => {
                LeaseKind::Write
            }
            _ => LeaseKind::Read,
        }
    }
}
