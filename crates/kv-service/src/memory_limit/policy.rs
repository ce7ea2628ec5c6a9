//! What is evicted: the policies, without clock, table or randomness.

use clap::ValueEnum;
use rackpool_kv::Form;

/// What happens when the entries take more than the limit, by Redis's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EvictionPolicy {
    /// Commands that need memory fail.
    #[value(name = "noeviction")]
    NoEviction,
    /// Keys that were not used for long are deleted.
    #[value(name = "allkeys-lru")]
    AllkeysLru,
    /// Keys that expire soon are deleted; others never.
    #[value(name = "volatile-ttl")]
    VolatileTtl,
}

impl EvictionPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::NoEviction, Self::AllkeysLru, Self::VolatileTtl];

    /// The name in the options and in `CONFIG`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoEviction => "noeviction",
            Self::AllkeysLru => "allkeys-lru",
            Self::VolatileTtl => "volatile-ttl",
        }
    }

    /// The policy with this name, in any case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name().eq_ignore_ascii_case(name))
    }

    /// The position in [`ALL`](Self::ALL).
    pub(super) const fn index(self) -> u8 {
        self as u8
    }

    /// The policy at a position in [`ALL`](Self::ALL).
    pub(super) fn at(index: u8) -> Self {
        Self::ALL.get(usize::from(index)).copied().unwrap_or(Self::NoEviction)
    }

    /// The urgency of the eviction of an entry that was last used `age` ago; `None` if it is not
    /// evicted. Expired entries are the most urgent ones.
    pub(super) fn urgency(self, form: Form, age: u32, now_ms: u64) -> Option<u64> {
        let is_over = form.expires_ms != 0 && form.expires_ms <= now_ms;
        match self {
            Self::NoEviction => None,
            _ if is_over => Some(u64::MAX),
            Self::AllkeysLru => Some(age.into()),
            Self::VolatileTtl => (form.expires_ms != 0).then(|| u64::MAX - form.expires_ms),
        }
    }
}

/// An entry that may be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) urgency: u64,
    pub(super) key: Vec<u8>,
    pub(super) expires_ms: u64,
}

/// One candidate in this number is evicted.
const PART: usize = 16;

/// Keeps the most urgent sixteenth of the candidates, at least one if there is any; the most urgent
/// is the last.
pub(super) fn keep_most_urgent(candidates: &mut Vec<Candidate>) {
    let spared = candidates.len() - candidates.len().div_ceil(PART);
    candidates.sort_unstable_by_key(|candidate| candidate.urgency);
    candidates.drain(..spared);
}

#[cfg(test)]
mod tests {
    use rackpool_kv::ValueKind;

    use super::*;

    const NOW_MS: u64 = 1_000_000;

    fn form(expires_ms: u64) -> Form {
        Form { kind: ValueKind::STRING, expires_ms }
    }

    fn chosen(urgencies: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut candidates: Vec<Candidate> = urgencies
            .into_iter()
            .map(|urgency| Candidate { urgency, key: Vec::new(), expires_ms: 0 })
            .collect();
        keep_most_urgent(&mut candidates);
        candidates.into_iter().map(|candidate| candidate.urgency).collect()
    }

    #[test]
    fn policies_have_the_names_of_redis() {
        for policy in EvictionPolicy::ALL {
            assert_eq!(EvictionPolicy::named(policy.name()), Some(policy));
            assert_eq!(EvictionPolicy::at(policy.index()), policy);
            let value = policy.to_possible_value().unwrap();
            assert_eq!(value.get_name(), policy.name());
        }
        assert_eq!(EvictionPolicy::named("AllKeys-LRU"), Some(EvictionPolicy::AllkeysLru));
        assert_eq!(EvictionPolicy::named("allkeys-lfu"), None);
    }

    #[test]
    fn what_was_unused_for_longer_is_more_urgent_under_lru() {
        let lru = |form, age| EvictionPolicy::AllkeysLru.urgency(form, age, NOW_MS);
        assert!(lru(form(0), 7) > lru(form(0), 6));
        assert_eq!(lru(form(NOW_MS + 1), 7), lru(form(0), 7), "expiries do not matter");
        assert_eq!(lru(form(NOW_MS), 0), Some(u64::MAX), "expired entries go first");
    }

    #[test]
    fn what_expires_sooner_is_more_urgent_under_ttl_and_nothing_else_is_evicted() {
        let ttl = |form, age| EvictionPolicy::VolatileTtl.urgency(form, age, NOW_MS);
        assert!(ttl(form(NOW_MS + 1), 0) > ttl(form(NOW_MS + 2), 9));
        assert_eq!(ttl(form(0), u32::MAX), None);
        assert_eq!(ttl(form(1), 0), Some(u64::MAX), "expired entries go first");
        assert_eq!(EvictionPolicy::NoEviction.urgency(form(1), 9, NOW_MS), None);
    }

    #[test]
    fn the_most_urgent_part_is_chosen_and_the_most_urgent_is_last() {
        assert_eq!(chosen(0..64), [60, 61, 62, 63]);
        assert_eq!(chosen((0..33).rev()), [30, 31, 32]);
        assert_eq!(chosen([5, 9, 7]), [9]);
        assert_eq!(chosen([]), [0; 0]);
    }
}
