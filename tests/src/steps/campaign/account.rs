//! Whose each object in use is. Everybody names what is theirs; an object that two name was handed
//! out twice, one that is named and not in use was freed under somebody's hands, and what is in use
//! and named by nobody is lost.

use std::collections::BTreeMap;

use rackpool_client::GlobalAddr;

use super::batch::Killed;
use super::finding::Finding;
use crate::steps::plan::Remains;
use crate::steps::stock::Hand;

/// The objects in use, and who has named which.
#[derive(Debug)]
pub(super) struct Account {
    /// In use, and named by nobody yet, with the bytes that each takes.
    left: BTreeMap<GlobalAddr, u64>,
    named: BTreeMap<GlobalAddr, String>,
    pub(super) findings: Vec<Finding>,
}

impl Account {
    /// Of these objects, none of them named.
    pub(super) const fn of(objects: BTreeMap<GlobalAddr, u64>) -> Self {
        Self { left: objects, named: BTreeMap::new(), findings: Vec::new() }
    }

    /// Names an object; the bytes that it takes, unless something is wrong with that.
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

    /// Names what killed clients of one size had in hand, in the order in which they were killed;
    /// what that is. What `doubtful` clients had may have been freed, and be in hand since.
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

    /// An object that a killed client may have in hand, and whether a doubtful client may have it
    /// still: those only if there are no others, and first those that must have gone back.
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
        // What it had noted itself went back; who has it in hand was killed later.
        let others = of_size.filter(|addr| !killed.noted.contains(addr));
        others
            .map(|addr| (addr, rank(&addr)))
            .min_by_key(|(_, rank)| *rank)
            .map(|(a, r)| (a, r > 1))
    }

    /// Names objects that a client was about to free, those that are still its own; which.
    pub(super) fn name_doubtful(&mut self, killed: &Killed) -> Vec<GlobalAddr> {
        let is_own = |addr: &&GlobalAddr| {
            // What it had given away was taken back, and is in use only if it is lost.
            self.left.contains_key(addr) && !killed.noted.contains(addr)
        };
        let own: Vec<GlobalAddr> = killed.objects.iter().filter(is_own).copied().collect();
        own.into_iter().filter(|a| self.name(*a, format!("{killed:?}")).is_some()).collect()
    }

    /// What is left is nobody's.
    pub(super) fn close(self) -> Vec<Finding> {
        let lost = self.left.into_iter().map(|(addr, bytes)| Finding::Leaked { addr, bytes });
        self.findings.into_iter().chain(lost).collect()
    }
}

/// Clients with objects that they may have freed.
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

    /// Whose `addr(7)`, which is in use, is: a refill's that was killed later, or of who frees it.
    fn whose(freeing: &Killed) -> [Vec<GlobalAddr>; 2] {
        let mut account = Account::of(BTreeMap::from([(addr(7), BYTES)]));
        let refill = killed("refill", Remains::InHand);
        let hands = account.name_hands(BYTES, &[&refill], &[freeing]);
        let own = account.name_doubtful(freeing);
        assert_eq!(account.close(), []);
        [hands, own]
    }

    /// What a killed client had noted goes back, and may be handed out again before the look.
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
