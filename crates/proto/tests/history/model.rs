use std::collections::BTreeMap;

use rackpool_model::{GlobalAddr, MemoryId, PageId, PageRange, RackId};
use rackpool_proto::directory::Run;
use rackpool_proto::metadata::{Change, ConnectionToken};
use rackpool_wire::metadata::{
    MetadataReply, MetadataRequest, PoolStatus, RackAnnouncement, Refusal,
};

use super::swaps::Swaps;

/// What must be true, computed without code of the machine.
#[derive(Default)]
pub(crate) struct Model {
    pub(super) runs: Vec<Run>,
    pub(super) racks: BTreeMap<RackId, (MemoryId, u64, bool)>,
    pub(super) swaps: Swaps,
    roots: BTreeMap<String, GlobalAddr>,
    /// The roots according to the answers so far: a batch is durable before it is answered.
    said_roots: BTreeMap<String, GlobalAddr>,
    pub(super) boots: u32,
    /// Commits of this boot.
    commits: u64,
    page_bytes: u64,
    last_version: u64,
    /// The last status, to check that its content changes only together with its version.
    last_status: Option<PoolStatus>,
}

impl Model {
    /// A change has become durable.
    pub(super) fn stored(&mut self, change: &Change) {
        match change {
            Change::Advanced { commit } => {
                assert!(*commit > self.commits, "each commit has a number of its own");
                self.commits = *commit;
            }
            Change::Started { boot, .. } => {
                self.commits = 0;
                assert!(*boot > self.boots);
                self.boots = *boot;
            }
            Change::PoolFormatted { page_size } => {
                assert_eq!(self.page_bytes, 0, "the page size never changes");
                self.page_bytes = page_size.bytes();
            }
            Change::RunHandedOut(run) => {
                let (first, last) = bounds(run.pages);
                assert!(first > 0, "page 0 is never handed out");
                for other in &self.runs {
                    let (low, high) = bounds(other.pages);
                    assert!(last < low || high < first, "{run:?} overlaps {other:?}");
                    assert_ne!(run.memory, other.memory, "a memory has one run");
                }
                self.runs.push(*run);
            }
            Change::RackRegistered { rack, record } => {
                let run = self.run_of(record.memory).expect("a run before the rack");
                assert_eq!(run.rack, *rack);
                if let Some((memory, incarnation, _)) = self.racks.get(rack)
                    && *memory == record.memory
                {
                    assert!(record.incarnation.0 >= *incarnation, "an old daemon took over");
                }
                self.racks.insert(*rack, (record.memory, record.incarnation.0, record.left));
            }
            Change::RackLeft { rack } => self.racks.get_mut(rack).expect("a known rack").2 = true,
            Change::PageMoved(moved) => self.page_moved(*moved),
            Change::RootPut { name, addr } => {
                self.roots.insert(name.clone(), *addr);
            }
            Change::RootRemoved { name } => {
                assert!(self.roots.remove(name).is_some());
            }
        }
    }

    pub(crate) fn restarted(&mut self) {
        self.last_status = None;
        self.swaps.restarted();
        // The answers to a batch that was durable were lost.
        self.said_roots.clone_from(&self.roots);
    }

    /// Checks an answer: it must follow from what is durable.
    pub(crate) fn replied(
        &mut self,
        from: ConnectionToken,
        request: &MetadataRequest,
        reply: &MetadataReply,
    ) {
        match (request, reply) {
            (_, MetadataReply::Refused(Refusal::Store(_))) => {}
            (
                MetadataRequest::Register(asked),
                MetadataReply::Registered { pages, lease_ms, .. },
            ) => {
                self.registered(asked, *pages);
                self.swaps.connected(asked.rack, from);
                assert_eq!(*lease_ms, 2000);
            }
            (
                MetadataRequest::Heartbeat { rack, incarnation, .. },
                MetadataReply::Renewed { version, .. },
            ) => {
                let (_, current, left) = self.racks[rack];
                assert_eq!((incarnation.0, false), (current, left));
                self.saw_version(*version);
            }
            (MetadataRequest::Leave { rack, .. }, MetadataReply::Left) => {
                assert!(self.racks.contains_key(rack));
            }
            (MetadataRequest::Locate { page }, _) => assert_eq!(*reply, self.locate(*page)),
            (MetadataRequest::Explain { page }, _) => self.explained(*page, reply),
            (MetadataRequest::GetRoot { name }, MetadataReply::Root { addr, changed }) => {
                assert_eq!((self.roots.get(name), false), (addr.as_ref(), *changed));
            }
            (
                MetadataRequest::PutRoot { name, expected, new },
                MetadataReply::Root { addr, changed },
            ) => {
                let was = self.said_roots.get(name).copied();
                assert_eq!(*changed, was == *expected);
                assert_eq!(*addr, if *changed { *new } else { was });
                match addr {
                    Some(addr) => self.said_roots.insert(name.clone(), *addr),
                    None => self.said_roots.remove(name),
                };
            }
            (MetadataRequest::Status, MetadataReply::Status(status)) => self.status(status),
            (_, MetadataReply::Refused(_)) => {}
            (request, reply) => panic!("{request:?} was answered by {reply:?}"),
        }
    }

    fn registered(&self, asked: &RackAnnouncement, pages: PageRange) {
        let run = self.run_of(asked.memory).expect("the run is durable");
        assert_eq!((run.rack, run.pages, pages.count), (asked.rack, pages, asked.frames));
        assert!(self.racks.contains_key(&asked.rack));
        assert_eq!(self.page_bytes, asked.page_bytes);
    }

    fn status(&mut self, status: &PoolStatus) {
        self.saw_version(status.version);
        assert_eq!(status.page_bytes, self.page_bytes);
        assert!(status.roots.iter().map(|(name, addr)| (name, addr)).eq(&self.roots));
        assert_eq!(status.members.len(), self.racks.len());
        for member in &status.members {
            let (memory, incarnation, left) = self.racks[&member.rack];
            assert_eq!((member.memory, member.incarnation.0), (memory, incarnation));
            assert!(!(left && member.alive));
            assert_eq!(Some(member.pages), self.run_of(memory).map(|run| run.pages));
        }
        let pages = self.runs.iter().flat_map(|run| {
            let (first, last) = bounds(run.pages);
            (first..=last).map(|page| PageId(u32::try_from(page).unwrap()))
        });
        let lost = pages.filter(|page| self.home(*page).is_none()).count() as u64;
        assert_eq!(status.lost_pages, lost);
        if let Some(last) = &self.last_status
            && last.version == status.version
        {
            let seen = |status: &PoolStatus| -> Vec<_> {
                let members = status.members.iter();
                members
                    .map(|m| (m.rack, m.alive, m.incarnation, m.fabric_address.clone()))
                    .collect()
            };
            assert_eq!(seen(last), seen(status), "event without a new version");
        }
        self.last_status = Some(status.clone());
    }

    pub(super) fn saw_version(&mut self, version: u64) {
        assert!(version >= self.last_version, "the version has decreased");
        assert_eq!(version >> 32, u64::from(self.boots), "a version of a boot that is not durable");
        self.last_version = version;
    }

    fn locate(&self, page: PageId) -> MetadataReply {
        let Some(run) = self.runs.iter().find(|run| run.pages.contains(page)) else {
            return MetadataReply::NoSuchPage;
        };
        let Some(home) = self.home(page) else { return MetadataReply::PageLost };
        if self.swaps.moved(page).is_some() {
            return MetadataReply::Located { pages: PageRange { first: page, count: 1 }, home };
        }
        // Page by page in both directions, up to a page that has moved.
        let stays = |page: u32| {
            let page = PageId(page);
            run.pages.contains(page) && self.swaps.moved(page).is_none()
        };
        let (mut first, mut last) = (page.0, page.0);
        while stays(first - 1) {
            first -= 1;
        }
        while stays(last + 1) {
            last += 1;
        }
        let pages = PageRange { first: PageId(first), count: last - first + 1 };
        MetadataReply::Located { pages, home }
    }

    /// Returns a page's home: the rack that serves the memory to which the page moved last, or in
    /// which its id was assigned.
    pub(super) fn home(&self, page: PageId) -> Option<RackId> {
        let born = self.runs.iter().find(|run| run.pages.contains(page))?;
        let (home, memory) = match self.swaps.moved(page) {
            Some(moved) => (moved.home, moved.memory),
            None => (born.rack, born.memory),
        };
        let served = self.racks.get(&home)?.0;
        (served == memory).then_some(home)
    }

    fn run_of(&self, memory: MemoryId) -> Option<&Run> {
        self.runs.iter().find(|run| run.memory == memory)
    }
}

fn bounds(pages: PageRange) -> (u64, u64) {
    let first = u64::from(pages.first.0);
    (first, first + u64::from(pages.count) - 1)
}
