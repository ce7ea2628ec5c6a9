//! Objects that a rack did not take back because their pages had moved. They stay in the record of
//! that rack, in the state `MOVED`, until the metadata server has named the pages' homes; then they
//! go into the record of the home. They are written there first and removed here afterwards: after
//! a crash, objects in both records are removed from the one in the state `MOVED`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rackpool_model::{GlobalAddr, MAX_RACKS, PageId, RackId};
use rackpool_shm::marks::ObjectHolder;
use rackpool_shm::metadata::PEER_BATCH;
use rackpool_sync::atomic::Ordering;

use super::Job;
use super::asked::{FREE, MOVED, addrs_of, set_addrs};
use crate::data_plane::{ControlNotification, DataPlane, Located};

/// Interval between two requests for a page, and between two attempts to pass objects on.
const AGAIN: Duration = Duration::from_millis(20);

/// The moved objects in the record of one rack.
#[derive(Debug)]
pub(super) struct MovedObjects {
    /// The homes of their pages, as far as they are known.
    homes: BTreeMap<PageId, RackId>,
    /// When the other pages are asked for again.
    again: Instant,
    /// Until this time callers wait for the record.
    deadline: Instant,
}

impl MovedObjects {
    fn new(now: Instant, lease: Duration) -> Self {
        Self { homes: BTreeMap::new(), again: now, deadline: now + lease }
    }

    pub(super) const fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl DataPlane {
    /// Handles the answer of a rack that has freed all objects but these.
    pub(super) fn objects_moved(
        &mut self,
        rack: RackId,
        moved: &[GlobalAddr],
    ) -> anyhow::Result<()> {
        let log = self.asked_log(rack)?;
        // In the record's order, so that each remaining object stays in the record throughout.
        let page_size = self.rack.geometry.page_size;
        let mut left = Vec::new();
        for addr in addrs_of(log) {
            let is_one = moved.contains(&addr) && addr.page(page_size).is_some();
            if is_one && !left.contains(&addr) {
                left.push(addr);
            }
        }
        if left.is_empty() {
            return self.finish_exchange(rack);
        }
        set_addrs(log, &left);
        log.state.store(MOVED, Ordering::Release);
        self.seek_moved(rack, &left)
    }

    /// Asks the metadata server for the homes of these objects' pages.
    fn seek_moved(&mut self, rack: RackId, addrs: &[GlobalAddr]) -> anyhow::Result<()> {
        let now = self.now();
        let line = self.exchanges.lines.entry(rack).or_default();
        let moved = line.moved.get_or_insert_with(|| MovedObjects::new(now, self.lease));
        moved.again = now + AGAIN;
        let page_size = self.rack.geometry.page_size;
        let pages: BTreeSet<PageId> =
            addrs.iter().filter_map(|addr| addr.page(page_size)).collect();
        for page in pages.into_iter().filter(|page| !moved.homes.contains_key(page)) {
            let _ = self.notifications.send(ControlNotification::Locate(page));
        }
        Ok(())
    }

    /// Handles the metadata server's answer about a page.
    pub(in crate::data_plane) fn moved_located(
        &mut self,
        page: PageId,
        home: Located,
    ) -> anyhow::Result<()> {
        let page_size = self.rack.geometry.page_size;
        let own = self.rack.geometry.rack;
        let lines: Vec<RackId> = self
            .exchanges
            .lines
            .iter()
            .filter(|(_, l)| l.moved.is_some())
            .map(|(r, _)| *r)
            .collect();
        for rack in lines {
            let of_page = |addr: &GlobalAddr| addr.page(page_size) == Some(page);
            if !addrs_of(self.asked_log(rack)?).iter().any(of_page) {
                continue;
            }
            match home {
                Located::Home(home) if home != own => {
                    self.meet(home);
                    let line = self.exchanges.lines.get_mut(&rack);
                    if let Some(moved) = line.and_then(|line| line.moved.as_mut()) {
                        moved.homes.insert(page, home);
                    }
                }
                // The page has arrived, is arriving, or the answer is old.
                Located::Home(_) if self.is_near(page) => self.free_moved(rack, page)?,
                Located::Home(_) | Located::NoSuchPage | Located::Lost => {
                    self.strike_moved(rack, |addr| of_page(&addr))?;
                }
                Located::Unreachable => {}
            }
            self.pass_on(rack)?;
        }
        Ok(())
    }

    /// Frees objects of a page that is in this rack now. As everywhere, they are freed first and
    /// removed from the record afterwards.
    fn free_moved(&mut self, rack: RackId, page: PageId) -> anyhow::Result<()> {
        if self.slab.lookup(page).is_none() || self.must_wait(page) {
            return Ok(());
        }
        let page_size = self.rack.geometry.page_size;
        for addr in addrs_of(self.asked_log(rack)?) {
            if addr.page(page_size) == Some(page)
                && self.slab.free(addr, ObjectHolder::DAEMON)?.is_err()
            {
                tracing::debug!("{addr} was not in use when it came back");
            }
        }
        self.strike_moved(rack, |addr| addr.page(page_size) == Some(page))
    }

    fn strike_moved(
        &self,
        rack: RackId,
        struck: impl Fn(GlobalAddr) -> bool,
    ) -> anyhow::Result<()> {
        let log = self.asked_log(rack)?;
        let left: Vec<GlobalAddr> =
            addrs_of(log).into_iter().filter(|addr| !struck(*addr)).collect();
        set_addrs(log, &left);
        Ok(())
    }

    /// Passes on the objects whose home is known, and ends the state when none are left.
    fn pass_on(&mut self, rack: RackId) -> anyhow::Result<()> {
        let page_size = self.rack.geometry.page_size;
        let Some(moved) = self.exchanges.lines.get_mut(&rack).and_then(|line| line.moved.as_mut())
        else {
            return Ok(());
        };
        let homes = moved.homes.clone();
        let addrs = addrs_of(self.asked_log(rack)?);
        let mut by_home = BTreeMap::<RackId, Vec<GlobalAddr>>::new();
        for addr in &addrs {
            if let Some(home) = addr.page(page_size).and_then(|page| homes.get(&page)) {
                by_home.entry(*home).or_default().push(*addr);
            }
        }
        let mut all = by_home.values().map(Vec::len).sum::<usize>() == addrs.len();
        for (home, addrs) in by_home.iter().filter(|(home, _)| **home != rack) {
            if self.pass_to(*home, addrs)? {
                self.strike_moved(rack, |addr| addrs.contains(&addr))?;
            } else {
                all = false;
            }
        }
        let left = addrs_of(self.asked_log(rack)?);
        if (left.is_empty() || all)
            && let Some(line) = self.exchanges.lines.get_mut(&rack)
        {
            line.moved = None;
        }
        if left.is_empty() {
            return self.finish_exchange(rack);
        }
        if all {
            // The pages have returned to the rack of this record.
            let job = Job::Free { owner: None, release: None, addrs: left };
            return self.start_exchange(rack, job).map(drop);
        }
        Ok(())
    }

    /// Puts objects into the record of another rack. Returns false if the record has no room.
    fn pass_to(&mut self, home: RackId, addrs: &[GlobalAddr]) -> anyhow::Result<bool> {
        if home.0 >= MAX_RACKS {
            return Ok(false);
        }
        let line = self.exchanges.lines.entry(home).or_default();
        if line.is_idle() {
            let job = Job::Free { owner: None, release: None, addrs: addrs.to_vec() };
            return self.start_exchange(home, job);
        }
        let Some(moved) = &mut line.moved else { return Ok(false) };
        let page_size = self.rack.geometry.page_size;
        let pages = addrs.iter().filter_map(|addr| addr.page(page_size));
        let log = &self.rack.metadata.peer(home)?.asked;
        let there = addrs_of(log);
        if there.len() + addrs.len() > PEER_BATCH {
            return Ok(false);
        }
        moved.homes.extend(pages.map(|page| (page, home)));
        set_addrs(log, &[&there[..], addrs].concat());
        Ok(true)
    }

    /// Repeats requests, and retries passing objects on.
    pub(super) fn drive_moved(&mut self, now: Instant) -> anyhow::Result<()> {
        let due = |moved: &MovedObjects| now >= moved.again;
        let lines = self.exchanges.lines.iter().filter(|(_, l)| l.moved.as_ref().is_some_and(due));
        for rack in lines.map(|(rack, _)| *rack).collect::<Vec<_>>() {
            let addrs = addrs_of(self.asked_log(rack)?);
            self.seek_moved(rack, &addrs)?;
            self.pass_on(rack)?;
        }
        Ok(())
    }

    /// Continues after a restart. Nothing has been allocated yet, so an object of a page in this
    /// rack that is not allocated was freed before the crash.
    pub(super) fn resume_moved(
        &mut self,
        rack: RackId,
        addrs: Vec<GlobalAddr>,
    ) -> anyhow::Result<()> {
        tracing::info!("objects of {rack} had moved away: they are looked for");
        let page_size = self.rack.geometry.page_size;
        self.strike_everywhere(&addrs);
        let mut elsewhere = BTreeSet::new();
        for other in (0..MAX_RACKS).map(RackId).filter(|other| *other != rack) {
            let log = self.asked_log(other)?;
            let state = log.state.load(Ordering::Acquire);
            let is_sent = state != MOVED && state != 0 && log.kind.load(Ordering::Relaxed) == FREE;
            if is_sent || (state == MOVED && other < rack) {
                elsewhere.extend(addrs_of(log));
            }
        }
        let is_free = |addr: GlobalAddr| {
            let page = addr.page(page_size);
            page.is_some_and(|page| self.slab.lookup(page).is_some())
                && !self.slab.is_allocated(addr)
        };
        let mut left = Vec::new();
        for addr in addrs {
            if !elsewhere.contains(&addr) && !is_free(addr) && !left.contains(&addr) {
                left.push(addr);
            }
        }
        set_addrs(self.asked_log(rack)?, &left);
        self.seek_moved(rack, &left)?;
        self.pass_on(rack)
    }
}
