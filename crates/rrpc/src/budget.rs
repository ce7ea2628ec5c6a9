//! Bytes that may be in flight. See docs/design/in-flight.md.

use std::collections::VecDeque;

use rackpool_fabric::{EndpointId, Operation};

/// The most bytes that may be in flight to a rack, by what they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlightLimits {
    /// Bytes of the rack's own one-sided reads.
    pub reads: u64,
    /// Bytes of the one-sided writes of all peers into the rack.
    pub peer_writes: u64,
}

impl Default for InFlightLimits {
    /// 1 MiB for each.
    fn default() -> Self {
        Self { reads: 1 << 20, peer_writes: 1 << 20 }
    }
}

/// The bytes in flight to a rack, by what they belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Data of requests and answers, in the arena.
    pub requests: BytesInFlight,
    /// One-sided reads of this rack, outside the arena.
    pub reads: BytesInFlight,
    /// One-sided writes of peers into this rack; `used` and `peak` count what they may have in
    /// flight.
    pub peer_writes: BytesInFlight,
}

/// The most bytes that operations may have in flight together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Budget {
    limit: u64,
    used: u64,
    peak: u64,
}

/// Bytes in flight, their limit, and the most that were in flight at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesInFlight {
    /// The limit, in bytes.
    pub limit: u64,
    /// Bytes in flight now.
    pub used: u64,
    /// The most bytes that were in flight at once.
    pub peak: u64,
}

impl Budget {
    /// An unused budget of `limit` bytes.
    pub(crate) const fn new(limit: u64) -> Self {
        Self { limit, used: 0, peak: 0 }
    }

    /// Takes bytes, and returns true, if they fit. An operation that is larger than the whole
    /// budget fits while nothing else is in flight, else it would never be posted.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.free();
        if fits || self.limit > 0 && self.used == 0 {
            self.used += bytes;
            self.peak = self.peak.max(self.used);
            return true;
        }
        false
    }

    /// Returns bytes that were taken.
    pub(crate) const fn give_back(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Changes the limit. More than the new one may be in flight for a while.
    pub(crate) const fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    const fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Returns true if no more is in flight than the limit allows.
    pub(crate) const fn holds(&self) -> bool {
        self.used <= self.limit
    }

    pub(crate) const fn bytes(&self) -> BytesInFlight {
        BytesInFlight { limit: self.limit, used: self.used, peak: self.peak }
    }
}

/// The budget that an operation's bytes are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// None: the bytes go to the arena, whose size bounds them.
    None,
    /// The bytes arrive in this rack.
    Read(u64),
    /// The bytes arrive in the peer's rack.
    Write(u64),
}

impl Charge {
    /// The charge for an operation on a place that the owner knows.
    pub(crate) fn of(operation: &Operation) -> Self {
        let len = u64::from(operation.transfer().len);
        match operation {
            Operation::Read(_) => Self::Read(len),
            Operation::Write(_) => Self::Write(len),
        }
    }
}

/// The answer to an endpoint that wants to post a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The bytes are taken.
    Now,
    /// It has its share in flight: again when one of its own reads has ended.
    Later,
    /// It has nothing in flight and waits for the reads of others.
    Waits,
}

/// The budget of the reads of all endpoints. An endpoint may have as much in flight as is free
/// (the dynamic threshold of Choudhury and Hahne, 1998), so that one that does not answer leaves
/// bytes to others. Endpoints with nothing in flight whose next read does not fit take turns.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    budget: Budget,
    /// Endpoints that wait for bytes, in the order in which they began to.
    waiting: VecDeque<EndpointId>,
}

impl ReadBudget {
    pub(crate) const fn new(limit: u64) -> Self {
        Self { budget: Budget::new(limit), waiting: VecDeque::new() }
    }

    /// Takes bytes for a read of this endpoint, which has `own` bytes of reads in flight.
    pub(crate) fn take(&mut self, endpoint: EndpointId, own: u64, bytes: u64) -> Turn {
        let has_turn = self.waiting.front().is_none_or(|first| *first == endpoint);
        let has_share = own == 0 || own + bytes <= self.budget.free();
        if has_turn && has_share && self.budget.take(bytes) {
            return Turn::Now;
        }
        if own > 0 {
            return Turn::Later;
        }
        if !self.waiting.contains(&endpoint) {
            self.waiting.push_back(endpoint);
        }
        Turn::Waits
    }

    /// Returns bytes of reads that have ended.
    pub(crate) const fn give_back(&mut self, bytes: u64) {
        self.budget.give_back(bytes);
    }

    /// The endpoint that has waited longest.
    pub(crate) fn first_waiting(&self) -> Option<EndpointId> {
        self.waiting.front().copied()
    }

    /// An endpoint waits no longer: its reads are posted, something else holds them up, or it has
    /// ended. Returns the endpoint to look at again, if its turn has come.
    pub(crate) fn stop_waiting(&mut self, endpoint: EndpointId) -> Option<EndpointId> {
        if self.waiting.is_empty() {
            return None;
        }
        let was_first = self.waiting.front() == Some(&endpoint);
        self.waiting.retain(|other| *other != endpoint);
        self.waiting.front().copied().filter(|_| was_first)
    }

    pub(crate) const fn bytes(&self) -> BytesInFlight {
        self.budget.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let mut budget = Budget::new(100);
        assert!(budget.take(60) && !budget.take(41) && budget.take(40));
        budget.give_back(60);
        assert!(!budget.take(61) && budget.take(1));
        assert_eq!(budget.bytes(), BytesInFlight { limit: 100, used: 41, peak: 100 });
    }

    #[test]
    fn a_larger_operation_is_alone() {
        let mut budget = Budget::new(100);
        assert!(budget.take(1) && !budget.take(200));
        budget.give_back(1);
        assert!(budget.take(200) && !budget.take(1));
        assert!(!Budget::new(0).take(1), "nothing was granted");
    }

    #[test]
    fn a_limit_that_shrinks_holds_when_enough_has_ended() {
        let mut budget = Budget::new(100);
        assert!(budget.take(80));
        budget.set_limit(50);
        assert!(!budget.holds() && !budget.take(1));
        budget.give_back(30);
        assert!(budget.holds() && !budget.take(1));
    }

    #[test]
    fn who_waits_first_is_served_first() {
        let [a, b, c] = [1, 2, 3].map(EndpointId);
        let mut reads = ReadBudget::new(100);
        assert_eq!((reads.take(a, 0, 90), reads.take(b, 0, 64)), (Turn::Now, Turn::Waits));
        assert_eq!(reads.take(c, 0, 1), Turn::Waits, "it would fit, but another one waits");
        assert_eq!(reads.take(a, 90, 1), Turn::Later);
        reads.give_back(30);
        assert_eq!(reads.first_waiting(), Some(b));
        assert_eq!(reads.take(b, 0, 64), Turn::Waits, "not yet");
        reads.give_back(60);
        assert_eq!(reads.take(b, 0, 64), Turn::Now);
        assert_eq!(reads.take(c, 0, 1), Turn::Waits);
        assert_eq!(reads.stop_waiting(b), Some(c));
        assert_eq!(reads.take(c, 0, 1), Turn::Now);
        assert_eq!(reads.stop_waiting(c), None);
        assert_eq!(reads.take(a, 0, 1), Turn::Now);
    }

    #[test]
    fn who_never_answers_leaves_bytes_to_the_others() {
        let mut reads = ReadBudget::new(160);
        let fill = |reads: &mut ReadBudget, endpoint| {
            let mut own = 0;
            while reads.take(EndpointId(endpoint), own, 10) == Turn::Now {
                own += 10;
            }
            own
        };
        // Each of them gets half of what is left.
        assert_eq!([1, 2, 3, 4].map(|endpoint| fill(&mut reads, endpoint)), [80, 40, 20, 10]);
        assert_eq!(reads.take(EndpointId(5), 0, 10), Turn::Now);
    }
}
