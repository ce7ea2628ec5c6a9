//! Pages of other racks, as clients ask for them: the rack's machine searches for their homes, and
//! this module sends its questions and passes the answers on.

use rackpool_fabric::EndpointId;
use rackpool_model::{Access, PageId, RackId};
use rackpool_proto::lease::{Lease, LeaseId, LeaseKind};
use rackpool_proto::rack::{LeaseAnswer, RackEvent};
use rackpool_proto::share::SharingId;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::clients::Caller;
use super::leases::token;
use super::peers::Purpose;
use super::{ControlNotification, DataPlane, Located};
use crate::data_plane::error::Result;

impl DataPlane {
    /// Requests the members at once if `rack` is unknown.
    pub(super) fn meet(&self, rack: RackId) {
        if !self.machine.is_known(rack) {
            self.notify(ControlNotification::Meet);
        }
    }

    /// Answers where a page of another rack is, once its home is known and has granted a lease.
    pub(super) fn translate_remote(&mut self, caller: Caller, page: PageId, access: Access) {
        let now = self.cached_now();
        match self.machine.known_access(self.at(now), page, access) {
            Some(answer) => self.clients.finish(caller, answer),
            None => self.machine.handle(RackEvent::AccessWanted { caller, page, access }),
        }
    }

    /// The metadata server has answered where a page is. `question` is the number of the machine's
    /// question, or 0.
    pub(super) fn located(&mut self, page: PageId, question: u64, located: Located) {
        let home = self.machine.checked_location(page, located);
        if let (Located::Home(rack), Located::NoSuchPage) = (located, home) {
            tracing::error!("{page} is said to be in {rack}, which can't be: it is not found");
        }
        if let Located::Home(home) = home {
            self.meet(home);
        }
        self.machine.handle(RackEvent::PageLocated { page, question, located });
    }

    /// Requests a lease of a page from its home.
    pub(super) fn ask_for_lease(
        &mut self,
        page: PageId,
        home: RackId,
        question: u64,
        access: Access,
        keep: bool,
    ) -> Result<()> {
        let request = PeerRequest::Lookup { page, question, access, keep };
        let deadline = self.now() + self.lease;
        self.ask(home, request, Purpose::Lease { page, question }, deadline)
    }

    /// A home has answered a lease request that was sent over this endpoint.
    pub(super) fn lease_answered(
        &mut self,
        page: PageId,
        question: u64,
        (home, endpoint): (RackId, EndpointId),
        reply: &PeerReply,
    ) {
        let answer = match *reply {
            PeerReply::Location { lease, frame, epoch, usage, writable, forwards, sharing } => {
                let kind = match sharing {
                    _ if writable => LeaseKind::Write,
                    Some(sharing) => LeaseKind::Share(SharingId(sharing)),
                    None => LeaseKind::Read,
                };
                let (id, endpoint) = (LeaseId(lease), token(endpoint));
                let lease = Lease { id, kind, home, endpoint, frame, epoch };
                LeaseAnswer::Granted { lease, usage, forwards }
            }
            PeerReply::Busy => LeaseAnswer::Busy,
            PeerReply::NotHere => LeaseAnswer::NotHere,
            PeerReply::NotAllocated => LeaseAnswer::NotAllocated,
            PeerReply::Lost => LeaseAnswer::Lost,
            ref other => {
                tracing::error!("{home} answered where {page} is with {other:?}");
                LeaseAnswer::Invalid
            }
        };
        self.machine.handle(RackEvent::LeaseAnswered { page, question, home, answer });
    }
}
