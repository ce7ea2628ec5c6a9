use std::time::Duration;

use crate::error::StoreError;

/// What a store keeps, and for how long. Set when the store is created
/// ([`open_or_create_with`](crate::Store::open_or_create_with)) or later
/// ([`set_options`](crate::Store::set_options)).
///
/// ```
/// use std::time::Duration;
/// use rackpool_objects::{EvictionPolicy, StoreOptions};
///
/// // A cache: at most 64 GiB in each rack, nothing older than an hour.
/// let options = StoreOptions {
///     capacity: Some(64 << 30),
///     policy: EvictionPolicy::Lru,
///     time_to_live: Some(Duration::from_secs(3600)),
/// };
/// # assert_ne!(options, StoreOptions::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// The most memory in bytes that objects and replicas of the store take in each rack, as
    /// allocated; `None`: no limit but the memory of the rack. Programs together exceed it by what
    /// they create within about a second.
    pub capacity: Option<u64>,
    /// What happens when there is no room for a new object.
    pub policy: EvictionPolicy,
    /// How long an object exists after its seal, in whole milliseconds; `None`: until it is deleted
    /// or evicted.
    pub time_to_live: Option<Duration>,
}

/// What happens when there is no room for a new object, because the capacity is reached or the rack
/// is full. Under both policies unused replicas of objects of other racks are evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// The new object is refused.
    #[default]
    Keep,
    /// The objects of the rack that were unused for longest, and that no program has a view of, are
    /// deleted.
    Lru,
    /// The objects of the rack that were unused for longest, and that no program has a view of,
    /// move to another rack, if an agent runs there ([`CastAgent`](crate::CastAgent)) and more than
    /// a quarter of its memory is free; else to files of the rack (`rackpool-daemon --spill-dir`).
    /// They stay in the store; the next get brings them back into memory.
    Spill,
}

impl StoreOptions {
    pub(crate) const BYTES: usize = 24;
    const NO_CAPACITY: u64 = u64::MAX;

    /// # Errors
    /// [`StoreError::Option`]: a capacity of 0, or a time to live that is less than a millisecond
    /// or more than 2^64 - 1 of them.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.capacity == Some(0) {
            return Err(StoreError::Option { name: "capacity", allowed: "1 B or more, or none" });
        }
        let longest = u128::from(u64::MAX);
        if self.time_to_live.is_some_and(|live| !(1..=longest).contains(&live.as_millis())) {
            let allowed = "1 ms to 2^64 - 1 ms, or none";
            return Err(StoreError::Option { name: "time to live", allowed });
        }
        Ok(())
    }

    /// The capacity (2^64 - 1: none), the time to live in milliseconds (0: none) and the policy (0
    /// keep, 1 least recently used, 2 spill).
    pub(crate) fn to_words(self) -> [u64; 3] {
        let live = self.time_to_live.map_or(0, |live| live.as_millis());
        let policy = match self.policy {
            EvictionPolicy::Keep => 0,
            EvictionPolicy::Lru => 1,
            EvictionPolicy::Spill => 2,
        };
        let live = u64::try_from(live).unwrap_or(u64::MAX);
        [self.capacity.unwrap_or(Self::NO_CAPACITY), live, policy]
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (into, word) in bytes.chunks_exact_mut(8).zip(self.to_words()) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The options in these bytes. An unknown policy, which a later release may have stored, keeps
    /// everything.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let [capacity, live, policy] = [0, 8, 16]
            .map(|at| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
        Self {
            capacity: (capacity != Self::NO_CAPACITY).then_some(capacity),
            policy: match policy {
                1 => EvictionPolicy::Lru,
                2 => EvictionPolicy::Spill,
                _ => EvictionPolicy::Keep,
            },
            time_to_live: (live > 0).then(|| Duration::from_millis(live)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_stored_as_they_are() {
        let lru = EvictionPolicy::Lru;
        for options in [
            StoreOptions::default(),
            StoreOptions { capacity: Some(1), policy: lru, ..StoreOptions::default() },
            StoreOptions { policy: EvictionPolicy::Spill, ..StoreOptions::default() },
            StoreOptions {
                capacity: Some(u64::MAX - 1),
                policy: EvictionPolicy::Keep,
                time_to_live: Some(Duration::from_millis(u64::MAX)),
            },
        ] {
            options.check().unwrap();
            assert_eq!(StoreOptions::decode(&options.to_bytes()), options);
        }
    }

    #[test]
    fn options_that_nothing_could_satisfy_are_refused() {
        let nothing = StoreOptions { capacity: Some(0), ..StoreOptions::default() };
        assert!(nothing.check().unwrap_err().to_string().contains("capacity"));
        for live in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
            let options = StoreOptions { time_to_live: Some(live), ..StoreOptions::default() };
            assert!(options.check().unwrap_err().to_string().contains("time to live"), "{live:?}");
        }
    }
}
