use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use rackpool_model::PageId;

use super::{EndpointToken, LeaseId, LeaseKind, LeaseRules, Use, Users};
use crate::Time;
use crate::planted::{Bug, Bugs, Sound};

/// What has happened at a page's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeEvent {
    /// Nobody may write this page from afar or keep a copy of it any more, or use it at all.
    /// [`HomeAction::Clean`] follows, in bounded time. The page's word says so already: no lease is
    /// given that is good for more.
    PageNeeded(PageId, Users),
    /// The page is not needed any more: nobody waits for it to be clean.
    PageSpared(PageId),
    /// A holder has given back a lease, or the right to do more than read.
    Returned(PageId, EndpointToken, LeaseId, Users),
    /// Nothing can land over this endpoint any more.
    EndpointEnded(EndpointToken),
    /// The time named by the machine's deadline has come.
    DeadlinePassed,
}

/// What the shell of a page's home has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeAction {
    /// Ask the holder to give the lease back, or the right to do more than read.
    Revoke(PageId, EndpointToken, LeaseId, Users),
    /// Tear the endpoint down; tell when it has ended.
    Fence(EndpointToken),
    /// Nobody writes the page from afar or keeps a copy, or uses it at all.
    Clean(PageId, Users),
}

/// The leases that a rack has given.
#[derive(Debug)]
pub struct LeaseHome<B = Sound> {
    rules: LeaseRules,
    bugs: B,
    now: Time,
    next: u64,
    /// Before this, leases of an earlier life may be in use.
    earlier_end: Time,
    given: BTreeMap<Use, Given>,
    needed: BTreeMap<PageId, Needed>,
    fenced: BTreeSet<EndpointToken>,
    /// Until when copies may be read whose endpoints are gone.
    lost_copies: BTreeMap<PageId, Time>,
    actions: VecDeque<HomeAction>,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    /// The last one.
    id: LeaseId,
    /// The last one that is good for writing or a copy: the holder may not know of later ones.
    more: Option<LeaseId>,
    /// Until then the holder may read a copy: it does not need the endpoint for that.
    copy_until: Time,
    /// When it was called back first. That the page was spared since is no excuse: a holder gives
    /// back what it was asked for.
    asked: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Needed {
    users: Users,
    ask_again: Time,
}

impl Given {
    /// Whether those who have to go are still there.
    const fn is_out(&self, users: Users) -> bool {
        match users {
            Users::Writers => self.more.is_some(),
            Users::Everyone => true,
        }
    }
}

impl<B: Bugs> LeaseHome<B> {
    /// No leases. `first` is above every number of earlier lives; `restarted` says whether there
    /// was one that may have given leases.
    pub fn new(now: Time, rules: LeaseRules, first: LeaseId, restarted: bool, bugs: B) -> Self {
        let wait = rules.good_at_home().saturating_add(rules.flight);
        let forgets = bugs.has(Bug::ForgetEarlierLeases);
        Self {
            rules,
            bugs,
            now,
            next: first.0,
            earlier_end: if restarted && !forgets { now.after(wait) } else { now },
            given: BTreeMap::new(),
            needed: BTreeMap::new(),
            fenced: BTreeSet::new(),
            lost_copies: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// Gives a lease over `endpoint`, good for `most` at most; `None` while nobody may use the page
    /// or the endpoint is being torn down. The shell asks only when the page lies here, and never
    /// for more than the page's word allows.
    pub fn grant(
        &mut self,
        now: Time,
        page: PageId,
        endpoint: EndpointToken,
        most: LeaseKind,
    ) -> Option<(LeaseId, LeaseKind)> {
        self.now = self.now.max(now);
        let kind = match self.needed.get(&page).map(|needed| needed.users) {
            _ if self.fenced.contains(&endpoint) => return None,
            Some(Users::Everyone) => return None,
            Some(Users::Writers) if !self.bugs.has(Bug::GrantWriteWhileFrozen) => LeaseKind::Read,
            _ => most,
        };
        let id = LeaseId(self.next);
        self.next += 1;
        let before = self.given.get(&(page, endpoint)).copied();
        // Until it says otherwise the holder may do what the lease it had is good for.
        let (more, asked) = match before {
            Some(before) if before.more.is_some() && !self.bugs.has(Bug::ForgetRightToWrite) => {
                (before.more, before.asked)
            }
            _ => (None, None),
        };
        let copy_until = before.map_or(Time::ZERO, |before| before.copy_until);
        let given = match kind {
            LeaseKind::Write | LeaseKind::WriteOnceQuiesced => {
                Given { id, more: Some(id), copy_until, asked: None }
            }
            LeaseKind::Read => Given { id, more, copy_until, asked },
            LeaseKind::Share(_) => {
                let copy_until = self.now.after(self.rules.copy_good_at_home());
                Given { id, more: Some(id), copy_until, asked: None }
            }
        };
        self.given.insert((page, endpoint), given);
        Some((id, kind))
    }

    /// Takes in what has happened.
    pub fn handle(&mut self, now: Time, event: HomeEvent) {
        self.now = self.now.max(now);
        match event {
            HomeEvent::PageNeeded(page, users) => {
                if let Some((endpoint, _)) = self.holders(page, users).first()
                    && self.bugs.has(Bug::ForgetOneLease)
                {
                    self.given.remove(&(page, *endpoint));
                }
                if self.needed.get(&page).is_none_or(|needed| needed.users < users) {
                    self.needed.insert(page, Needed { users, ask_again: self.now });
                }
                self.drive(page);
            }
            HomeEvent::PageSpared(page) => {
                self.needed.remove(&page);
            }
            HomeEvent::Returned(page, endpoint, id, users) => {
                self.returned((page, endpoint), id, users);
                self.drive(page);
            }
            HomeEvent::EndpointEnded(endpoint) => {
                self.fenced.remove(&endpoint);
                self.lose_copies(endpoint);
                self.given.retain(|(_, over), _| *over != endpoint);
                self.drive_all();
            }
            HomeEvent::DeadlinePassed => self.drive_all(),
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<HomeAction> {
        self.actions.pop_front()
    }

    /// When [`HomeEvent::DeadlinePassed`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let of = |(page, needed): (&PageId, &Needed)| {
            let holders = self.holders(*page, needed.users);
            if holders.is_empty() {
                return self.clean_at(*page);
            }
            let unfenced = holders.iter().filter(|(over, _)| !self.fenced.contains(over));
            let fences = unfenced.filter_map(|(_, given)| self.fence_at(given));
            fences.fold(needed.ask_again, Time::min)
        };
        self.needed.iter().map(of).min()
    }

    fn fence_at(&self, given: &Given) -> Option<Time> {
        given.asked.map(|asked| asked.after(self.rules.grace))
    }

    /// Those of a page who have to go.
    fn holders(&self, page: PageId, users: Users) -> Vec<(EndpointToken, Given)> {
        let all = (page, EndpointToken(0))..=(page, EndpointToken(u64::MAX));
        let of_page = self.given.range(all).filter(|(_, given)| given.is_out(users));
        of_page.map(|((_, endpoint), given)| (*endpoint, *given)).collect()
    }

    /// When a page whose leases are back is clean.
    fn clean_at(&self, page: PageId) -> Time {
        let copies = self.lost_copies.get(&page);
        copies.map_or(self.earlier_end, |until| self.earlier_end.max(*until))
    }

    /// What lands over an endpoint that has ended is nothing, but a copy is read without it.
    fn lose_copies(&mut self, endpoint: EndpointToken) {
        let now = self.now;
        self.lost_copies.retain(|_, until| *until > now);
        if self.bugs.has(Bug::ForgetLostCopies) {
            return;
        }
        let over = self.given.iter().filter(|((_, over), _)| *over == endpoint);
        for ((page, _), given) in over.filter(|(_, given)| given.copy_until > now) {
            let until = self.lost_copies.entry(*page).or_default();
            *until = given.copy_until.max(*until);
        }
    }

    /// Whoever gives back a lease has none that is older either, and takes none that is older.
    fn returned(&mut self, of: Use, id: LeaseId, users: Users) {
        let id = if self.bugs.has(Bug::TakeAnyReturn) { LeaseId(u64::MAX) } else { id };
        let Some(given) = self.given.get_mut(&of) else { return };
        if users == Users::Everyone && given.id <= id {
            self.given.remove(&of);
            return;
        }
        if given.more.is_some_and(|more| more <= id) {
            given.more = None;
            given.asked = None;
        }
    }

    fn drive_all(&mut self) {
        for page in self.needed.keys().copied().collect::<Vec<_>>() {
            self.drive(page);
        }
    }

    /// Takes a page that is needed one step further.
    fn drive(&mut self, page: PageId) {
        let Some(needed) = self.needed.get(&page) else { return };
        let again = self.now >= needed.ask_again;
        let users = needed.users;
        let holders = self.holders(page, users);
        if holders.is_empty() && self.now >= self.clean_at(page) {
            self.needed.remove(&page);
            self.lost_copies.retain(|_, until| *until > self.now);
            self.actions.push_back(HomeAction::Clean(page, users));
            return;
        }
        for (endpoint, given) in holders {
            if self.fence_at(&given).is_some_and(|at| self.now >= at) {
                if self.fenced.insert(endpoint) {
                    self.actions.push_back(HomeAction::Fence(endpoint));
                }
            } else if again {
                let asked = given.asked.or(Some(self.now));
                self.given.insert((page, endpoint), Given { asked, ..given });
                self.actions.push_back(HomeAction::Revoke(page, endpoint, given.id, users));
            }
        }
        if again {
            let ask_again = self.now.after(self.rules.retry);
            self.needed.insert(page, Needed { users, ask_again });
        }
    }
}

#[cfg(test)]
mod tests;
