//! Freed objects whose page has an unknown home: the metadata server is asked. Meanwhile the
//! objects stay in the client's cells.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_model::{GlobalAddr, PageId};
use rackpool_shm::marks::ObjectHolder;
use rackpool_wire::rack::RackAnswer;

use super::Job;
use crate::data_plane::clients::{ClientThread, strike};
use crate::data_plane::{ControlNotification, DataPlane, Located};

/// Interval between two requests to a metadata server that does not answer.
const AGAIN: Duration = Duration::from_millis(100);

/// Freed objects of one page.
#[derive(Debug)]
struct Returning {
    owner: ClientThread,
    release: Option<u64>,
    addrs: Vec<GlobalAddr>,
}

/// All objects whose home is unknown.
#[derive(Debug, Default)]
pub(super) struct Homeless {
    waiting: BTreeMap<PageId, Vec<Returning>>,
    /// Pages to ask for again.
    again: BTreeMap<PageId, Instant>,
}

impl Homeless {
    pub(super) fn has_deadlines(&self) -> bool {
        !self.again.is_empty()
    }
}

impl DataPlane {
    /// Asks the metadata server for the home of a page to which these objects are returned.
    pub(in crate::data_plane) fn find_home(
        &mut self,
        page: PageId,
        owner: ClientThread,
        release: Option<u64>,
        addrs: Vec<GlobalAddr>,
    ) {
        let waiting = self.exchanges.homeless.waiting.entry(page).or_default();
        waiting.push(Returning { owner, release, addrs });
        if waiting.len() == 1 {
            self.notify(ControlNotification::Locate(page));
        }
    }

    /// Handles the metadata server's answer about a page.
    pub(in crate::data_plane) fn homeless_located(
        &mut self,
        page: PageId,
        home: Located,
    ) -> anyhow::Result<()> {
        let Some(waiting) = self.exchanges.homeless.waiting.remove(&page) else { return Ok(()) };
        let mut kept = Vec::new();
        for Returning { owner, release, addrs } in waiting {
            match (home, release) {
                (Located::Home(home), _) if home != self.rack.geometry.rack => {
                    self.meet(home);
                    let job = Job::Free { owner: Some(owner), release, addrs };
                    self.begin_exchange(home, job)?;
                }
                // The page has arrived, is arriving, or the answer is old.
                (Located::Home(_), _) if self.is_near(page) => {
                    let returning = Returning { owner, release, addrs };
                    kept.extend(self.free_returning(page, returning)?);
                }
                (Located::Home(_) | Located::NoSuchPage | Located::Lost, _) => {
                    if let Some(slot) = self.clients.slot(owner) {
                        strike(slot, |addr| addrs.contains(&addr));
                    }
                    self.job_ended(Some(owner), release, addrs.len() as u64);
                }
                (Located::Unreachable, Some(_)) => {
                    self.job_dropped(Some(owner), release, RackAnswer::MetadataUnreachable);
                }
                (Located::Unreachable, None) => kept.push(Returning { owner, release, addrs }),
            }
        }
        if !kept.is_empty() {
            self.exchanges.homeless.waiting.insert(page, kept);
            self.exchanges.homeless.again.insert(page, Instant::now() + AGAIN);
        }
        Ok(())
    }

    /// Frees objects of a page that is in this rack. Gives them back if they have to wait.
    fn free_returning(
        &mut self,
        page: PageId,
        mut returning: Returning,
    ) -> anyhow::Result<Option<Returning>> {
        if self.slab.lookup(page).is_none() || self.must_wait(page) {
            return Ok(Some(returning));
        }
        self.keep_noted(returning.owner, &mut returning.addrs);
        let Returning { owner, release, addrs } = returning;
        let mut refused = 0;
        for addr in &addrs {
            refused += u64::from(self.slab.free(*addr, ObjectHolder::of(owner.client))?.is_err());
        }
        if let Some(slot) = self.clients.slot(owner) {
            strike(slot, |addr| addrs.contains(&addr));
        }
        self.job_ended(Some(owner), release, refused);
        Ok(None)
    }

    /// Repeats the requests that were not answered.
    pub(super) fn drive_homeless(&mut self, now: Instant) -> anyhow::Result<()> {
        let due = |at: &Instant| now > *at;
        let again = &mut self.exchanges.homeless.again;
        let pages: Vec<PageId> = again.iter().filter(|(_, at)| due(at)).map(|(p, _)| *p).collect();
        for page in pages {
            self.exchanges.homeless.again.remove(&page);
            self.notify(ControlNotification::Locate(page));
        }
        Ok(())
    }
}
