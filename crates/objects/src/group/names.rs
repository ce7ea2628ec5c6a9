//! The names of the pool by which the programs of a group find each other.

use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_proto::group::words::Decision;
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

    /// Decides how the group of this root and number has ended, unless that is decided. Returns what
    /// is; `None` if the name leads to the root of another group by now.
    pub(super) fn decide(
        &self,
        pool: &Pool,
        (root, number): (GlobalAddr, u64),
        decision: Decision,
    ) -> Result<Option<Decision>, StoreError> {
        let word = GlobalAddr::from_raw(decision.to_raw(number));
        let update = pool.set_root(&self.group, Some(root), Some(word))?;
        Ok(update.addr.and_then(|word| Decision::from_raw(word.raw(), number)))
    }

    /// How the group of this number has ended, if that is decided.
    pub(super) fn decision(
        &self,
        pool: &Pool,
        number: u64,
    ) -> Result<Option<Decision>, StoreError> {
        let word = self.root(pool)?;
        Ok(word.and_then(|word| Decision::from_raw(word.raw(), number)))
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
