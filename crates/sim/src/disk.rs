//! The disk of the metadata server: the records as its store returns them.

use std::collections::BTreeMap;

use rackpool_model::{GlobalAddr, PageId, PageSize, RackId};
use rackpool_proto::directory::{Moved, Run};
use rackpool_proto::membership::RackRecord;
use rackpool_proto::metadata::Change;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    boot: u32,
    /// Each server that started, and its last commit.
    lives: BTreeMap<u32, (u64, u64)>,
    page_size: Option<PageSize>,
    runs: BTreeMap<PageId, Run>,
    racks: BTreeMap<RackId, RackRecord>,
    moved: BTreeMap<PageId, Moved>,
    roots: BTreeMap<String, GlobalAddr>,
    /// Written and not synced; a crash keeps or loses all of it.
    unsynced: Vec<Change>,
}

impl Disk {
    /// Begins a transaction; the previous one has ended.
    pub(crate) fn write(&mut self, changes: Vec<Change>) {
        self.unsynced = changes;
    }

    /// Makes the transaction durable. Returns the number of pages that it moves.
    pub(crate) fn sync(&mut self) -> u64 {
        let changes = std::mem::take(&mut self.unsynced);
        let moved = changes.iter().filter(|change| matches!(change, Change::PageMoved(_))).count();
        for change in changes {
            self.apply(change);
        }
        moved as u64
    }

    /// The server has died; an unsynced transaction is kept or lost.
    pub(crate) fn crash(&mut self, keeps: bool) {
        if keeps {
            self.sync();
        }
        self.unsynced.clear();
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Started { boot, server } => {
                self.boot = boot;
                self.lives.insert(boot, (server, 1));
            }
            Change::Advanced { commit } => {
                if let Some((_, commits)) = self.lives.get_mut(&self.boot) {
                    *commits = commit;
                }
            }
            Change::PoolFormatted { page_size } => self.page_size = Some(page_size),
            Change::RunHandedOut(run) => {
                self.runs.insert(run.pages.first, run);
            }
            Change::RackRegistered { rack, record } => {
                self.racks.insert(rack, record);
            }
            Change::RackLeft { rack } => {
                if let Some(record) = self.racks.get_mut(&rack) {
                    record.left = true;
                }
            }
            Change::PageMoved(moved) => {
                self.moved.insert(moved.page, moved);
            }
            Change::RootPut { name, addr } => {
                self.roots.insert(name, addr);
            }
            Change::RootRemoved { name } => {
                self.roots.remove(&name);
            }
        }
    }

    /// Returns the durable changes in the order in which a store returns them.
    pub(crate) fn read(&self) -> Vec<Change> {
        let lives = self.lives.iter().flat_map(|(&boot, &(server, commit))| {
            [Change::Started { boot, server }, Change::Advanced { commit }]
        });
        let formatted = self.page_size.map(|page_size| Change::PoolFormatted { page_size });
        let runs = self.runs.values().copied().map(Change::RunHandedOut);
        let racks = self.racks.iter().map(|(rack, record)| (*rack, record.clone()));
        let racks = racks.map(|(rack, record)| Change::RackRegistered { rack, record });
        let moved = self.moved.values().copied().map(Change::PageMoved);
        let roots = self.roots.iter().map(|(name, addr)| (name.clone(), *addr));
        let roots = roots.map(|(name, addr)| Change::RootPut { name, addr });
        let sizes = lives.chain(formatted);
        sizes.chain(runs).chain(racks).chain(moved).chain(roots).collect()
    }

    /// Returns the home of a page. Racks of the simulator never change their memory.
    pub(crate) fn home(&self, page: PageId) -> Option<RackId> {
        if let Some(moved) = self.moved.get(&page) {
            return Some(moved.home);
        }
        let (_, run) = self.runs.range(..=page).next_back()?;
        run.pages.contains(page).then_some(run.rack)
    }

    pub(crate) fn rack(&self, rack: RackId) -> Option<&RackRecord> {
        self.racks.get(&rack)
    }

    pub(crate) fn racks(&self) -> impl Iterator<Item = (RackId, &RackRecord)> {
        self.racks.iter().map(|(rack, record)| (*rack, record))
    }

    /// Returns the address under a name; 0 for none.
    pub(crate) fn root(&self, name: &str) -> u64 {
        self.roots.get(name).map_or(0, |addr| addr.raw())
    }
}
