//! The names of the pool by which the programs of a group find each other.

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_proto::group::words::{Decision, Survivors};
use twox_hash::XxHash3_64;

use super::options::not_allowed;
use crate::error::StoreError;

/// The names of one group. The group's own name leads to the object of its root, until it holds
/// how the group has ended. The name of a rack leads to the object of a program that wants to join.
#[derive(Clone, Debug)]
pub(super) struct Names {
    group: String,
}

impl Names {
    /// The most bytes of a group's name.
    const MOST: usize = 200;

    pub(super) fn of(name: &str) -> Result<Self, StoreError> {
        if name.is_empty() || name.len() > Self::MOST {
            return Err(not_allowed("the name of a group", "1 to 200 bytes"));
        }
        Ok(Self { group: format!(".group-{name}") })
    }

    /// A number that objects of this group have.
    pub(super) fn hash(&self) -> u64 {
        XxHash3_64::oneshot(self.group.as_bytes())
    }

    /// The name of the store with long messages.
    pub(super) fn store(&self) -> String {
        format!("{}-objects", self.group)
    }

    fn member(&self, rack: RackId) -> String {
        format!("{}-rack-{}", self.group, rack.0)
    }

    /// What the group's name holds.
    pub(super) fn root(&self, pool: &Pool) -> Result<Option<GlobalAddr>, StoreError> {
        Ok(pool.root(&self.group)?)
    }

    /// Replaces what the group's name holds. Returns whether it held `expected`.
    pub(super) fn set_root(
        &self,
        pool: &Pool,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<bool, StoreError> {
        Ok(pool.set_root(&self.group, expected, new)?.changed)
    }

    /// Closes the group of this root, unless its members have ended it. Returns whether it is
    /// closed.
    pub(super) fn close(&self, pool: &Pool, root: GlobalAddr) -> Result<bool, StoreError> {
        Ok(pool.set_root(&self.group, Some(root), None)?.addr.is_none())
    }

    /// Decides that the group of this root and number has ended with these survivors, unless its
    /// end is decided. Returns what is.
    pub(super) fn decide(
        &self,
        pool: &Pool,
        (root, number): (GlobalAddr, u64),
        survivors: Survivors,
    ) -> Result<Option<Decision>, StoreError> {
        let word = GlobalAddr::from_raw(survivors.to_raw(number));
        let update = pool.set_root(&self.group, Some(root), Some(word))?;
        Ok(decision_in(update.addr, (root, number)))
    }

    /// How the group of this root and number has ended, if that is decided.
    pub(super) fn decision(
        &self,
        pool: &Pool,
        group: (GlobalAddr, u64),
    ) -> Result<Option<Decision>, StoreError> {
        Ok(decision_in(self.root(pool)?, group))
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
        while {
            let now = pool.root(&name)?;
            now != Some(addr) && !pool.set_root(&name, now, Some(addr))?.changed
        } {}
        Ok(())
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

/// What the name of a group says about the one of this root and number.
fn decision_in(found: Option<GlobalAddr>, (root, number): (GlobalAddr, u64)) -> Option<Decision> {
    match found {
        Some(word) if word == root => None,
        None => Some(Decision::Closed),
        // The root of another group has the name: it decides about none of this one's members.
        Some(word) => {
            Some(Decision::RootLost(Survivors::from_raw(word.raw(), number).unwrap_or_default()))
        }
    }
}
