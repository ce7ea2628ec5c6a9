//! Whose absence the clients may notice in a round: the processes that were killed or stopped, and
//! the racks that the metadata server took for dead.

use std::path::PathBuf;

use super::blows::Away;
use super::round::{LEASE, Victim};
use super::trouble::{Absent, Trouble, are_back, taken_for_dead};
use crate::pool::TestPool;
use rackpool_testing::wait::{TIMEOUT, try_wait_for};

/// The processes whose absence may be noticed.
#[derive(Debug)]
pub(super) struct Absence {
    /// Processes that were away long enough to be noticed.
    hit: Absent,
    log: PathBuf,
    /// Bytes of the metadata server's log when the round began.
    seen: usize,
}

impl Absence {
    /// The start of a round, before any process was killed or stopped.
    pub(super) fn begin(pool: &TestPool) -> Self {
        let log = pool.dir().join("metadata.log");
        let seen = std::fs::read(&log).map_or(0, |said| said.len());
        Self { hit: Absent::default(), log, seen }
    }

    /// Notes that a process was away. Heartbeats come four times a lease, so the absence of a rack
    /// for less than three quarters of a lease must not be noticed. Requests to the metadata server
    /// wait for up to a lease.
    pub(super) fn note(&mut self, away: &Away) {
        match away.who {
            Victim::Daemon(rack) if away.was_killed || away.time >= LEASE * 3 / 4 => {
                self.hit.racks[usize::from(rack)] = true;
            }
            Victim::MetadataServer if away.was_killed || away.time >= LEASE => {
                self.hit.metadata = true;
            }
            _ => {}
        }
    }

    /// What the metadata server has logged in this round.
    fn said(&self) -> String {
        let said = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(said.get(self.seen..).unwrap_or_default()).into_owned()
    }

    fn taken_for_dead(&self) -> [bool; 2] {
        taken_for_dead(&self.said())
    }

    /// Waits until every rack knows that no rack is dead, so that effects of this round can't show
    /// in the next. Returns false if that did not happen in time.
    pub(super) fn is_over(&self, pool: &TestPool) -> bool {
        if !self.taken_for_dead().contains(&true) {
            return true;
        }
        let knows_others = |rack| pool.try_status(rack).is_some_and(|said| said.other_frames > 0);
        let is_over = || are_back(&self.said()) && [0, 1].into_iter().all(knows_others);
        try_wait_for(TIMEOUT, || is_over().then_some(())).is_some()
    }

    /// Returns true if an operation of a client of rack `own` may have failed like this in the
    /// round.
    pub(super) fn allows(&self, own: u16, trouble: Trouble) -> bool {
        let dead = Absent { racks: self.taken_for_dead(), metadata: false };
        self.hit.allows(own, trouble) || dead.allows(own, trouble)
    }

    /// The number of racks that were taken for dead although neither they nor the metadata server
    /// were killed or stopped.
    pub(super) fn late_heartbeats(&self) -> usize {
        if self.hit.metadata {
            return 0;
        }
        let dead = self.taken_for_dead().into_iter().zip(self.hit.racks);
        dead.filter(|(dead, hit)| *dead && !*hit).count()
    }
}
