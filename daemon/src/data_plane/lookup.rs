//! Pages of other racks: finding their homes and leasing their locations.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_fabric::EndpointId;
use rackpool_model::{Access, MAX_RACKS, PageId, RackId};
use rackpool_proto::lease::{Lease, LeaseId, LeaseKind};
use rackpool_proto::share::SharingId;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::RackAnswer;

use super::clients::Caller;
use super::leases::token;
use super::peers::Purpose;
use super::{ControlNotification, DataPlane, Located};

/// A home's answer to a request for a lease of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseAnswer<'a> {
    pub(super) page: PageId,
    /// The number of the request.
    pub(super) question: u64,
    pub(super) home: RackId,
    /// The endpoint over which the request was sent.
    pub(super) endpoint: EndpointId,
    pub(super) reply: &'a PeerReply,
}

/// The first pause before a request is repeated; each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Pages that clients wait for.
#[derive(Debug, Default)]
pub(super) struct Searches {
    all: BTreeMap<PageId, Search>,
    /// When this daemon last checked for callers that have waited long enough.
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Search {
    callers: Vec<Waiting>,
    step: Step,
    /// The answer to callers that have waited long enough.
    trouble: RackAnswer,
    pause: Duration,
    /// The home that the metadata server named last. If that rack does not have the page, the
    /// server is asked again only after a pause.
    named: Option<RackId>,
}

/// A caller that waits for access to a page, and the end of its wait.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    caller: Caller,
    access: Access,
    until: Instant,
    /// Set when the caller's time has started again, which happens once.
    begun_anew: bool,
    /// The first request sent to a home, and whether the metadata server was asked, since this
    /// caller began to wait. A denial of an earlier request does not concern this caller: the page
    /// may have been allocated since.
    home_asked: Option<u64>,
    server_asked: bool,
}

/// The source of an answer that a page does not exist.
#[derive(Clone, Copy, Debug)]
enum Denial {
    /// A home, in answer to the request with this number. Numbers increase.
    Home(u64),
    Server,
}

impl Denial {
    /// Returns true if the denied request was sent after this caller began to wait.
    fn concerns(self, waiting: &Waiting) -> bool {
        match self {
            Self::Home(question) => waiting.home_asked.is_some_and(|first| first <= question),
            Self::Server => waiting.server_asked,
        }
    }
}

impl Search {
    /// Returns true if a caller reads the page. More pages can be read than written.
    fn reads(&self) -> bool {
        self.callers.iter().any(|waiting| waiting.access == Access::Read)
    }
}

/// The party whose action a search waits for. Searches do not survive a crash: clients post their
/// requests again to the next daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A home has the request. Its answer or the end of its endpoint leaves this state.
    Home,
    /// The metadata server has the request. `located` leaves this state.
    Server,
    /// This daemon: after the pause it asks the metadata server (`server`) or the known home.
    Pause { until: Instant, server: bool },
}

impl Searches {
    pub(super) fn has_deadlines(&self) -> bool {
        !self.all.is_empty()
    }
}

impl DataPlane {
    /// Returns the home of a page as far as this rack knows: where the page was last found, or
    /// where it was born. `None` for a page in this rack, and for a page that was born here and has
    /// left.
    pub(super) fn home_of(&self, page: PageId) -> Option<RackId> {
        if self.slab.lookup(page).is_some() {
            return None;
        }
        if let Some(found) = self.machine.locations().of(page) {
            return Some(found.home);
        }
        let home = self.members.iter().find(|member| member.pages.contains(page))?;
        (home.rack != self.rack.geometry.rack).then_some(home.rack)
    }

    /// Returns true if the rack's lease with the metadata server is known to have expired.
    pub(super) fn is_dead(&self, rack: RackId) -> bool {
        self.members.iter().any(|member| member.rack == rack && !member.alive)
    }

    /// Answers where a page of another rack is, once its home is known and has granted a lease.
    pub(super) fn translate_remote(
        &mut self,
        caller: Caller,
        page: PageId,
        access: Access,
    ) -> anyhow::Result<()> {
        let now = self.cached_now();
        let copied = self.copied(now, page).filter(|_| access == Access::Read);
        if let Some(answer) = copied.or_else(|| self.leased(now, page, access)) {
            self.clients.finish(caller, answer);
            return Ok(());
        }
        let until = now + self.lease;
        let (home_asked, begun_anew) = (None, false);
        let waiting =
            Waiting { caller, access, until, begun_anew, home_asked, server_asked: false };
        if self.searches.all.is_empty() {
            self.searches.looked = Some(now);
        }
        if let Some(search) = self.searches.all.get_mut(&page) {
            let first_reader = access == Access::Read && !search.reads();
            search.callers.push(waiting);
            // The access that writers wait for may take longer.
            let asks_home = matches!(search.step, Step::Home | Step::Pause { server: false, .. });
            return if first_reader && asks_home { self.seek(page) } else { Ok(()) };
        }
        let (step, trouble) = (Step::Server, RackAnswer::MetadataUnreachable);
        let search = Search { callers: vec![waiting], step, trouble, pause: PAUSE, named: None };
        self.searches.all.insert(page, search);
        self.seek(page)
    }

    /// Returns the page's lease if it is valid and permits this access.
    pub(super) fn lease(&self, now: Instant, page: PageId, access: Access) -> Option<Lease> {
        let lease = self.machine.lease(self.at(now), page)?;
        (access == Access::Read || lease.kind == LeaseKind::Write).then_some(lease)
    }

    /// Returns the answer for a page whose lease permits this access.
    fn leased(&self, now: Instant, page: PageId, access: Access) -> Option<RackAnswer> {
        let found = self.machine.locations().of(page)?;
        let lease = self.lease(now, page, access);
        let is_good = lease.is_some_and(|lease| lease.home == found.home)
            || access == Access::Write
                && self.machine.forwarding_home(self.at(now), page).is_some();
        is_good.then_some(RackAnswer::Remote { home: found.home, usage: found.usage })
    }

    /// Asks the presumed home of the page, or else the metadata server, if a caller still waits.
    pub(super) fn seek(&mut self, page: PageId) -> anyhow::Result<()> {
        if !self.searches.all.contains_key(&page) {
            return Ok(());
        }
        match self.home_of(page) {
            // The page has come here: the next translation finds it.
            None if self.slab.lookup(page).is_some() => {
                self.answer_search(page, RackAnswer::Moved);
                Ok(())
            }
            // The page may have moved before its home died.
            Some(home) if self.is_dead(home) => {
                self.ask_server(page, RackAnswer::RackUnavailable(home));
                Ok(())
            }
            Some(home) => self.ask_home(page, home),
            None => {
                self.ask_server(page, RackAnswer::MetadataUnreachable);
                Ok(())
            }
        }
    }

    fn ask_server(&mut self, page: PageId, trouble: RackAnswer) {
        if let Some(search) = self.searches.all.get_mut(&page) {
            (search.step, search.trouble) = (Step::Server, trouble);
            search.callers.iter_mut().for_each(|waiting| waiting.server_asked = true);
            self.notify(ControlNotification::Locate(page));
        }
    }

    fn ask_home(&mut self, page: PageId, home: RackId) -> anyhow::Result<()> {
        if self.is_dead(home) {
            self.answer_search(page, RackAnswer::RackUnavailable(home));
            return Ok(());
        }
        let mut access = Access::Write;
        if let Some(search) = self.searches.all.get_mut(&page) {
            search.step = Step::Home;
            if search.reads() {
                access = Access::Read;
            }
            if search.trouble != RackAnswer::PageBusy(home) {
                search.trouble = RackAnswer::RackUnavailable(home);
            }
        }
        self.meet(home);
        let now = self.now();
        let question = self.machine.ask(self.at(now), page);
        let search = self.searches.all.get_mut(&page);
        for waiting in search.into_iter().flat_map(|search| &mut search.callers) {
            waiting.home_asked.get_or_insert(question);
        }
        let purpose = Purpose::Lookup { page, question };
        let keep = access == Access::Read && self.machine.copies().is_wanted(page);
        let request = PeerRequest::Lookup { page, question, access, keep };
        self.ask(home, request, purpose, now + self.lease)
    }

    /// Continues the search after a pause, with the metadata server or with the known home.
    fn pause(&mut self, page: PageId, server: bool, trouble: RackAnswer) {
        let now = self.now();
        if let Some(search) = self.searches.all.get_mut(&page) {
            let until = now + search.pause;
            search.pause = (search.pause * 2).min(LONGEST_PAUSE);
            (search.step, search.trouble) = (Step::Pause { until, server }, trouble);
        }
    }

    /// Continues the searches whose pause is over, and answers callers that have waited long
    /// enough.
    pub(super) fn drive_searches(&mut self, now: Instant) -> anyhow::Result<()> {
        let (mut late, mut due) = (Vec::new(), Vec::new());
        // If this daemon was stopped long enough to miss a heartbeat, other racks may have cut it
        // off without having been silent. Each waiting caller then gets its whole time again, once.
        let (lease, looked) = (self.lease, self.searches.looked.replace(now));
        let has_stood_still = looked.is_some_and(|then| now > then + lease / 4);
        self.searches.all.retain(|page, search| {
            search.callers.retain_mut(|waiting| {
                if has_stood_still && !waiting.begun_anew {
                    (waiting.until, waiting.begun_anew) = (now + lease, true);
                }
                let waits = now <= waiting.until;
                if !waits {
                    late.push((waiting.caller, search.trouble));
                }
                waits
            });
            if let Step::Pause { until, server } = search.step
                && now >= until
            {
                due.push((*page, server, search.trouble));
            }
            !search.callers.is_empty()
        });
        for (caller, answer) in late {
            self.clients.finish(caller, answer);
        }
        for (page, server, trouble) in due {
            if server { self.ask_server(page, trouble) } else { self.seek(page)? }
        }
        Ok(())
    }

    /// The metadata server has answered where a page is.
    pub(super) fn located(&mut self, page: PageId, home: Located) -> anyhow::Result<()> {
        let own = self.rack.geometry.rack;
        let home = match home {
            Located::Home(rack) if rack.0 >= MAX_RACKS => {
                tracing::error!("{page} is said to be in {rack}, which can't be: it is not found");
                Located::NoSuchPage
            }
            Located::Home(home) if home == own && self.swap_has_lost(page) => Located::Lost,
            home => home,
        };
        self.exchange_page_located(page, home);
        self.reservation_page_located(page, home)?;
        if let Located::Home(home) = home
            && home != own
        {
            self.machine.locations_mut().note_home(page, home);
        }
        let search = self.searches.all.get(&page).filter(|search| search.step == Step::Server);
        let Some(trouble) = search.map(|search| search.trouble) else { return Ok(()) };
        match home {
            Located::Home(home) if home != own => {
                if let Some(search) = self.searches.all.get_mut(&page) {
                    search.named = Some(home);
                }
                return self.ask_home(page, home);
            }
            Located::Home(_) if self.slab.lookup(page).is_some() => {
                self.answer_search(page, RackAnswer::Moved);
            }
            // The page is moving here or away, or the answer is old.
            Located::Home(own) => self.pause(page, true, RackAnswer::PageBusy(own)),
            Located::NoSuchPage => {
                return self.deny(page, Denial::Server, RackAnswer::NotAllocated);
            }
            Located::Lost => return self.deny(page, Denial::Server, RackAnswer::PageLost),
            Located::Unreachable => self.answer_search(page, trouble),
        }
        Ok(())
    }

    /// Requests the members at once if `rack` is unknown: the rack joined after the last heartbeat,
    /// or this daemon has had none yet.
    pub(super) fn meet(&self, rack: RackId) {
        if self.members.iter().all(|member| member.rack != rack) {
            self.notify(ControlNotification::Meet);
        }
    }

    /// A home has answered the request for a page that callers wait for.
    pub(super) fn lookup_answered(&mut self, answer: LeaseAnswer<'_>) -> anyhow::Result<()> {
        self.renewed(answer, LeaseKind::Write)?;
        let LeaseAnswer { page, question, home, reply, .. } = answer;
        match reply {
            PeerReply::Location { .. } => return self.answer_leased(page, home),
            PeerReply::NotAllocated => {
                return self.deny(page, Denial::Home(question), RackAnswer::NotAllocated);
            }
            PeerReply::Lost => {
                return self.deny(page, Denial::Home(question), RackAnswer::PageLost);
            }
            PeerReply::NotHere => {
                let trouble = RackAnswer::PageBusy(home);
                let was_named = |search: &Search| search.named == Some(home);
                if self.searches.all.get(&page).is_some_and(was_named) {
                    self.pause(page, true, trouble);
                } else {
                    self.ask_server(page, trouble);
                }
            }
            PeerReply::Busy => self.pause(page, false, RackAnswer::PageBusy(home)),
            other => {
                tracing::error!("{home} answered where {page} is with {other:?}");
                self.answer_search(page, RackAnswer::RackUnavailable(home));
            }
        }
        Ok(())
    }

    /// Answers the callers that the page's lease permits. For the others the home is asked again:
    /// at once if readers were answered, which forced the weaker request; after a pause if the
    /// lease was revoked before it arrived or has expired.
    fn answer_leased(&mut self, page: PageId, home: RackId) -> anyhow::Result<()> {
        let Some(search) = self.searches.all.get(&page) else { return Ok(()) };
        let before = search.callers.len();
        self.finish_leased(page);
        let Some(search) = self.searches.all.get_mut(&page) else { return Ok(()) };
        if search.callers.len() < before {
            search.trouble = RackAnswer::PageBusy(home);
            return self.seek(page);
        }
        self.pause(page, false, RackAnswer::PageBusy(home));
        Ok(())
    }

    /// Answers the callers of a page that its lease permits.
    pub(super) fn finish_leased(&mut self, page: PageId) {
        let now = self.now();
        let [read, write] = [Access::Read, Access::Write].map(|a| self.leased(now, page, a));
        let Some(search) = self.searches.all.get_mut(&page) else { return };
        let clients = &mut self.clients;
        search.callers.retain(|waiting| {
            let answer = if waiting.access == Access::Read { read } else { write };
            if let Some(answer) = answer {
                clients.finish(waiting.caller, answer);
            }
            answer.is_none()
        });
        if search.callers.is_empty() {
            self.searches.all.remove(&page);
        }
    }

    /// Answers the callers that the denial concerns: the page does not exist. Repeats the request
    /// for the others.
    fn deny(&mut self, page: PageId, denial: Denial, answer: RackAnswer) -> anyhow::Result<()> {
        let Some(search) = self.searches.all.get_mut(&page) else { return Ok(()) };
        let clients = &mut self.clients;
        search.callers.retain(|waiting| {
            let is_meant = denial.concerns(waiting);
            if is_meant {
                clients.finish(waiting.caller, answer);
            }
            !is_meant
        });
        if search.callers.is_empty() {
            self.searches.all.remove(&page);
            return Ok(());
        }
        self.seek(page)
    }

    /// Requests another lease of a page in use before the lease ends. Does nothing if there is no
    /// connection.
    pub(super) fn renew(&mut self, page: PageId, home: RackId, keep: bool) -> anyhow::Result<()> {
        let Some(endpoint) = self.peers.connected_endpoint(home) else { return Ok(()) };
        let now = self.now();
        let question = self.machine.ask(self.at(now), page);
        let purpose = Purpose::Renew { page, question };
        let request = PeerRequest::Lookup { page, question, access: Access::Read, keep };
        self.ask_over(endpoint, request, purpose, now + self.lease)
    }

    /// Requests a lease of a page that its home has just written for this rack, so that the next
    /// writes need no message. Does nothing if there is no connection.
    pub(super) fn lease_to_write(&mut self, page: PageId, home: RackId) -> anyhow::Result<()> {
        let now = self.now();
        // Only the answer to the latest request of a page counts: a second request would make the
        // answer that callers already wait for useless.
        if self.lease(now, page, Access::Write).is_some() || self.peers.is_asked_for(page) {
            return Ok(());
        }
        let Some(endpoint) = self.peers.connected_endpoint(home) else { return Ok(()) };
        let question = self.machine.ask(self.at(now), page);
        let purpose = Purpose::Renew { page, question };
        let request = PeerRequest::Lookup { page, question, access: Access::Write, keep: false };
        self.ask_over(endpoint, request, purpose, now + self.lease)
    }

    /// Records a home's answer about a page, whatever the purpose of the request. `for_writing` is
    /// the kind of a lease that permits writing.
    pub(super) fn renewed(
        &mut self,
        answer: LeaseAnswer<'_>,
        for_writing: LeaseKind,
    ) -> anyhow::Result<()> {
        let LeaseAnswer { page, question, home, endpoint, reply } = answer;
        match *reply {
            PeerReply::Location { lease, frame, epoch, usage, writable, forwards, sharing } => {
                self.machine.locations_mut().note_found(page, home, usage, forwards);
                let (id, over) = (LeaseId(lease), token(endpoint));
                let kind = match sharing {
                    _ if writable => for_writing,
                    Some(sharing) => LeaseKind::Share(SharingId(sharing)),
                    None => LeaseKind::Read,
                };
                let lease = Lease { id, kind, home, endpoint: over, frame, epoch };
                return self.granted(page, question, lease);
            }
            PeerReply::NotHere => self.machine.forget(page),
            PeerReply::NotAllocated => self.machine.drop_lease(page),
            _ => {}
        }
        Ok(())
    }

    /// Answers all callers of a page.
    pub(super) fn answer_search(&mut self, page: PageId, answer: RackAnswer) {
        let search = self.searches.all.remove(&page);
        for waiting in search.into_iter().flat_map(|search| search.callers) {
            self.clients.finish(waiting.caller, answer);
        }
    }
}
