//! Which clients' processes stand still.

use alloc::collections::BTreeMap;
use core::time::Duration;

use rackpool_model::ClientId;

use super::LockMemory;
use crate::Time;

/// The last change of the number that each watched client counts up.
#[derive(Debug, Default)]
pub(super) struct Beats {
    seen: BTreeMap<ClientId, Beat>,
    last_look: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Beat {
    value: u64,
    since: Time,
}

impl Beats {
    /// How often the clients must be looked at, so that the rack's own pauses are noticed.
    pub(super) fn interval(lease: Duration) -> Duration {
        lease / 4
    }

    /// Looks at these clients, and forgets all others. If this rack has itself stood still, each
    /// client's time begins again.
    pub(super) fn look(
        &mut self,
        now: Time,
        lease: Duration,
        memory: &impl LockMemory,
        clients: impl Iterator<Item = ClientId>,
    ) {
        let paused = self.last_look.is_some_and(|last| now > last.after(lease / 2));
        self.last_look = Some(now);
        let before = core::mem::take(&mut self.seen);
        for client in clients {
            let Some(value) = memory.beat(client) else { continue };
            let since = match before.get(&client) {
                Some(beat) if beat.value == value && !paused => beat.since,
                _ => now,
            };
            self.seen.insert(client, Beat { value, since });
        }
    }

    /// Returns true if a client that was looked at has stood still for the lease.
    pub(super) fn is_stalled(&self, now: Time, lease: Duration, client: ClientId) -> bool {
        self.seen.get(&client).is_some_and(|beat| now >= beat.since.after(lease))
    }
}
