//! What racks measure of their links, from which the size of blocks follows.

use std::time::Duration;

use bincode::{Decode, Encode};

/// What a rack has measured while it received. Other racks' values are untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Link {
    /// The time in which a word of another rack is read, in nanoseconds.
    look_ns: u64,
    /// How fast the bytes of a block come.
    bytes_per_second: u64,
}

impl Link {
    /// Taken for a link of which nothing was measured.
    const DEFAULT: Self = Self { look_ns: 10_000, bytes_per_second: 25_000_000_000 / 8 };

    /// The slowest of these racks' links: a group is as fast as that.
    pub(super) fn slowest(links: impl IntoIterator<Item = Option<Self>>) -> Self {
        let slower = |a: Self, b: Self| Self {
            look_ns: a.look_ns.max(b.look_ns),
            bytes_per_second: a.bytes_per_second.min(b.bytes_per_second),
        };
        links.into_iter().flatten().reduce(slower).unwrap_or(Self::DEFAULT)
    }

    /// The time of a step besides that of its block: two looks at the map of the source, and the
    /// request of the block.
    pub(super) const fn step(self) -> Duration {
        Duration::from_nanos(self.look_ns.saturating_mul(3))
    }

    pub(super) const fn bytes_per_second(self) -> u64 {
        self.bytes_per_second
    }
}

/// Measures a link: means in which each new value counts for an eighth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkMeter {
    look_ns: Option<u64>,
    bytes_per_second: Option<u64>,
}

impl LinkMeter {
    /// Shorter reads say little about the bandwidth.
    const LEAST: u64 = 64 << 10;

    /// A word was read in this time.
    pub(super) fn looked(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.look_ns = Some(mean(self.look_ns, nanos));
    }

    /// A block was read in this time.
    pub(super) fn read(&mut self, bytes: u64, took: Duration) {
        let rate = u128::from(bytes) * 1_000_000_000 / took.as_nanos().max(1);
        if bytes >= Self::LEAST {
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            self.bytes_per_second = Some(mean(self.bytes_per_second, rate));
        }
    }

    /// What is known; `None` before anything was read.
    pub(super) fn link(&self) -> Option<Link> {
        let (look_ns, bytes_per_second) = (self.look_ns?, self.bytes_per_second?);
        Some(Link { look_ns, bytes_per_second })
    }
}

fn mean(before: Option<u64>, new: u64) -> u64 {
    before.map_or(new, |before| before - before / 8 + new / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_forgets_what_was() {
        let mut meter = LinkMeter::default();
        assert_eq!(meter.link(), None);
        meter.looked(Duration::from_micros(100));
        meter.read(1000, Duration::from_micros(1));
        assert_eq!(meter.link(), None, "a short read");
        meter.read(1 << 20, Duration::from_millis(1));
        let first = meter.link().unwrap();
        assert_eq!(first.step(), Duration::from_micros(300));
        assert_eq!(first.bytes_per_second(), 1000 << 20);
        for _ in 0..40 {
            meter.looked(Duration::from_micros(10));
            meter.read(1 << 20, Duration::from_millis(10));
        }
        let link = meter.link().unwrap();
        assert!((30..=33).contains(&link.step().as_micros()), "{link:?}");
        assert!((100..110).contains(&(link.bytes_per_second() >> 20)), "{link:?}");
        // Times that no clock measures.
        meter.looked(Duration::MAX);
        meter.read(u64::MAX, Duration::ZERO);
        assert!(meter.link().unwrap().step() > Duration::from_secs(1));
    }

    #[test]
    fn the_slowest_link_counts() {
        let link = |look_ns, bytes_per_second| Some(Link { look_ns, bytes_per_second });
        let slowest = Link::slowest([link(5, 70), None, link(9, 90)]);
        assert_eq!(Some(slowest), link(9, 70));
        assert_eq!(Link::slowest([None, None]), Link::DEFAULT);
        assert_eq!(Link::slowest([]).step(), Duration::from_micros(30));
    }
}
