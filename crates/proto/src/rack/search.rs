//! The search for the homes of pages of other racks that clients wait for.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{Access, MAX_RACKS, PageId, RackId};
use rackpool_wire::rack::RackAnswer;

use super::{PageWords, RackAction, RackMachine};
use crate::Located;
use crate::Time;
use crate::exchange::Caller;
use crate::lease::{Lease, LeaseKind};
use crate::planted_bugs::{Bug, Bugs};
use crate::share::FoundCopy;

/// The first pause before a request is repeated; each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// A home's answer to a lease request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseAnswer {
    /// A lease was granted.
    Granted {
        /// The lease.
        lease: Lease,
        /// The use of the page, from its slab header.
        usage: u64,
        /// Whether the home executes writes to the page for others.
        forwards: bool,
    },
    /// No lease for this access can be granted now.
    Busy,
    /// The page is not in that rack.
    NotHere,
    /// The page is there and free.
    NotAllocated,
    /// The page was lost on its way there.
    Lost,
    /// The answer is none of these.
    Invalid,
}

/// Pages that clients wait for. Searches do not survive a crash: clients post their requests again
/// to the next daemon.
#[derive(Debug, Default)]
pub(super) struct Searches {
    all: BTreeMap<PageId, Search>,
    /// When this rack last checked for callers that have waited long enough.
    looked: Time,
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
    until: Time,
    /// Set when the caller's time has started again, which happens once.
    begun_anew: bool,
    /// The number of the last question before this caller began to wait. A denial of that or of an
    /// earlier question does not concern this caller: the page may have been allocated since.
    last_question: u64,
}

/// What a search waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A home has this question. Its answer or its end without an answer leaves this state.
    Home(u64),
    /// The metadata server has this question. Its answer leaves this state.
    Server(u64),
    /// After the pause this rack asks the metadata server (`server`) or the known home.
    Pause { until: Time, server: bool },
}

impl Search {
    /// Returns true if a caller reads the page. More pages can be read than written.
    fn reads(&self) -> bool {
        self.callers.iter().any(|waiting| waiting.access == Access::Read)
    }
}

impl Searches {
    /// Returns when the next pause or the next caller's time ends, or when to check whether this
    /// rack has stood still. `lease` is the length of a lease.
    pub(super) fn deadline(&self, lease: Duration) -> Option<Time> {
        let searches = self.all.values();
        let times = searches.flat_map(|search| {
            let pause = match search.step {
                Step::Pause { until, .. } => Some(until),
                Step::Home(_) | Step::Server(_) => None,
            };
            search.callers.iter().map(|waiting| waiting.until).chain(pause)
        });
        Some(times.min()?.min(self.looked.after(lease / 8)))
    }
}

impl<B: Bugs> RackMachine<B> {
    /// Returns the answer for a client about a page of another rack that this rack keeps a replica
    /// of, or whose lease permits the access. Otherwise the shell passes
    /// [`RackEvent::AccessWanted`](super::RackEvent).
    #[must_use]
    pub fn known_access(&self, now: Time, page: PageId, access: Access) -> Option<RackAnswer> {
        let found = self.locations.of(page)?;
        let (home, usage) = (found.home, found.usage);
        if access == Access::Read && !self.copies.is_empty() {
            let copy = self.copies.find(now, page);
            if let Some(FoundCopy { frame, copy }) = copy {
                return Some(RackAnswer::Copied { home, usage, frame, copy: copy.0 });
            }
        }
        let lease = self.lease(now, page).filter(|lease| lease.home == home)?;
        let permits = match (access, lease.kind) {
            (Access::Read, _) | (Access::Write, LeaseKind::Write) => true,
            (Access::Write, LeaseKind::Read) if found.forwards => true,
            (Access::Write, _) => self.bugs.has(Bug::AnswerWritersByReadLease),
        };
        permits.then_some(RackAnswer::Remote { home, usage })
    }

    /// A client waits for access to a page of another rack.
    pub(super) fn access_wanted(
        &mut self,
        now: Time,
        words: &impl PageWords,
        caller: Caller,
        page: PageId,
        access: Access,
    ) {
        if let Some(answer) = self.known_access(now, page, access) {
            return self.actions.push_back(RackAction::Answer { caller, answer });
        }
        self.is_due_stale = true;
        if self.searches.all.is_empty() {
            self.searches.looked = now;
        }
        let (until, begun_anew) = (now.after(self.rules.lease.lease), false);
        let last_question = self.holder.last_question();
        let waiting = Waiting { caller, access, until, begun_anew, last_question };
        let Some(search) = self.searches.all.get_mut(&page) else {
            let (step, trouble) = (Step::Server(0), RackAnswer::MetadataUnreachable);
            let search =
                Search { callers: vec![waiting], step, trouble, pause: PAUSE, named: None };
            self.searches.all.insert(page, search);
            return self.seek(now, words, page);
        };
        let first_reader = access == Access::Read && !search.reads();
        search.callers.push(waiting);
        // The access that writers wait for may take longer.
        let asks_home = matches!(search.step, Step::Home(_) | Step::Pause { server: false, .. });
        if first_reader && asks_home {
            self.seek(now, words, page);
        }
    }

    /// Asks the presumed home of the page, or else the metadata server, if a caller still waits.
    pub(super) fn seek(&mut self, now: Time, words: &impl PageWords, page: PageId) {
        if !self.searches.all.contains_key(&page) {
            return;
        }
        match self.home_of(words, page) {
            // The page has come here: the next translation finds it.
            None if words.find(page).is_some() => self.answer_all(page, RackAnswer::Moved),
            // The page may have moved before its home died.
            Some(home) if self.is_dead(home) => {
                let dead = RackAnswer::RackUnavailable(home);
                if self.bugs.has(Bug::TrustGuessOfTheDead) {
                    return self.answer_all(page, dead);
                }
                self.ask_server(page, dead);
            }
            Some(home) => self.ask_home(now, page, home),
            None => self.ask_server(page, RackAnswer::MetadataUnreachable),
        }
    }

    fn ask_server(&mut self, page: PageId, trouble: RackAnswer) {
        let Some(search) = self.searches.all.get_mut(&page) else { return };
        let question = self.holder.draw();
        (search.step, search.trouble) = (Step::Server(question), trouble);
        self.actions.push_back(RackAction::LocatePage { page, question });
    }

    fn ask_home(&mut self, now: Time, page: PageId, home: RackId) {
        let Some(search) = self.searches.all.get(&page) else { return };
        let access = if search.reads() { Access::Read } else { Access::Write };
        if !self.is_known(home) {
            self.actions.push_back(RackAction::AskForMembers);
        }
        let question = self.ask_for_lease(now, page, home, access);
        self.is_due_stale = true;
        let Some(search) = self.searches.all.get_mut(&page) else { return };
        search.step = Step::Home(question);
        if search.trouble != RackAnswer::PageBusy(home) {
            search.trouble = RackAnswer::RackUnavailable(home);
        }
    }

    /// Requests a lease of a page. Only the answer to the latest request of a page counts.
    pub(super) fn ask_for_lease(
        &mut self,
        now: Time,
        page: PageId,
        home: RackId,
        access: Access,
    ) -> u64 {
        let question = self.holder.ask(now, page);
        let replica = access == Access::Read && self.copies.is_wanted(page);
        let request = RackAction::RequestLease { page, home, question, access, replica };
        self.actions.push_back(request);
        question
    }

    /// The home has executed a write for this rack, and the page does not move: the next writes
    /// need no message.
    pub(super) fn written_by_home(&mut self, now: Time, page: PageId, home: RackId) {
        self.locations.note_unforwarded(page);
        let lease = self.lease(now, page);
        let may_write = lease.is_some_and(|lease| lease.kind == LeaseKind::Write);
        // A second request would make the answer useless that callers already wait for.
        if !may_write && !self.holder.is_asking(page) {
            self.ask_for_lease(now, page, home, Access::Write);
        }
    }

    /// Continues the search after a pause, with the metadata server or with the known home.
    fn pause(&mut self, now: Time, page: PageId, server: bool, trouble: RackAnswer) {
        let Some(search) = self.searches.all.get_mut(&page) else { return };
        let until = now.after(search.pause);
        search.pause = (search.pause * 2).min(LONGEST_PAUSE);
        (search.step, search.trouble) = (Step::Pause { until, server }, trouble);
        self.is_due_stale = true;
    }

    /// Continues the searches whose pause is over, and answers callers that have waited long
    /// enough.
    pub(super) fn drive_searches(&mut self, now: Time, words: &impl PageWords) {
        if self.searches.all.is_empty() {
            return;
        }
        self.is_due_stale = true;
        let (mut late, mut due) = (Vec::new(), Vec::new());
        // If this daemon was stopped long enough to miss a heartbeat, other racks may have cut it
        // off without having been silent. Each waiting caller then gets its whole time again, once.
        let (lease, bugs) = (self.rules.lease.lease, self.bugs);
        let looked = core::mem::replace(&mut self.searches.looked, now);
        let has_stood_still = now > looked.after(lease / 4);
        self.searches.all.retain(|page, search| {
            search.callers.retain_mut(|waiting| {
                if has_stood_still && !waiting.begun_anew {
                    (waiting.until, waiting.begun_anew) = (now.after(lease), true);
                }
                let waits = now < waiting.until || bugs.has(Bug::WaitForHomesWithoutLimit);
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
            self.actions.push_back(RackAction::Answer { caller, answer });
        }
        for (page, server, trouble) in due {
            if server { self.ask_server(page, trouble) } else { self.seek(now, words, page) }
        }
    }

    /// Returns the metadata server's answer about a page as far as it can be right.
    #[must_use]
    pub fn checked_location(&self, page: PageId, located: Located) -> Located {
        match located {
            Located::Home(rack) if rack.0 >= MAX_RACKS => Located::NoSuchPage,
            Located::Home(rack) if rack == self.exchanges.own().rack && self.swap.is_lost(page) => {
                Located::Lost
            }
            located => located,
        }
    }

    /// The metadata server has answered where a page is.
    pub(super) fn page_located(
        &mut self,
        now: Time,
        words: &impl PageWords,
        page: PageId,
        question: u64,
        located: Located,
    ) {
        let own = self.exchanges.own().rack;
        if let Located::Home(home) = located
            && home != own
        {
            self.locations.note_home(page, home);
        }
        let is_asked = |search: &&Search| search.step == Step::Server(question);
        let Some(search) = self.searches.all.get(&page).filter(is_asked) else { return };
        let trouble = search.trouble;
        match located {
            Located::Home(home) if home != own && self.is_dead(home) => {
                self.deny(page, question, RackAnswer::RackUnavailable(home));
                self.seek(now, words, page);
            }
            Located::Home(home) if home != own => {
                if let Some(search) = self.searches.all.get_mut(&page) {
                    search.named = Some(home);
                }
                self.ask_home(now, page, home);
            }
            Located::Home(_) if words.find(page).is_some() => {
                self.answer_all(page, RackAnswer::Moved);
            }
            // The page is moving here or away, or the answer is old.
            Located::Home(own) => self.pause(now, page, true, RackAnswer::PageBusy(own)),
            Located::NoSuchPage | Located::Lost => {
                let is_lost = located == Located::Lost;
                let answer = if is_lost { RackAnswer::PageLost } else { RackAnswer::NotAllocated };
                self.deny(page, question, answer);
                self.seek(now, words, page);
            }
            Located::Unreachable => self.answer_all(page, trouble),
        }
    }

    /// A search has an answer of a home. The leases and locations were updated before.
    pub(super) fn continue_search(
        &mut self,
        now: Time,
        words: &impl PageWords,
        page: PageId,
        (question, home): (u64, RackId),
        answer: &LeaseAnswer,
    ) {
        if self.bugs.has(Bug::AskAtEachAnswer) && self.searches.all.contains_key(&page) {
            self.seek(now, words, page);
        }
        let Some(search) = self.searches.all.get(&page) else { return };
        let is_latest = search.step == Step::Home(question) || self.bugs.has(Bug::AskAtEachAnswer);
        let was_named = search.named == Some(home);
        let busy = RackAnswer::PageBusy(home);
        match answer {
            LeaseAnswer::Granted { .. } => {
                let answered = self.answer_permitted(now, page);
                match self.searches.all.get_mut(&page) {
                    // Readers were answered, and forced the weaker request.
                    Some(search) if is_latest && answered => {
                        search.trouble = busy;
                        self.seek(now, words, page);
                    }
                    // The lease was revoked before it arrived, or has expired.
                    Some(_) if is_latest => self.pause(now, page, false, busy),
                    _ => {}
                }
            }
            LeaseAnswer::NotAllocated | LeaseAnswer::Lost => {
                let is_lost = *answer == LeaseAnswer::Lost;
                let denial = if is_lost { RackAnswer::PageLost } else { RackAnswer::NotAllocated };
                self.deny(page, question, denial);
                if is_latest {
                    self.seek(now, words, page);
                }
            }
            // The end of the latest question is still to come.
            _ if !is_latest => {}
            LeaseAnswer::NotHere if was_named => self.pause(now, page, true, busy),
            LeaseAnswer::NotHere => self.ask_server(page, busy),
            LeaseAnswer::Busy => self.pause(now, page, false, busy),
            LeaseAnswer::Invalid => self.answer_all(page, RackAnswer::RackUnavailable(home)),
        }
    }

    /// A lease request will not be answered.
    pub(super) fn lease_unanswered(
        &mut self,
        now: Time,
        words: &impl PageWords,
        page: PageId,
        question: u64,
    ) {
        self.holder.unanswered(page, question);
        let search = self.searches.all.get(&page);
        if search.is_some_and(|search| search.step == Step::Home(question))
            && !self.bugs.has(Bug::ForgetEndedRequest)
        {
            self.seek(now, words, page);
        }
    }

    /// Answers the callers of a page that its lease permits. Returns true if there were any.
    pub(super) fn answer_permitted(&mut self, now: Time, page: PageId) -> bool {
        let [read, write] =
            [Access::Read, Access::Write].map(|access| self.known_access(now, page, access));
        self.answer_some(page, |waiting| if waiting.access == Access::Read { read } else { write })
    }

    /// Answers the callers that the denial concerns: the page does not exist, or its home is dead.
    fn deny(&mut self, page: PageId, question: u64, answer: RackAnswer) {
        let is_for_all = self.bugs.has(Bug::DenyLaterCallers);
        self.answer_some(page, |waiting| {
            (is_for_all || waiting.last_question < question).then_some(answer)
        });
    }

    fn answer_all(&mut self, page: PageId, answer: RackAnswer) {
        self.answer_some(page, |_| Some(answer));
    }

    /// Answers callers of a page, and ends the search if none is left. Returns true if there were
    /// any.
    fn answer_some(
        &mut self,
        page: PageId,
        answer: impl Fn(&Waiting) -> Option<RackAnswer>,
    ) -> bool {
        let Some(search) = self.searches.all.get_mut(&page) else { return false };
        let before = search.callers.len();
        let actions = &mut self.actions;
        search.callers.retain(|waiting| {
            let answer = answer(waiting);
            let caller = waiting.caller;
            actions.extend(answer.map(|answer| RackAction::Answer { caller, answer }));
            answer.is_none()
        });
        let answered = search.callers.len() < before;
        if search.callers.is_empty() {
            self.searches.all.remove(&page);
        }
        answered
    }

    /// Returns the questions that searches wait for.
    pub fn awaited_questions(&self) -> impl Iterator<Item = u64> {
        self.searches.all.values().filter_map(|search| match search.step {
            Step::Home(question) | Step::Server(question) => Some(question),
            Step::Pause { .. } => None,
        })
    }
}
