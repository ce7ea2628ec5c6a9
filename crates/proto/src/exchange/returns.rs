//! Objects that have to be freed and are in no exchange yet: the home of each one's page is found,
//! or waited for, and then the objects are freed here or by an exchange with that home.
//!
//! The objects stay where they are recorded, in a client's cells or in the record of a rack that
//! does not have their page any more, until they are free or in another record. After a crash the
//! search begins anew from there.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{ClientId, GlobalAddr, PageId, RackId};

use super::resume::distinct;
use super::{
    AskedState, CallResult, Caller, ClientThread, ExchangeAction, Exchanges, ObjectView, Obstacle,
    Peer, Place,
};
use crate::Located;
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// Where an object is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// In the cells of a client's thread.
    Cells(ClientThread),
    /// In the requester's record of this rack, whose state is `Moved`.
    Record(RackId),
}

/// What objects of a page wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// For their page to come to rest; it is looked at when its word changes, and at this time.
    Page(Time),
    /// For the metadata server, which is asked again at this time.
    Home(Time),
    /// For the record of their page's home.
    Queued(RackId),
}

/// Objects of one page that have to be freed.
#[derive(Debug)]
pub(super) struct Return {
    /// Its place in the order of arrival.
    pub(super) number: u64,
    pub(super) source: Source,
    /// The release that waits for it.
    release: Option<u64>,
    page: PageId,
    pub(super) addrs: Vec<GlobalAddr>,
    pub(super) step: Step,
}

/// A client's request to free objects.
#[derive(Debug)]
pub(super) struct Release {
    caller: Caller,
    refused: u64,
    /// The number of returns and exchanges that it waits for.
    pieces: usize,
    /// Why some of the objects stay in the outbox.
    obstacle: Option<Obstacle>,
    pub(super) deadline: Time,
}

impl Return {
    pub(super) const fn due(&self) -> Option<Time> {
        match self.step {
            Step::Page(at) | Step::Home(at) => Some(at),
            Step::Queued(_) => None,
        }
    }

    /// Returns when the caller is told that the objects stay in the outbox, if they wait for
    /// another exchange to end: a call does not wait longer than those before it.
    pub(super) fn gives_up_at(&self, peers: &BTreeMap<RackId, Peer>) -> Option<Time> {
        let Step::Queued(rack) = self.step else { return None };
        let peer = peers.get(&rack).filter(|peer| peer.asked.state != AskedState::Idle)?;
        self.release.map(|_| peer.overdue_at)
    }

    pub(super) fn page_changed(&mut self, page: PageId) {
        if let Step::Page(at) = &mut self.step
            && self.page == page
        {
            *at = Time::ZERO;
        }
    }

    /// Returns true if the cells of a client that has gone hold the objects.
    pub(super) fn is_of(&self, client: ClientId) -> bool {
        let is_of = matches!(self.source, Source::Cells(owner) if owner.client == client);
        is_of && self.release.is_none()
    }

    pub(super) const fn is_recorded(&self) -> bool {
        matches!(self.source, Source::Record(_))
    }

    /// Returns what objects of one exchange have in common.
    pub(super) const fn key(&self) -> (Source, Option<u64>) {
        (self.source, self.release)
    }
}

impl Source {
    const fn client(self) -> Option<ClientId> {
        match self {
            Self::Cells(owner) => Some(owner.client),
            Self::Record(_) => None,
        }
    }
}

impl<B: Bugs> Exchanges<B> {
    pub(super) fn return_objects(
        &mut self,
        now: Time,
        owner: ClientThread,
        caller: Option<Caller>,
        addrs: Vec<GlobalAddr>,
        refused: u64,
    ) {
        let release = caller.map(|caller| {
            let (number, deadline) = (self.number(), now.after(self.rules.timeout));
            let release = Release { caller, refused, pieces: 0, obstacle: None, deadline };
            self.releases.insert(number, release);
            number
        });
        let source = Source::Cells(owner);
        let (pages, wrong) = self.by_page(addrs);
        if !wrong.is_empty() {
            self.strike(source, &wrong);
        }
        // Counted until all pieces are known.
        self.piece_began(release);
        for (page, addrs) in pages {
            self.piece_began(release);
            let (number, step) = (self.number(), Step::Page(now));
            self.returns.push(Return { number, source, release, page, addrs, step });
        }
        self.piece_ended(release, wrong.len() as u64);
        self.report_returned(owner.client, release);
    }

    fn by_page(
        &self,
        addrs: Vec<GlobalAddr>,
    ) -> (BTreeMap<PageId, Vec<GlobalAddr>>, Vec<GlobalAddr>) {
        let mut pages = BTreeMap::<PageId, Vec<GlobalAddr>>::new();
        let mut wrong = Vec::new();
        for addr in addrs {
            match self.page(addr) {
                Some(page) => pages.entry(page).or_default().push(addr),
                None => wrong.push(addr),
            }
        }
        (pages, wrong)
    }

    /// Handles the answer of a rack that has freed all objects of its record but these.
    pub(super) fn objects_moved(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        rack: RackId,
        moved: &[GlobalAddr],
    ) {
        let overdue_at = now.after(self.rules.timeout);
        let peer = self.peers.entry(rack).or_default();
        peer.overdue_at = overdue_at;
        let asked = &mut peer.asked;
        // In the record's order, so that each remaining object stays in the record throughout.
        let page_size = self.rules.page_size;
        let left = distinct(core::mem::take(&mut asked.addrs), |addr| {
            moved.contains(&addr) && addr.page(page_size).is_some()
        });
        if left.is_empty() || self.bugs.has(Bug::DropMoved) {
            return self.end(now, view, rack);
        }
        asked.addrs.clone_from(&left);
        self.store_asked(rack, AskedState::Moved);
        self.seek_moved(now, rack, left);
    }

    /// Asks the metadata server for the homes of the objects in a record.
    pub(super) fn seek_moved(&mut self, now: Time, rack: RackId, addrs: Vec<GlobalAddr>) {
        for (page, addrs) in self.by_page(addrs).0 {
            let (number, source) = (self.number(), Source::Record(rack));
            let step = Step::Home(now.after(self.rules.again));
            self.returns.push(Return { number, source, release: None, page, addrs, step });
            self.act(ExchangeAction::Locate(page));
        }
    }

    /// Returns true if the object is still recorded there. Otherwise it was freed by another
    /// exchange.
    pub(super) fn has(&self, view: &impl ObjectView, source: Source, addr: GlobalAddr) -> bool {
        match source {
            Source::Cells(owner) => view.holds(owner, addr),
            Source::Record(rack) => self.peers.get(&rack).is_some_and(|peer| {
                peer.asked.state == AskedState::Moved && peer.asked.addrs.contains(&addr)
            }),
        }
    }

    /// Frees the objects if their page is here, or passes them on.
    fn look_at(&mut self, now: Time, view: &impl ObjectView, mut one: Return) {
        one.addrs.retain(|addr| self.has(view, one.source, *addr));
        if one.addrs.is_empty() {
            return self.returned(now, view, &one, 0);
        }
        match view.place(one.page) {
            Place::Moving if !self.bugs.has(Bug::FreeInMovingPage) => {
                self.act(ExchangeAction::NeedPage(one.page));
                one.step = Step::Page(now.after(self.rules.again));
                self.returns.push(one);
            }
            // Freed first, then removed: a daemon killed in between leaves free objects, which its
            // successor removes before it allocates anything.
            Place::Here | Place::Moving => {
                let client = one.source.client();
                let mut refused = 0;
                for addr in &one.addrs {
                    if view.may_free(*addr, client) {
                        self.act(ExchangeAction::Free { addr: *addr, client });
                    } else {
                        refused += 1;
                        if let Some(client) = client.filter(|_| one.release.is_none()) {
                            self.act(ExchangeAction::ReportUnused { addr: *addr, client });
                        }
                    }
                }
                self.returned(now, view, &one, refused);
            }
            Place::Lost => self.returned(now, view, &one, one.addrs.len() as u64),
            Place::Elsewhere => match view.home_of(one.page) {
                Some(home) => self.queue(one, home),
                None => {
                    self.act(ExchangeAction::Locate(one.page));
                    one.step = Step::Home(now.after(self.rules.again));
                    self.returns.push(one);
                }
            },
        }
    }

    fn queue(&mut self, mut one: Return, home: RackId) {
        one.step = Step::Queued(home);
        self.returns.push(one);
    }

    /// Begins exchanges for the returns that are queued, unless others may join them at once.
    pub(super) fn begin_queued(&mut self, now: Time, view: &impl ObjectView) {
        if self.returns.iter().any(|one| one.due().is_some_and(|at| now >= at)) {
            return;
        }
        let home = |one: &Return| match one.step {
            Step::Queued(home) => Some(home),
            Step::Page(_) | Step::Home(_) => None,
        };
        let homes: BTreeSet<RackId> = self.returns.iter().filter_map(home).collect();
        homes.into_iter().for_each(|home| self.begin_next(now, view, home));
    }

    /// The objects are freed, or don't exist: they are removed from where they are recorded.
    fn returned(&mut self, now: Time, view: &impl ObjectView, one: &Return, refused: u64) {
        self.strike(one.source, &one.addrs);
        self.piece_ended(one.release, refused);
        match one.source {
            Source::Cells(owner) => self.report_returned(owner.client, one.release),
            Source::Record(rack) => self.end_if_empty(now, view, rack),
        }
    }

    /// Removes objects from where they are recorded.
    pub(super) fn strike(&mut self, source: Source, addrs: &[GlobalAddr]) {
        match source {
            _ if addrs.is_empty() => {}
            Source::Cells(owner) => self.act(ExchangeAction::Strike(owner, addrs.to_vec())),
            Source::Record(rack) => {
                let asked = &mut self.peers.entry(rack).or_default().asked;
                asked.addrs.retain(|addr| !addrs.contains(addr));
                self.store_asked(rack, AskedState::Moved);
            }
        }
    }

    /// Ends the state `Moved` if the record holds nothing any more.
    pub(super) fn end_if_empty(&mut self, now: Time, view: &impl ObjectView, rack: RackId) {
        let peer = self.peers.entry(rack).or_default();
        if peer.asked.state == AskedState::Moved && peer.asked.addrs.is_empty() {
            self.end(now, view, rack);
        }
    }

    /// Returns the number of the first return for which an exchange with the rack can begin.
    pub(super) fn first_return_to(&self, rack: RackId, is_moved: bool) -> Option<u64> {
        let is_meant =
            |one: &&Return| one.step == Step::Queued(rack) && (!is_moved || one.is_recorded());
        self.returns.iter().filter(is_meant).map(|one| one.number).min()
    }

    /// Handles the metadata server's answer about a page.
    pub(super) fn located(
        &mut self,
        now: Time,
        view: &impl ObjectView,
        page: PageId,
        home: Located,
    ) {
        let asks = |one: &mut Return| one.page == page && matches!(one.step, Step::Home(_));
        let asking: Vec<Return> = self.returns.extract_if(.., asks).collect();
        for mut one in asking {
            match home {
                Located::Home(home) if home != self.own.rack => self.queue(one, home),
                Located::Home(_) => {
                    let is_here = view.place(page) != Place::Elsewhere;
                    // If it is not here, it is coming, or the answer is old.
                    let wait = if is_here { Duration::ZERO } else { self.rules.again };
                    one.step = Step::Page(now.after(wait));
                    self.returns.push(one);
                }
                Located::NoSuchPage | Located::Lost => {
                    self.returned(now, view, &one, one.addrs.len() as u64);
                }
                Located::Unreachable if one.release.is_some() => {
                    self.piece_kept(one.release, Obstacle::MetadataUnreachable);
                }
                Located::Unreachable => {
                    one.step = Step::Home(now.after(self.rules.again));
                    self.returns.push(one);
                }
            }
        }
    }

    /// Looks at one return that is due: the actions for it are executed before the next one is
    /// looked at, since both may be about the same object.
    pub(super) fn look_at_returns(&mut self, now: Time, view: &impl ObjectView) {
        let is_due = |one: &Return| one.due().is_some_and(|at| now >= at);
        let Some(index) = self.returns.iter().position(is_due) else { return };
        let mut one = self.returns.remove(index);
        if let Step::Home(at) = &mut one.step {
            *at = now.after(self.rules.again);
            self.act(ExchangeAction::Locate(one.page));
            self.returns.push(one);
        } else {
            self.look_at(now, view, one);
        }
    }

    /// Reports a gone client, after the current event, if nothing of it is being returned any more.
    pub(super) fn report_returned(&mut self, client: ClientId, release: Option<u64>) {
        if release.is_none() {
            self.ended.insert(client);
        }
    }

    fn piece_began(&mut self, release: Option<u64>) {
        if let Some(release) = release.and_then(|number| self.releases.get_mut(&number)) {
            release.pieces += 1;
        }
    }

    /// This many returns have become one exchange, or have ended.
    pub(super) fn merge_pieces(&mut self, release: Option<u64>, pieces: usize, is_sent: bool) {
        if is_sent {
            self.piece_began(release);
        }
        for _ in 0..pieces {
            self.piece_ended(release, 0);
        }
    }

    fn piece_kept(&mut self, release: Option<u64>, obstacle: Obstacle) {
        if let Some(release) = release.and_then(|number| self.releases.get_mut(&number)) {
            release.obstacle = Some(obstacle);
        }
        self.piece_ended(release, 0);
    }

    /// Ends a part of a release, of which `refused` objects were not allocated, and answers the
    /// caller after the last part.
    pub(super) fn piece_ended(&mut self, release: Option<u64>, refused: u64) {
        let Some(number) = release else { return };
        let Some(release) = self.releases.get_mut(&number) else { return };
        release.refused += refused;
        release.pieces = release.pieces.saturating_sub(1);
        if release.pieces == 0
            && let Some(Release { caller, refused, obstacle, .. }) = self.releases.remove(&number)
        {
            let result = obstacle.map_or(CallResult::Freed(refused), CallResult::Kept);
            self.act(ExchangeAction::Finish(caller, result));
        }
    }

    /// Answers the callers of releases that have waited long enough. Objects in no exchange stay in
    /// the outbox. An exchange that was sent owns its objects: the caller has nothing left to do.
    pub(super) fn expire_releases(&mut self, now: Time) {
        let late = self.releases.iter().filter(|(_, release)| now >= release.deadline);
        let late = late.map(|(number, _)| *number).collect::<Vec<_>>();
        let gives_up = |one: &mut Return| one.gives_up_at(&self.peers).is_some_and(|at| now >= at);
        for one in self.returns.extract_if(.., gives_up).collect::<Vec<_>>() {
            if let Step::Queued(rack) = one.step {
                self.piece_kept(one.release, Obstacle::RackUnavailable(rack));
            }
        }
        for number in late {
            let is_its = |one: &mut Return| one.release == Some(number);
            for one in self.returns.extract_if(.., is_its).collect::<Vec<_>>() {
                let obstacle = match one.step {
                    Step::Page(_) => Obstacle::PageBusy,
                    Step::Home(_) => Obstacle::MetadataUnreachable,
                    Step::Queued(rack) => Obstacle::RackUnavailable(rack),
                };
                self.piece_kept(one.release, obstacle);
            }
            // The rest is in exchanges.
            if let Some(release) = self.releases.get_mut(&number) {
                release.pieces = 1;
            }
            self.piece_ended(Some(number), 0);
        }
    }
}
