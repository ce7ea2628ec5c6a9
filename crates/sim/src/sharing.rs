//! Replicas and shared pages, as clients use them.

use rackpool_model::{PageId, PageState};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::rack::RackEvent;

use crate::world::World;

impl<B: Bugs> World<B> {
    /// A client has read a replica; its daemon sees a sample of such reads.
    pub(crate) fn copy_used(&mut self, rack: usize, page: PageId) {
        let (now, told) = (self.local_time(rack), self.rng.percent(50));
        let runs = self.racks[rack].paused_until <= self.now;
        if let Some(daemon) = &mut self.racks[rack].daemon
            && told
            && runs
        {
            daemon.machine.used_by_copy(now, page);
            self.run_rack(rack);
        }
    }

    /// A client needs to do what a shared page does not permit.
    pub(crate) fn unshare(&mut self, page: PageId) {
        for rack in 0..self.racks.len() {
            let node = &self.racks[rack];
            let found = node.memory.find(page).map(|found| found.word.state());
            if found == Some(Some(PageState::Shared)) && node.paused_until <= self.now {
                self.feed(rack, RackEvent::WriteNeeded(page));
            }
        }
    }

    pub(crate) fn is_shared_somewhere(&self, page: PageId) -> bool {
        let mut words = self.racks.iter().flat_map(|rack| rack.memory.all());
        words
            .any(|found| found.word.page() == page && found.word.state() == Some(PageState::Shared))
    }
}
