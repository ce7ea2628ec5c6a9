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
pub struct Home<B = Sound> {
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

impl<B: Bugs> Home<B> {
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

    /// Gives a lease over `endpoint`, good for `most` at most; `None` while nobody may use the page or
    /// the endpoint is being torn down. The shell asks only when the page lies here, and never for
    /// more than the page's word allows.
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
            LeaseKind::Write | LeaseKind::WriteOnceLeft => {
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
        given.asked.map(|asked| asked.after(self.rules.patience))
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
mod tests {
    use core::time::Duration;

    use super::*;

    const PAGE: PageId = PageId(4);
    const A: EndpointToken = EndpointToken(1);
    const B: EndpointToken = EndpointToken(2);
    const C: EndpointToken = EndpointToken(3);

    fn at(ms: u64) -> Time {
        Time::ZERO.after(Duration::from_millis(ms))
    }

    fn home(restarted: bool) -> Home {
        Home::new(Time::ZERO, LeaseRules::DEFAULT, LeaseId(1), restarted, Sound)
    }

    fn step(home: &mut Home, ms: u64, event: HomeEvent) -> Vec<HomeAction> {
        home.handle(at(ms), event);
        core::iter::from_fn(|| home.poll()).collect()
    }

    fn granted(home: &mut Home, ms: u64, over: EndpointToken) -> LeaseId {
        home.grant(at(ms), PAGE, over, LeaseKind::Write).unwrap().0
    }

    #[test]
    fn a_page_is_clean_when_every_lease_is_back() {
        let mut home = home(false);
        let (a, b) = (granted(&mut home, 0, A), granted(&mut home, 0, B));
        let asked = [
            HomeAction::Revoke(PAGE, A, a, Users::Everyone),
            HomeAction::Revoke(PAGE, B, b, Users::Everyone),
        ];
        assert_eq!(step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Everyone)), asked);
        assert_eq!(
            home.grant(at(2), PAGE, A, LeaseKind::Write),
            None,
            "no new lease while the page is needed"
        );
        assert_eq!(step(&mut home, 2, HomeEvent::Returned(PAGE, A, a, Users::Everyone)), []);
        let clean = step(&mut home, 3, HomeEvent::Returned(PAGE, B, b, Users::Everyone));
        assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
        assert_eq!(home.deadline(), None);
    }

    #[test]
    fn a_silent_holder_is_asked_again_then_fenced_and_the_page_is_clean_when_its_endpoint_ended() {
        let mut home = home(false);
        let lease = granted(&mut home, 0, A);
        step(&mut home, 0, HomeEvent::PageNeeded(PAGE, Users::Everyone));
        assert_eq!(home.deadline(), Some(at(50)));
        let again = step(&mut home, 50, HomeEvent::DeadlinePassed);
        assert_eq!(again, [HomeAction::Revoke(PAGE, A, lease, Users::Everyone)]);
        assert_eq!(step(&mut home, 500, HomeEvent::DeadlinePassed), [HomeAction::Fence(A)]);
        assert_eq!(step(&mut home, 600, HomeEvent::DeadlinePassed), [], "fenced once");
        let clean = step(&mut home, 700, HomeEvent::EndpointEnded(A));
        assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
    }

    #[test]
    fn an_old_return_does_not_end_a_newer_lease() {
        let mut home = home(false);
        let old = granted(&mut home, 0, A);
        let new = granted(&mut home, 1, A);
        step(&mut home, 2, HomeEvent::Returned(PAGE, A, old, Users::Everyone));
        let asked = step(&mut home, 3, HomeEvent::PageNeeded(PAGE, Users::Everyone));
        assert_eq!(asked, [HomeAction::Revoke(PAGE, A, new, Users::Everyone)]);
    }

    #[test]
    fn a_restarted_home_waits_for_the_leases_of_its_earlier_life() {
        let mut home = home(true);
        assert_eq!(step(&mut home, 0, HomeEvent::PageNeeded(PAGE, Users::Everyone)), []);
        assert_eq!(home.deadline(), Some(at(2502)), "2 s, a thousandth more, and 500 ms of flight");
        let clean = step(&mut home, 2502, HomeEvent::DeadlinePassed);
        assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
    }

    #[test]
    fn a_lease_that_has_run_out_is_called_back_like_any_other() {
        let mut home = home(false);
        let lease = granted(&mut home, 0, A);
        let asked = step(&mut home, 60_000, HomeEvent::PageNeeded(PAGE, Users::Everyone));
        assert_eq!(
            asked,
            [HomeAction::Revoke(PAGE, A, lease, Users::Everyone)],
            "a rack at rest is not cut off"
        );
        let clean = step(&mut home, 60_001, HomeEvent::Returned(PAGE, A, lease, Users::Everyone));
        assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
    }

    #[test]
    fn patience_with_a_silent_holder_does_not_begin_anew_when_the_page_was_spared() {
        let mut home = home(false);
        granted(&mut home, 0, A);
        step(&mut home, 0, HomeEvent::PageNeeded(PAGE, Users::Everyone));
        step(&mut home, 100, HomeEvent::PageSpared(PAGE));
        assert_eq!(
            step(&mut home, 600, HomeEvent::PageNeeded(PAGE, Users::Everyone)),
            [HomeAction::Fence(A)]
        );
    }

    #[test]
    fn a_page_that_is_spared_can_be_leased_again() {
        let mut home = home(false);
        granted(&mut home, 0, A);
        step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Everyone));
        assert_eq!(step(&mut home, 2, HomeEvent::PageSpared(PAGE)), []);
        assert!(home.grant(at(3), PAGE, B, LeaseKind::Write).is_some());
    }

    #[test]
    fn when_writers_have_to_go_readers_stay_and_new_ones_may_come() {
        let mut home = home(false);
        let write = granted(&mut home, 0, A);
        let (read, kind) = home.grant(at(0), PAGE, B, LeaseKind::Read).unwrap();
        assert_eq!(kind, LeaseKind::Read);
        let asked = step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Writers));
        assert_eq!(asked, [HomeAction::Revoke(PAGE, A, write, Users::Writers)]);
        let most = home.grant(at(1), PAGE, C, LeaseKind::Write).map(|(_, kind)| kind);
        assert_eq!(most, Some(LeaseKind::Read));
        let back = HomeEvent::Returned(PAGE, A, write, Users::Writers);
        assert_eq!(step(&mut home, 2, back), [HomeAction::Clean(PAGE, Users::Writers)]);
        let all = step(&mut home, 3, HomeEvent::PageNeeded(PAGE, Users::Everyone));
        assert_eq!(
            all[..2],
            [
                HomeAction::Revoke(PAGE, A, write, Users::Everyone),
                HomeAction::Revoke(PAGE, B, read, Users::Everyone),
            ]
        );
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn a_lease_for_reading_does_not_make_the_home_forget_one_for_writing() {
        let mut home = home(false);
        let write = granted(&mut home, 0, A);
        step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Writers));
        let (read, _) = home.grant(at(2), PAGE, A, LeaseKind::Write).unwrap();
        let again = step(&mut home, 51, HomeEvent::DeadlinePassed);
        assert_eq!(again, [HomeAction::Revoke(PAGE, A, read, Users::Writers)]);
        assert_eq!(home.deadline(), Some(at(101)));
        // The answer to the first call says enough.
        let back = HomeEvent::Returned(PAGE, A, write, Users::Writers);
        assert_eq!(step(&mut home, 52, back), [HomeAction::Clean(PAGE, Users::Writers)]);
    }

    #[test]
    fn a_copy_outlives_its_endpoint_as_long_as_its_lease() {
        for users in [Users::Writers, Users::Everyone] {
            let mut home = home(false);
            let share = LeaseKind::Share(crate::share::SharingId(1));
            let (id, _) = home.grant(at(0), PAGE, A, share).unwrap();
            home.grant(at(100), PAGE, B, share).unwrap();
            step(&mut home, 101, HomeEvent::PageNeeded(PAGE, users));
            // One says that it has none any more, the other says nothing: its rack may be cut off.
            step(&mut home, 102, HomeEvent::Returned(PAGE, A, id, users));
            assert_eq!(step(&mut home, 103, HomeEvent::EndpointEnded(B)), []);
            let end = home.deadline().unwrap();
            assert_eq!(end, at(100).after(LeaseRules::DEFAULT.copy_good_at_home()));
            home.handle(end, HomeEvent::DeadlinePassed);
            assert_eq!(home.poll(), Some(HomeAction::Clean(PAGE, users)));
        }
    }

    #[test]
    fn when_copies_have_to_go_other_racks_read_on() {
        let mut home = home(false);
        let share = LeaseKind::Share(crate::share::SharingId(1));
        let (id, _) = home.grant(at(0), PAGE, A, share).unwrap();
        home.grant(at(0), PAGE, B, LeaseKind::Read).unwrap();
        let asked = step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Writers));
        assert_eq!(asked, [HomeAction::Revoke(PAGE, A, id, Users::Writers)]);
        let most = home.grant(at(2), PAGE, C, share).map(|(_, kind)| kind);
        assert_eq!(most, Some(LeaseKind::Read), "a rack that does not answer stops no others");
        // That rack is cut off, and its copy is read as long as its lease says.
        assert_eq!(step(&mut home, 501, HomeEvent::DeadlinePassed), [HomeAction::Fence(A)]);
        let clean = step(&mut home, 502, HomeEvent::EndpointEnded(A));
        assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Writers)], "its time is over");
    }

    #[test]
    fn a_restarted_home_gives_leases_for_reading_while_copies_of_its_earlier_life_end() {
        let mut home = home(true);
        assert_eq!(step(&mut home, 0, HomeEvent::PageNeeded(PAGE, Users::Writers)), []);
        let most = home.grant(at(1), PAGE, A, LeaseKind::Write).map(|(_, kind)| kind);
        assert_eq!(most, Some(LeaseKind::Read));
        let clean = step(&mut home, 2502, HomeEvent::DeadlinePassed);
        assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Writers)]);
    }

    #[test]
    fn a_renewed_lease_for_reading_does_not_make_the_home_forget_a_copy() {
        let mut home = home(false);
        let share = LeaseKind::Share(crate::share::SharingId(1));
        home.grant(at(0), PAGE, A, share).unwrap();
        let (read, _) = home.grant(at(1), PAGE, A, LeaseKind::Read).unwrap();
        let asked = step(&mut home, 2, HomeEvent::PageNeeded(PAGE, Users::Writers));
        assert_eq!(asked, [HomeAction::Revoke(PAGE, A, read, Users::Writers)]);
    }

    #[test]
    fn who_wants_everyone_out_does_not_wait_for_the_writers_first() {
        let mut home = home(false);
        let lease = granted(&mut home, 0, A);
        step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Writers));
        let asked = step(&mut home, 2, HomeEvent::PageNeeded(PAGE, Users::Everyone));
        assert_eq!(asked, [HomeAction::Revoke(PAGE, A, lease, Users::Everyone)]);
        assert_eq!(step(&mut home, 3, HomeEvent::PageNeeded(PAGE, Users::Writers)), []);
        assert_eq!(step(&mut home, 4, HomeEvent::Returned(PAGE, A, lease, Users::Writers)), []);
        let clean = step(&mut home, 5, HomeEvent::Returned(PAGE, A, lease, Users::Everyone));
        assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
    }
}
