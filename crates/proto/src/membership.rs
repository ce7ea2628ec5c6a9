//! Which racks are alive: membership leases renewed by heartbeats, and the rules for taking a rack
//! over.

mod record;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{Incarnation, RackId};
use rackpool_wire::metadata::Refusal;

use crate::Time;
use crate::metadata::ConnectionToken;

pub use record::RackRecord;

/// The default length of a lease without a heartbeat.
pub const DEFAULT_LEASE: Duration = Duration::from_millis(2000);

/// The shortest interval at which a rack is sent the others' free frames if nothing else has
/// changed.
const REFRESH: Duration = Duration::from_millis(1000);

/// A heartbeat of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The connection that carried it.
    pub from: ConnectionToken,
    /// The rack.
    pub rack: RackId,
    /// The daemon's incarnation.
    pub incarnation: Incarnation,
    /// Frames that hold no page.
    pub free_frames: u32,
    /// The membership version the daemon has.
    pub seen_version: u64,
}

/// The membership leases. Nothing here is durable; see `docs/design/metadata.md`.
#[derive(Clone, Debug)]
pub struct Membership {
    lease: Duration,
    version: u64,
    /// Counts the heartbeats that changed a rack's free frames.
    freshness: u64,
    racks: BTreeMap<RackId, Standing>,
}

#[derive(Clone, Debug, Default)]
struct Standing {
    /// The end of the lease; `None`: the rack is dead.
    until: Option<Time>,
    free_frames: u32,
    told: Option<Told>,
}

/// When, and on which connection, a rack was last sent all members.
#[derive(Clone, Copy, Debug)]
struct Told {
    on: ConnectionToken,
    at: Time,
    freshness: u64,
}

impl Membership {
    /// Makes a membership without members. Versions start above `version`.
    #[must_use]
    pub const fn new(lease: Duration, version: u64) -> Self {
        Self { lease, version, freshness: 0, racks: BTreeMap::new() }
    }

    /// Returns the length of a lease without a heartbeat.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the membership version. It grows whenever something that other racks see has
    /// changed, except free frames.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the rest of the rack's lease; `None` if it has none.
    #[must_use]
    pub fn lease_left(&self, rack: RackId, now: Time) -> Option<Duration> {
        let until = self.racks.get(&rack)?.until?;
        (until > now).then(|| until.since(now))
    }

    /// Returns true if the rack has a lease. The caller must call [`Self::expire`] first.
    #[must_use]
    pub fn is_alive(&self, rack: RackId) -> bool {
        self.racks.get(&rack).is_some_and(|standing| standing.until.is_some())
    }

    /// Returns the free frames at the rack's last heartbeat; 0 before the first.
    #[must_use]
    pub fn free_frames(&self, rack: RackId) -> u32 {
        self.racks.get(&rack).map_or(0, |standing| standing.free_frames)
    }

    /// Grants the rack a whole lease. `changed`: its incarnation or addresses are new; its free
    /// frames then count as unknown.
    pub fn grant(&mut self, now: Time, rack: RackId, changed: bool) {
        let standing = self.racks.entry(rack).or_default();
        if changed || standing.until.is_none() {
            self.version += 1;
        }
        if changed {
            *standing = Standing::default();
        }
        standing.until = Some(now.after(self.lease));
    }

    /// Ends the rack's lease. `changed` as for [`Self::grant`]: the rack registered and left in one
    /// batch.
    pub fn end(&mut self, rack: RackId, changed: bool) {
        let standing = self.racks.entry(rack).or_default();
        if standing.until.take().is_some() || changed {
            self.version += 1;
        }
        if changed {
            *standing = Standing::default();
        }
    }

    /// Ends the leases that have expired and returns their racks.
    pub fn expire(&mut self, now: Time) -> Vec<RackId> {
        let over = |(&rack, standing): (&RackId, &Standing)| {
            standing.until.is_some_and(|until| until <= now).then_some(rack)
        };
        let expired: Vec<RackId> = self.racks.iter().filter_map(over).collect();
        for &rack in &expired {
            self.end(rack, false);
        }
        expired
    }

    /// Extends all leases after the server itself did not run for a while and did not read
    /// heartbeats. Each lease lasts at least half its length more: enough to read those and to
    /// receive one more.
    pub fn stood_still(&mut self, now: Time) {
        let least = now.after(self.lease / 2);
        for until in self.racks.values_mut().filter_map(|standing| standing.until.as_mut()) {
            *until = least.max(*until);
        }
    }

    /// Returns the connections over which to send all members now: those of the racks that have a
    /// lease and were sent the members before.
    pub fn tell_all(&mut self, now: Time) -> Vec<ConnectionToken> {
        let freshness = self.freshness;
        let alive = self.racks.values_mut().filter(|standing| standing.until.is_some());
        let told = alive.filter_map(|standing| standing.told.as_mut());
        told.map(|told| {
            (told.at, told.freshness) = (now, freshness);
            told.on
        })
        .collect()
    }

    /// Returns the time when the next lease expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.racks.values().filter_map(|standing| standing.until).min()
    }

    /// Renews a lease. Returns true if the answer must carry all members: the daemon has another
    /// version, it was not sent them on this connection yet, or free frames have changed since it
    /// was sent them at least a second ago.
    ///
    /// # Errors
    /// [`Refusal::NotMember`] without a lease; [`RackRecord::check`]'s otherwise.
    pub fn heartbeat(
        &mut self,
        now: Time,
        record: &RackRecord,
        beat: Heartbeat,
    ) -> Result<bool, Refusal> {
        record.check(beat.rack, beat.incarnation)?;
        let standing = match self.racks.get_mut(&beat.rack) {
            Some(standing) if standing.until.is_some() => standing,
            _ => return Err(Refusal::NotMember(beat.rack)),
        };
        standing.until = Some(now.after(self.lease));
        if standing.free_frames != beat.free_frames {
            standing.free_frames = beat.free_frames;
            self.freshness += 1;
        }
        let stale = standing.told.is_none_or(|told| {
            told.on != beat.from
                || (told.freshness != self.freshness && now.since(told.at) >= REFRESH)
        });
        let tell = stale || beat.seen_version != self.version;
        if tell {
            standing.told = Some(Told { on: beat.from, at: now, freshness: self.freshness });
        }
        Ok(tell)
    }
}
