//! The names of the pool by which the programs of a group find each other.

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_proto::group::words::{Decision, Survivors};
use twox_hash::XxHash3_64;

use super::options::not_allowed;
use super::place::LEAST;
use crate::error::StoreError;

/// The names of one group. The group's own name leads to the object of its root, until it holds
/// how the group has ended. The name of a rack leads to the object of a program that wants to join.
#[derive(Clone, Debug)]
pub(super) struct Names {
    name: String,
}

/// The root's object and the number of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupId {
    pub(super) root: GlobalAddr,
    pub(super) number: u64,
}

impl GroupId {
    /// The lowest bits of the address of an object, which is aligned to its length, are 0. In the
    /// word they are those of the number: memory that is used by another group's root gives another
    /// word.
    const TAG: u64 = LEAST - 1;

    /// What the group's name holds as long as the end of the group is not decided.
    const fn word(self) -> GlobalAddr {
        GlobalAddr::from_raw(self.root.raw() | self.number & Self::TAG)
    }

    /// The address of a root's object in such a word.
    pub(super) const fn root_in(word: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(word.raw() & !Self::TAG)
    }

    /// What the group's name says about this group; `None` if nothing is decided.
    fn decision_in(self, found: Option<GlobalAddr>) -> Option<Decision> {
        if found == Some(self.word()) {
            return None;
        }
        // The name may be another group's by now, or was removed. Then no member of this group is a
        // survivor.
        let survivors = found.and_then(|word| Survivors::from_raw(word.raw(), self.number));
        Some(match survivors {
            Some(survivors) if survivors.members.is_empty() => Decision::Closed,
            survivors => Decision::RootLost(survivors.unwrap_or_default()),
        })
    }
}

impl Names {
    /// The most bytes of a group's name.
    const MOST: usize = 200;

    pub(super) fn of(name: &str) -> Result<Self, StoreError> {
        if name.is_empty() || name.len() > Self::MOST {
            return Err(not_allowed("the name of a group", "1 to 200 bytes"));
        }
        Ok(Self { name: name.into() })
    }

    /// A number that objects of this group have.
    pub(super) fn hash(&self) -> u64 {
        XxHash3_64::oneshot(self.name.as_bytes())
    }

    fn group(&self) -> String {
        format!(".group-{}", self.name)
    }

    fn member(&self, rack: RackId) -> String {
        format!(".groupmember-{}-{}", rack.0, self.name)
    }

    /// The name of the store with the long messages of the group of this number.
    pub(super) fn store(&self, number: u64) -> String {
        format!(".groupobjects-{number:016x}-{}", self.name)
    }

    /// What the group's name holds.
    pub(super) fn root(&self, pool: &Pool) -> Result<Option<GlobalAddr>, StoreError> {
        Ok(pool.root(&self.group())?)
    }

    /// Lets the group's name lead to this root instead of what was found there. Returns whether it
    /// does.
    pub(super) fn take(
        &self,
        pool: &Pool,
        found: Option<GlobalAddr>,
        id: GroupId,
    ) -> Result<bool, StoreError> {
        let now = pool.set_root(&self.group(), found, Some(id.word()))?.addr;
        Ok(now == Some(id.word()))
    }

    /// Removes the name of a group that was not opened.
    pub(super) fn give_back(&self, pool: &Pool, id: GroupId) -> Result<(), StoreError> {
        pool.set_root(&self.group(), Some(id.word()), None)?;
        Ok(())
    }

    /// Decides how a group has ended, unless that is decided: with these survivors, or, if there
    /// are none, as closed by its root. Returns what is decided.
    pub(super) fn decide(
        &self,
        pool: &Pool,
        id: GroupId,
        survivors: Survivors,
    ) -> Result<Option<Decision>, StoreError> {
        let decision = GlobalAddr::from_raw(survivors.to_raw(id.number));
        let update = pool.set_root(&self.group(), Some(id.word()), Some(decision))?;
        Ok(id.decision_in(update.addr))
    }

    /// How a group has ended, if that is decided.
    pub(super) fn decision(
        &self,
        pool: &Pool,
        id: GroupId,
    ) -> Result<Option<Decision>, StoreError> {
        Ok(id.decision_in(self.root(pool)?))
    }

    /// Removes a decision that all have read.
    pub(super) fn forget(
        &self,
        pool: &Pool,
        id: GroupId,
        survivors: Survivors,
    ) -> Result<(), StoreError> {
        let decision = GlobalAddr::from_raw(survivors.to_raw(id.number));
        pool.set_root(&self.group(), Some(decision), None)?;
        Ok(())
    }

    /// The object of the program that wants to be the member of a rack.
    pub(super) fn joining(
        &self,
        pool: &Pool,
        rack: RackId,
    ) -> Result<Option<GlobalAddr>, StoreError> {
        Ok(pool.root(&self.member(rack))?)
    }

    /// Announces this program as the member of a rack.
    pub(super) fn join(
        &self,
        pool: &Pool,
        rack: RackId,
        addr: GlobalAddr,
    ) -> Result<(), StoreError> {
        let name = self.member(rack);
        loop {
            let now = pool.root(&name)?;
            if now == Some(addr) || pool.set_root(&name, now, Some(addr))?.changed {
                return Ok(());
            }
        }
    }

    /// Removes the announcement of a program.
    pub(super) fn leave(
        &self,
        pool: &Pool,
        rack: RackId,
        addr: GlobalAddr,
    ) -> Result<(), StoreError> {
        pool.set_root(&self.member(rack), Some(addr), None)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rackpool_proto::group::words::MemberSet;

    use super::*;

    #[test]
    fn the_name_says_what_is_decided_about_one_group() {
        let root = GlobalAddr::from_raw(0x40_0000);
        let (id, next) = (GroupId { root, number: 0x1234 }, GroupId { root, number: 0x1235 });
        assert_eq!(GroupId::root_in(id.word()), root);
        assert_eq!(id.decision_in(Some(id.word())), None);
        let none = Some(Decision::RootLost(Survivors::default()));
        assert_eq!(id.decision_in(Some(next.word())), none, "another group's root, in its memory");
        assert_eq!(id.decision_in(None), none);
        let word = |survivors: Survivors| Some(GlobalAddr::from_raw(survivors.to_raw(id.number)));
        let closed = Survivors { end: 640, members: MemberSet::default() };
        assert_eq!(id.decision_in(word(closed)), Some(Decision::Closed));
        let lost = Survivors { members: MemberSet::first(2), ..closed };
        assert_eq!(id.decision_in(word(lost)), Some(Decision::RootLost(lost)));
        assert_ne!(next.decision_in(word(lost)), Some(Decision::RootLost(lost)));
    }

    #[test]
    fn names_of_groups_differ() {
        let names =
            ["log", "log-rack-1", "1-log", "log-objects"].map(|name| Names::of(name).unwrap());
        let all: std::collections::BTreeSet<_> = names
            .iter()
            .flat_map(|of| [of.group(), of.member(RackId(1)), of.member(RackId(11)), of.store(1)])
            .collect();
        assert_eq!(all.len(), 4 * names.len());
    }
}
