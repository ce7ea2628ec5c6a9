//! The racks of the pool: where pages were born, and which racks are alive.

use alloc::vec::Vec;

use rackpool_model::{PageId, RackId};
use rackpool_wire::metadata::Member;

use super::{PageWords, RackAction, RackMachine};
use crate::planted_bugs::Bugs;

/// The members that the metadata server named last.
#[derive(Debug, Default)]
pub(super) struct Members {
    all: Vec<Member>,
}

impl Members {
    /// Returns the rack in which the page was born.
    pub(super) fn birth_home(&self, page: PageId) -> Option<RackId> {
        self.all.iter().find(|member| member.pages.contains(page)).map(|member| member.rack)
    }

    /// Returns true if the rack's lease with the metadata server is known to have expired.
    pub(super) fn is_dead(&self, rack: RackId) -> bool {
        self.of(rack).is_some_and(|member| !member.alive)
    }

    fn of(&self, rack: RackId) -> Option<&Member> {
        self.all.iter().find(|member| member.rack == rack)
    }
}

impl<B: Bugs> RackMachine<B> {
    /// The metadata server has named the members of the pool. The shell must poll.
    pub fn members_changed(&mut self, members: Vec<Member>) {
        let before = core::mem::replace(&mut self.members.all, members);
        for Member { rack, memory, .. } in before {
            // The rack has new memory: everything leased from it is gone.
            if self.members.of(rack).is_none_or(|member| member.memory != memory) {
                self.locations.forget_home(rack);
                self.holder.forget_home(rack);
                self.actions.push_back(RackAction::DisconnectRack(rack));
            }
        }
    }

    /// Returns the members that the metadata server named last.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members.all
    }

    /// Returns true if the metadata server has named the rack. If not, the rack joined after the
    /// last heartbeat, or this daemon has had none yet.
    #[must_use]
    pub fn is_known(&self, rack: RackId) -> bool {
        self.members.of(rack).is_some()
    }

    /// Returns true if the rack's lease with the metadata server is known to have expired.
    #[must_use]
    pub fn is_dead(&self, rack: RackId) -> bool {
        self.members.is_dead(rack)
    }

    /// Returns the home of a page as far as this rack knows: where the page was last found, or
    /// where it was born. `None` for a page in this rack, and for a page that was born here and has
    /// left.
    #[must_use]
    pub fn home_of(&self, words: &impl PageWords, page: PageId) -> Option<RackId> {
        if words.find(page).is_some() {
            return None;
        }
        if let Some(found) = self.locations.of(page) {
            return Some(found.home);
        }
        self.members.birth_home(page).filter(|home| *home != self.exchanges.own().rack)
    }
}
