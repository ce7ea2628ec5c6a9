use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use rackpool_model::PageId;

use super::{
    EndpointToken, GrantedLease, LeaseId, LeaseKey, LeaseKind, LeaseRules, Revocation, Users,
};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs, Sound};

/// An event at the home of leased pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeEvent {
    /// Leases of the page must end: those for writing or a replica, or all. [`HomeAction::Clean`]
    /// follows in bounded time. The caller has changed the page word before: no new lease is
    /// granted that permits more than the word allows.
    PageNeeded(PageId, Users),
    /// The page is not needed any more; no `Clean` follows.
    PageSpared(PageId),
    /// A holder has returned a lease, or the right to do more than read.
    Returned(Revocation),
    /// The endpoint has ended: no operation can land over it any more.
    EndpointEnded(EndpointToken),
    /// The machine's deadline has passed.
    DeadlinePassed,
}

/// An action for the shell of the lease home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeAction {
    /// Ask the holder to return the lease, or the right to do more than read. The machine repeats
    /// it each `retry`.
    Revoke(Revocation),
    /// Fence the endpoint; report [`HomeEvent::EndpointEnded`] when it has ended.
    Fence(EndpointToken),
    /// No rack holds such a lease of the page any more, and none of an earlier incarnation can be
    /// in use.
    Clean(PageId, Users),
}

/// The leases that a rack has granted.
#[derive(Debug)]
pub struct LeaseHome<B = Sound> {
    rules: LeaseRules,
    bugs: B,
    now: Time,
    next: u64,
    /// Before this time, leases of an earlier incarnation may be in use.
    earlier_end: Time,
    given: BTreeMap<LeaseKey, Given>,
    needed: BTreeMap<PageId, Needed>,
    fenced: BTreeSet<EndpointToken>,
    /// Until when clients may read replicas whose endpoints have ended.
    lost_copies: BTreeMap<PageId, Time>,
    actions: VecDeque<HomeAction>,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    /// The last lease granted.
    id: LeaseId,
    /// The last one that permits writing or a replica. The holder may not have received later ones.
    more: Option<LeaseId>,
    /// Until then clients of the holder may read a replica, without the endpoint.
    copy_until: Time,
    /// When it was first called back. It stays set if the page is spared meanwhile: the holder must
    /// still return what it was asked for.
    asked: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Needed {
    users: Users,
    ask_again: Time,
}

impl Given {
    /// Whether this lease still has to be returned.
    const fn is_out(&self, users: Users) -> bool {
        match users {
            Users::Writers => self.more.is_some(),
            Users::Everyone => true,
        }
    }
}

impl<B: Bugs> LeaseHome<B> {
    /// Makes a machine without leases. `first` is above every lease number of earlier incarnations;
    /// `restarted` says whether an earlier one may have granted leases.
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

    /// Grants a lease over `endpoint` that permits at most `most`. Returns `None` while the page is
    /// needed from all holders or the endpoint is being fenced. The caller must ensure that the
    /// page is here, and that its page word allows `most`.
    pub fn grant(
        &mut self,
        now: Time,
        page: PageId,
        endpoint: EndpointToken,
        most: LeaseKind,
    ) -> Option<GrantedLease> {
        self.now = self.now.max(now);
        let kind = match self.needed.get(&page).map(|needed| needed.users) {
            _ if self.fenced.contains(&endpoint) => return None,
            Some(Users::Everyone) => return None,
            Some(Users::Writers) if !self.bugs.has(Bug::GrantWriteWhileFrozen) => LeaseKind::Read,
            _ => most,
        };
        let id = LeaseId(self.next);
        self.next += 1;
        let before = self.given.get(&LeaseKey { page, endpoint }).copied();
        // Until the holder returns it, the right of its previous lease remains in use.
        let (more, asked) = match before {
            Some(before) if before.more.is_some() && !self.bugs.has(Bug::ForgetRightToWrite) => {
                (before.more, before.asked)
            }
            _ => (None, None),
        };
        let copy_until = before.map_or(Time::ZERO, |before| before.copy_until);
        let given = match kind {
            LeaseKind::Write => Given { id, more: Some(id), copy_until, asked: None },
            LeaseKind::Read => Given { id, more, copy_until, asked },
            LeaseKind::Share(_) => {
                let copy_until = self.now.after(self.rules.copy_good_at_home());
                Given { id, more: Some(id), copy_until, asked: None }
            }
        };
        self.given.insert(LeaseKey { page, endpoint }, given);
        Some(GrantedLease { id, kind })
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, event: HomeEvent) {
        self.now = self.now.max(now);
        match event {
            HomeEvent::PageNeeded(page, users) => {
                if let Some(&(endpoint, _)) = self.holders(page, users).first()
                    && self.bugs.has(Bug::ForgetOneLease)
                {
                    self.given.remove(&LeaseKey { page, endpoint });
                }
                if self.needed.get(&page).is_none_or(|needed| needed.users < users) {
                    self.needed.insert(page, Needed { users, ask_again: self.now });
                }
                self.drive(page);
            }
            HomeEvent::PageSpared(page) => {
                self.needed.remove(&page);
            }
            HomeEvent::Returned(revocation) => {
                self.returned(revocation);
                self.drive(revocation.page);
            }
            HomeEvent::EndpointEnded(endpoint) => {
                self.fenced.remove(&endpoint);
                self.lose_copies(endpoint);
                self.given.retain(|key, _| key.endpoint != endpoint);
                self.drive_all();
            }
            HomeEvent::DeadlinePassed => self.drive_all(),
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<HomeAction> {
        self.actions.pop_front()
    }

    /// Returns the time when [`HomeEvent::DeadlinePassed`] is due.
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

    /// The leases of a page that have to be returned.
    fn holders(&self, page: PageId, users: Users) -> Vec<(EndpointToken, Given)> {
        let key = |endpoint| LeaseKey { page, endpoint: EndpointToken(endpoint) };
        let all = key(0)..=key(u64::MAX);
        let of_page = self.given.range(all).filter(|(_, given)| given.is_out(users));
        of_page.map(|(key, given)| (key.endpoint, *given)).collect()
    }

    /// The earliest time when a page whose leases are back is clean.
    fn clean_at(&self, page: PageId) -> Time {
        let copies = self.lost_copies.get(&page);
        copies.map_or(self.earlier_end, |until| self.earlier_end.max(*until))
    }

    /// Keeps the end times of replicas of an ended endpoint: no operation lands over it any more,
    /// but clients read a replica without it.
    fn lose_copies(&mut self, endpoint: EndpointToken) {
        let now = self.now;
        self.lost_copies.retain(|_, until| *until > now);
        if self.bugs.has(Bug::ForgetLostCopies) {
            return;
        }
        let over = self.given.iter().filter(|(key, _)| key.endpoint == endpoint);
        for (key, given) in over.filter(|(_, given)| given.copy_until > now) {
            let until = self.lost_copies.entry(key.page).or_default();
            *until = given.copy_until.max(*until);
        }
    }

    /// The holder has returned a lease: it holds no older lease of the page, and accepts no older
    /// grant.
    fn returned(&mut self, revocation: Revocation) {
        let Revocation { page, endpoint, lease: id, users } = revocation;
        let of = LeaseKey { page, endpoint };
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

    /// Advances the call back of a needed page.
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
                self.given.insert(LeaseKey { page, endpoint }, Given { asked, ..given });
                let lease = given.id;
                let revocation = Revocation { page, endpoint, lease, users };
                self.actions.push_back(HomeAction::Revoke(revocation));
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
