//! Which racks are alive: leases renewed by heartbeats, and the rules of taking a rack over.

mod record;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{Incarnation, RackId};
use rackpool_wire::metadata::Refusal;

use crate::Time;
use crate::metadata::ConnectionToken;

pub use record::RackRecord;

/// How long a lease lasts without a heartbeat unless configured.
pub const DEFAULT_LEASE: Duration = Duration::from_millis(2000);

/// How often at most a rack is told of the others' free frames when nothing else is new.
const REFRESH: Duration = Duration::from_millis(1000);

/// A sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The connection it came on.
    pub from: ConnectionToken,
    /// The rack.
    pub rack: RackId,
    /// The daemon's life.
    pub incarnation: Incarnation,
    /// Frames that hold no page.
    pub free_frames: u32,
    /// The membership version the daemon has.
    pub seen_version: u64,
}

/// The leases. Nothing here is durable; see `docs/design/metadata.md`.
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
    /// The end of the lease; `None`: dead.
    until: Option<Time>,
    free_frames: u32,
    told: Option<Told>,
}

/// When a rack was last sent all members.
#[derive(Clone, Copy, Debug)]
struct Told {
    on: ConnectionToken,
    at: Time,
    freshness: u64,
}

impl Membership {
    /// Nobody is a member. Versions start above `version`.
    #[must_use]
    pub const fn new(lease: Duration, version: u64) -> Self {
        Self { lease, version, freshness: 0, racks: BTreeMap::new() }
    }

    /// How long a lease lasts without a heartbeat.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// Grows whenever something that other racks see has changed; free frames don't count.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// What is left of the rack's lease; `None` when it has none.
    #[must_use]
    pub fn lease_left(&self, rack: RackId, now: Time) -> Option<Duration> {
        let until = self.racks.get(&rack)?.until?;
        (until > now).then(|| until.since(now))
    }

    /// Whether the rack has a lease. Call [`Self::expire`] first.
    #[must_use]
    pub fn is_alive(&self, rack: RackId) -> bool {
        self.racks.get(&rack).is_some_and(|standing| standing.until.is_some())
    }

    /// Frames that held no page at the rack's last heartbeat; 0 before the first.
    #[must_use]
    pub fn free_frames(&self, rack: RackId) -> u32 {
        self.racks.get(&rack).map_or(0, |standing| standing.free_frames)
    }

    /// Gives the rack a whole lease. `changed`: its incarnation or its addresses are new, and its
    /// free frames are not known yet.
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

    /// Ends the rack's lease. `changed` as for [`Self::grant`]: it registered and left in one step.
    pub fn end(&mut self, rack: RackId, changed: bool) {
        let standing = self.racks.entry(rack).or_default();
        if standing.until.take().is_some() || changed {
            self.version += 1;
        }
        if changed {
            *standing = Standing::default();
        }
    }

    /// Ends the leases that have run out and names their racks.
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

    /// The server itself did not run for a while: heartbeats that arrived meanwhile were not read.
    /// Each lease lasts at least long enough for them to be read, and for one more to arrive.
    pub fn stood_still(&mut self, now: Time) {
        let least = now.after(self.lease / 2);
        for until in self.racks.values_mut().filter_map(|standing| standing.until.as_mut()) {
            *until = least.max(*until);
        }
    }

    /// The connections of the racks that have a lease and were told of the members before, over
    /// which they are to be told of them now.
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

    /// When the next lease runs out.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        self.racks.values().filter_map(|standing| standing.until).min()
    }

    /// Renews a lease, and says whether the answer must carry all members: when the daemon has
    /// another version, when it was not told on this connection yet, or when free frames have
    /// changed since it was told and that is a second ago.
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
