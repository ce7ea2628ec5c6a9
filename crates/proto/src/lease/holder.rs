use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use rackpool_model::{Access, PageId, RackId};

use super::{EndpointToken, Lease, LeaseKey, LeaseKind, LeaseRules, Revocation, TimedLease, Users};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs, Sound};

/// An event at a lease holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderEvent {
    /// The home has answered request `question` with a lease.
    Granted {
        /// The page.
        page: PageId,
        /// The number that [`LeaseHolder::ask`] returned.
        question: u64,
        /// The lease.
        lease: Lease,
    },
    /// The home calls back a lease, or the right to do more than read, over an endpoint of this
    /// incarnation. Leases of an earlier incarnation can't be returned, since its operations may
    /// still land; they end with their endpoints.
    Revoked(Revocation),
    /// The page has arrived in this rack. Its lease is returned without a call back.
    Arrived(PageId),
    /// An operation begun with [`LeaseHolder::begin`] has ended, successfully or not.
    OperationEnded(PageId, EndpointToken, Access),
    /// The endpoint has ended, and every operation over it.
    EndpointEnded(EndpointToken),
}

/// An action for the shell of a lease holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderAction {
    /// Send the home the return of the lease, or of the right to do more than read.
    Return(Revocation),
    /// The lease is in use and in its second half: [`LeaseHolder::ask`] this home for the next one.
    /// The present lease stays in use meanwhile.
    Renew(PageId, RackId),
}

/// The leases that a rack holds.
#[derive(Debug)]
pub struct LeaseHolder<B = Sound> {
    rules: LeaseRules,
    bugs: B,
    now: Time,
    last_question: u64,
    asked: BTreeMap<PageId, Asked>,
    held: BTreeMap<PageId, Held>,
    /// Operations in flight under leases that are not in `held` any more.
    older: BTreeMap<LeaseKey, Operations>,
    /// Returns that are owed to homes once the operations have ended.
    returning: BTreeSet<Revocation>,
    actions: VecDeque<HolderAction>,
}

/// Operations in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Operations {
    reads: u32,
    writes: u32,
}

impl Operations {
    const fn of(&mut self, access: Access) -> &mut u32 {
        match access {
            Access::Read => &mut self.reads,
            Access::Write => &mut self.writes,
        }
    }

    const fn are_over(self, users: Users) -> bool {
        self.writes == 0 && (self.reads == 0 || matches!(users, Users::Writers))
    }

    const fn and(self, others: Self) -> Self {
        Self {
            reads: self.reads.saturating_add(others.reads),
            writes: self.writes.saturating_add(others.writes),
        }
    }

    const fn ended(&mut self, access: Access) {
        let count = self.of(access);
        *count = count.saturating_sub(1);
    }
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    question: u64,
    at: Time,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    lease: Lease,
    until: Time,
    /// From when on its use requests the next one.
    renew: Time,
    /// Operations over its endpoint.
    operations: Operations,
}

impl<B: Bugs> LeaseHolder<B> {
    /// Makes a machine without leases. `first` is above every request number of earlier
    /// incarnations, so that late answers to those do not count.
    pub fn new(now: Time, rules: LeaseRules, first: u64, bugs: B) -> Self {
        Self {
            rules,
            bugs,
            now,
            last_question: first,
            asked: BTreeMap::new(),
            held: BTreeMap::new(),
            older: BTreeMap::new(),
            returning: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// Returns the number for a lease request that the caller sends now. It replaces an earlier
    /// request for the page.
    pub fn ask(&mut self, now: Time, page: PageId) -> u64 {
        self.now = self.now.max(now);
        let question = self.draw();
        self.asked.insert(page, Asked { question, at: self.now });
        question
    }

    /// Returns the next number of questions. Each is above all earlier ones.
    pub const fn draw(&mut self) -> u64 {
        self.last_question += 1;
        self.last_question
    }

    /// Returns the last number that was drawn.
    #[must_use]
    pub const fn last_question(&self) -> u64 {
        self.last_question
    }

    /// Returns true if a lease request for the page is under way, whose answer will count.
    #[must_use]
    pub fn is_asking(&self, page: PageId) -> bool {
        self.asked.contains_key(&page)
    }

    /// Request `question` was refused, or has ended without an answer.
    pub fn unanswered(&mut self, page: PageId, question: u64) {
        if self.asked.get(&page).is_some_and(|asked| asked.question == question) {
            self.asked.remove(&page);
        }
    }

    /// Begins an operation if a valid lease permits it, and returns the lease; the caller must post
    /// the operation at once and report its end.
    pub fn begin(&mut self, now: Time, page: PageId, access: Access) -> Option<Lease> {
        self.now = self.now.max(now);
        let held = self.used(page)?;
        let permits = access == Access::Read || held.lease.kind == LeaseKind::Write;
        if !permits && !self.bugs.has(Bug::WriteUnderReadLease) {
            return None;
        }
        let lease = held.lease;
        if let Some(held) = self.held.get_mut(&page) {
            *held.operations.of(access) += 1;
        }
        Some(lease)
    }

    /// Counts the read of a replica of the page as use of its lease, so that it is renewed in time.
    /// Begins no operation.
    pub fn used_by_copy(&mut self, now: Time, page: PageId) {
        self.now = self.now.max(now);
        self.used(page);
    }

    /// Returns the lease if it is valid, and its end.
    #[must_use]
    pub fn lease_until(&self, now: Time, page: PageId) -> Option<TimedLease> {
        let held = self.held.get(&page).filter(|held| now < held.until)?;
        Some(TimedLease { lease: held.lease, until: held.until })
    }

    /// The valid lease of the page; requests a renewal if it is in its second half.
    fn used(&mut self, page: PageId) -> Option<Held> {
        let held = self.held.get_mut(&page)?;
        if self.now >= held.renew {
            if self.now >= held.until && !self.bugs.has(Bug::UseExpiredLease) {
                self.drop_held(page);
                return None;
            }
            held.renew = self.now.after(self.rules.retry).min(held.until);
            self.actions.push_back(HolderAction::Renew(page, held.lease.home));
        }
        self.held.get(&page).copied()
    }

    /// Returns the lease if it is valid.
    #[must_use]
    pub fn lease(&self, now: Time, page: PageId) -> Option<Lease> {
        let held = self.held.get(&page)?;
        (self.now.max(now) < held.until).then_some(held.lease)
    }

    /// Drops the lease of a page, whose home has answered that the page is not there. A grant that
    /// is on its way does not count.
    pub fn forget(&mut self, page: PageId) {
        self.asked.remove(&page);
        self.drop_held(page);
    }

    /// As [`Self::forget`], for every page leased from this rack.
    pub fn forget_home(&mut self, home: RackId) {
        let of_home = self.held.iter().filter(|(_, held)| held.lease.home == home);
        for page in of_home.map(|(page, _)| *page).collect::<Vec<_>>() {
            self.forget(page);
        }
    }

    /// Drops the lease of a page. A grant that is on its way counts.
    pub fn drop_held(&mut self, page: PageId) {
        if let Some(Held { lease, operations, .. }) = self.held.remove(&page)
            && !operations.are_over(Users::Everyone)
        {
            let older = self.older.entry(LeaseKey { page, endpoint: lease.endpoint }).or_default();
            *older = older.and(operations);
        }
    }

    fn hold(&mut self, page: PageId, lease: Lease, asked: Time) {
        self.drop_held(page);
        let operations =
            self.older.remove(&LeaseKey { page, endpoint: lease.endpoint }).unwrap_or_default();
        let good = match lease.kind {
            LeaseKind::Share(_) => self.rules.copy(),
            LeaseKind::Read | LeaseKind::Write => self.rules.lease,
        };
        let (until, renew) = (asked.after(good), asked.after(good / 2));
        self.held.insert(page, Held { lease, until, renew, operations });
    }

    /// Returns true while operations are in flight that have to end before the lease, or the right
    /// to do more than read, is returned.
    fn is_used(&self, page: PageId, endpoint: EndpointToken, users: Users) -> bool {
        let held = self.held.get(&page).filter(|held| held.lease.endpoint == endpoint);
        let held = held.map(|held| held.operations);
        let older = self.older.get(&LeaseKey { page, endpoint }).copied();
        held.into_iter().chain(older).any(|operations| !operations.are_over(users))
    }

    fn operation_ended(&mut self, page: PageId, endpoint: EndpointToken, access: Access) {
        match self.held.get_mut(&page) {
            Some(held) if held.lease.endpoint == endpoint => held.operations.ended(access),
            _ => {
                if let Some(operations) = self.older.get_mut(&LeaseKey { page, endpoint }) {
                    operations.ended(access);
                    if operations.are_over(Users::Everyone) {
                        self.older.remove(&LeaseKey { page, endpoint });
                    }
                }
            }
        }
        if !self.returning.is_empty() {
            self.give_back();
        }
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, event: HolderEvent) {
        self.now = self.now.max(now);
        match event {
            HolderEvent::Granted { page, question, lease } => {
                let Some(asked) = self.asked.get(&page) else { return };
                if asked.question == question {
                    let at = asked.at;
                    self.asked.remove(&page);
                    self.hold(page, lease, at);
                }
            }
            HolderEvent::Revoked(revocation) => self.revoked(revocation),
            HolderEvent::Arrived(page) => {
                self.asked.remove(&page);
                if let Some(Held { lease, .. }) = self.held.get(&page) {
                    let (endpoint, lease) = (lease.endpoint, lease.id);
                    self.revoked(Revocation { page, endpoint, lease, users: Users::Everyone });
                }
            }
            HolderEvent::OperationEnded(page, endpoint, access) => {
                self.operation_ended(page, endpoint, access);
            }
            HolderEvent::EndpointEnded(endpoint) => {
                self.held.retain(|_, held| held.lease.endpoint != endpoint);
                self.older.retain(|key, _| key.endpoint != endpoint);
                self.returning.retain(|revocation| revocation.endpoint != endpoint);
            }
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<HolderAction> {
        self.actions.pop_front()
    }

    fn revoked(&mut self, revocation: Revocation) {
        let Revocation { page, endpoint, lease: id, users } = revocation;
        let held = self.held.get_mut(&page).filter(|held| held.lease.endpoint == endpoint);
        let newer = held.as_ref().is_some_and(|held| held.lease.id > id);
        let known = held.as_ref().is_some_and(|held| held.lease.id >= id);
        match (held, users) {
            // A delayed call back of an earlier lease, which is gone already.
            (Some(_), _) if newer => {}
            (Some(held), Users::Writers) if !self.bugs.has(Bug::KeepRightToWrite) => {
                held.lease.kind = LeaseKind::Read;
            }
            (Some(_), Users::Everyone) => self.drop_held(page),
            _ => {}
        }
        // The call back may have overtaken the grant, which then must not count.
        if !known && !self.bugs.has(Bug::TakeOvertakenGrant) {
            self.asked.remove(&page);
        }
        self.returning.insert(revocation);
        self.give_back();
    }

    fn give_back(&mut self) {
        let hasty = self.bugs.has(Bug::ReturnBeforeQuiesce);
        let ready = |revocation: &&Revocation| {
            let Revocation { page, endpoint, users, .. } = **revocation;
            hasty || !self.is_used(page, endpoint, users)
        };
        for revocation in self.returning.iter().filter(ready).copied().collect::<Vec<_>>() {
            self.returning.remove(&revocation);
            self.actions.push_back(HolderAction::Return(revocation));
        }
    }
}

#[cfg(test)]
mod tests;
