//! The owner of each object in use. Each party names the objects that are its own. An object that
//! two parties name was handed out twice; one that is named and not in use was freed while it had
//! an owner; one that is in use and that no party names is lost.

use std::collections::BTreeMap;

use rackpool_client::GlobalAddr;

use super::batch::Killed;
use super::finding::Finding;
use crate::steps::plan::Remains;
use crate::steps::stock::Hand;

/// The objects in use, and the party that has named each.
#[derive(Debug)]
pub(super) struct Account {
    /// Objects in use that no party has named yet, with the bytes that each takes.
    left: BTreeMap<GlobalAddr, u64>,
    named: BTreeMap<GlobalAddr, String>,
    pub(super) findings: Vec<Finding>,
}

impl Account {
    /// An account of these objects, with none of them named.
    pub(super) const fn of(objects: BTreeMap<GlobalAddr, u64>) -> Self {
        Self { left: objects, named: BTreeMap::new(), findings: Vec::new() }
    }

    /// Names an object as `whose`. Returns the bytes that the object takes; `None`, with a finding,
    /// if it has an owner already or is not in use.
    pub(super) fn name(&mut self, addr: GlobalAddr, whose: impl Into<String>) -> Option<u64> {
        let whose = whose.into();
        if let Some(other) = self.named.get(&addr) {
            self.findings.push(Finding::Twice { addr, whose: [other.clone(), whose] });
            return None;
        }
        let bytes = self.left.remove(&addr);
        if bytes.is_none() {
            self.findings.push(Finding::Free { addr, whose: whose.clone() });
        }
        self.named.insert(addr, whose);
        bytes
    }

    /// Returns true if a party has named the object.
    pub(super) fn is_named(&self, addr: GlobalAddr) -> bool {
        self.named.contains_key(&addr)
    }

    /// Names the objects that killed clients of one size had in hand, in the order in which the
    /// clients were killed, and returns them. An object of a `doubtful` client may have been freed,
    /// and since then be in another client's hand.
    pub(super) fn name_hands(
        &mut self,
        bytes: u64,
        hands: &[&Killed],
        doubtful: &[&Killed],
    ) -> Vec<GlobalAddr> {
        let mut found = Vec::new();
        for killed in hands {
            if let Hand::Has(addr) = killed.hand {
                found.extend(self.name(addr, format!("{killed:?}")).map(|_| addr));
            }
        }
        for killed in hands {
            let candidate = self.candidate(bytes, killed, doubtful);
            match (killed.hand, candidate) {
                (Hand::HasOne, Some((addr, _))) | (Hand::Unknown, Some((addr, false))) => {
                    found.extend(self.name(addr, format!("{killed:?}")).map(|_| addr));
                }
                (Hand::HasOne, None) => {
                    let what = format!("what alloc had in hand is free: {killed:?}");
                    self.findings.push(Finding::Hand(what));
                }
                (Hand::Wrong(count), _) => {
                    let what = format!("alloc had {count} objects in hand: {killed:?}");
                    self.findings.push(Finding::Hand(what));
                }
                _ => {}
            }
        }
        found
    }

    /// An object that a killed client may have in hand, and whether a doubtful client may still own
    /// it. Objects without a doubtful owner come first, then those that the doubtful owner's file
    /// noted, which must have been reclaimed, then its other objects.
    fn candidate(
        &self,
        bytes: u64,
        killed: &Killed,
        doubtful: &[&Killed],
    ) -> Option<(GlobalAddr, bool)> {
        let rank = |addr: &GlobalAddr| {
            let owner = doubtful.iter().find(|client| client.objects.contains(addr));
            owner.map_or(0, |client| if client.noted.contains(addr) { 1 } else { 2 })
        };
        let of_size = self.left.iter().filter(|(_, size)| **size == bytes).map(|(addr, _)| *addr);
        // Objects that this client's own file noted were reclaimed; a client that has one in hand
        // was killed later.
        let others = of_size.filter(|addr| !killed.noted.contains(addr));
        others
            .map(|addr| (addr, rank(&addr)))
            .min_by_key(|(_, rank)| *rank)
            .map(|(a, r)| (a, r > 1))
    }

    /// Names the objects that a client was about to free and still owns; returns them.
    pub(super) fn name_doubtful(&mut self, killed: &Killed) -> Vec<GlobalAddr> {
        let is_own = |addr: &&GlobalAddr| {
            // An object that its file noted was reclaimed: if it is in use, it is lost.
            self.left.contains_key(addr) && !killed.noted.contains(addr)
        };
        let own: Vec<GlobalAddr> = killed.objects.iter().filter(is_own).copied().collect();
        own.into_iter().filter(|a| self.name(*a, format!("{killed:?}")).is_some()).collect()
    }

    /// Ends the account: objects that no party has named are leaked.
    pub(super) fn close(self) -> Vec<Finding> {
        let lost = self.left.into_iter().map(|(addr, bytes)| Finding::Leaked { addr, bytes });
        self.findings.into_iter().chain(lost).collect()
    }
}

/// Clients that may have freed some of their objects.
pub(super) fn doubtful(killed: &[Killed]) -> Vec<&Killed> {
    killed.iter().filter(|client| client.remains == Remains::Doubtful).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64;

    fn addr(number: u64) -> GlobalAddr {
        GlobalAddr::from_raw(number * BYTES)
    }

    /// A client that was freeing `addr(7)`.
    fn that_frees(noted: &[u64]) -> Killed {
        let noted = noted.iter().copied().map(addr).collect();
        Killed { objects: vec![addr(7)], noted, ..killed("drain", Remains::Doubtful) }
    }

    fn killed(operation: &'static str, remains: Remains) -> Killed {
        Killed {
            slot: 0,
            operation,
            remains,
            objects: Vec::new(),
            place: "somewhere".into(),
            hand: Hand::Unknown,
            noted: std::collections::BTreeSet::new(),
            is_followed: false,
            findings: Vec::new(),
            body: None,
        }
    }

    /// The owner of `addr(7)`, which is in use: the first list if a refill that was killed later
    /// has it, the second if the freeing client has it.
    fn whose(freeing: &Killed) -> [Vec<GlobalAddr>; 2] {
        let mut account = Account::of(BTreeMap::from([(addr(7), BYTES)]));
        let refill = killed("refill", Remains::InHand);
        let hands = account.name_hands(BYTES, &[&refill], &[freeing]);
        let own = account.name_doubtful(freeing);
        assert_eq!(account.close(), []);
        [hands, own]
    }

    /// Objects that a killed client's file notes are reclaimed, and may be handed out again before
    /// the check.
    #[test]
    fn what_has_gone_back_may_be_in_the_hands_of_who_was_killed_later() {
        assert_eq!(whose(&that_frees(&[7])), [vec![addr(7)], vec![]]);
        assert_eq!(whose(&that_frees(&[])), [vec![], vec![addr(7)]]);
    }

    #[test]
    fn what_has_gone_back_and_is_in_nobodys_hands_is_lost() {
        let mut account = Account::of(BTreeMap::from([(addr(7), BYTES)]));
        let freeing = that_frees(&[7]);
        assert_eq!(account.name_hands(BYTES, &[], &[&freeing]), []);
        assert_eq!(account.name_doubtful(&freeing), []);
        assert_eq!(account.close(), [Finding::Leaked { addr: addr(7), bytes: BYTES }]);
    }
}
