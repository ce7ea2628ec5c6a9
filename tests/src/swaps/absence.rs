//! Whose absence may be noticed in a round: who was hit, and whom the metadata server took for dead.

use std::path::PathBuf;

use super::blows::Away;
use super::round::{LEASE, Victim};
use super::trouble::{Absent, Trouble, taken_for_dead};
use crate::pool::TestPool;

/// Whose absence may be noticed.
#[derive(Debug)]
pub(super) struct Absence {
    /// Who was hit so that it shows.
    hit: Absent,
    log: PathBuf,
    /// Bytes of the metadata server's log when the round began.
    seen: usize,
    /// The same of the round before.
    seen_before: usize,
}

impl Absence {
    /// A round begins, nobody has been hit. `before`: the one before it.
    pub(super) fn begin(pool: &TestPool, before: Option<&Self>) -> Self {
        let log = pool.dir().join("metadata.log");
        let seen = std::fs::read(&log).map_or(0, |said| said.len());
        Self { hit: Absent::default(), log, seen, seen_before: before.map_or(0, |one| one.seen) }
    }

    /// Somebody was away. Heartbeats come four times a lease, so a rack that stands still for less than
    /// three quarters of one is there all the time, and nobody may be told that it is not. The
    /// metadata server is waited for as long as a lease.
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

    /// The racks that the metadata server has taken for dead since its log was so long.
    fn taken_for_dead(&self, since: usize) -> [bool; 2] {
        let said = std::fs::read(&self.log).unwrap_or_default();
        taken_for_dead(&String::from_utf8_lossy(said.get(since..).unwrap_or_default()))
    }

    /// Whether an operation of a client of rack `own` may have failed like that in this round.
    pub(super) fn allows(&self, own: u16, trouble: Trouble) -> bool {
        // That a rack lives again the others hear from the metadata server, if that is not hit first.
        let since = if self.hit.metadata { self.seen_before } else { self.seen };
        let dead = Absent { racks: self.taken_for_dead(since), metadata: false };
        self.hit.allows(own, trouble) || dead.allows(own, trouble)
    }

    /// How many racks were taken for dead though neither they nor the metadata server had been hit.
    pub(super) fn late_heartbeats(&self) -> usize {
        if self.hit.metadata {
            return 0;
        }
        let dead = self.taken_for_dead(self.seen).into_iter().zip(self.hit.racks);
        dead.filter(|(dead, hit)| *dead && !*hit).count()
    }
}
