//! Location leases: who may use a page by one-sided operations, and how the page becomes clean
//! again.
//!
//! Two machines: [`Home`] gives leases and calls them back, [`Holder`] uses them and gives them
//! back. docs/design/swap.md says why no operation can land after a page is clean.

mod holder;
mod home;

use core::time::Duration;

use rackpool_model::{Epoch, FrameId, PageId, RackId};

use crate::share::SharingId;

pub use holder::{HolderAction, HolderEvent, LeaseHolder};
pub use home::{HomeAction, HomeEvent, LeaseHome};

/// An endpoint of the fabric, numbered by the shell; no two of one life have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointToken(pub u64);

/// A lease, numbered by its home: grows with each one, and across the lives of its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// What a lease is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseKind {
    /// Reading: all that a frozen page is good for.
    Read,
    /// Reading and writing.
    Write,
    /// Reading, and writing as soon as the holder, whose page it was, has
    /// [left](HolderEvent::Quiesced) it.
    WriteOnceQuiesced,
    /// Reading, and keeping a copy as long as the lease is good. The page is shared.
    Share(SharingId),
}

/// Whose use of a page from afar has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Users {
    /// Who may write, or keep a copy. They keep the lease, for reading.
    Writers,
    /// Who may do anything.
    Everyone,
}

/// Where a page lies, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The home's number.
    pub id: LeaseId,
    /// What for.
    pub kind: LeaseKind,
    /// The page's home.
    pub home: RackId,
    /// The endpoint it is good for.
    pub endpoint: EndpointToken,
    /// The frame.
    pub frame: FrameId,
    /// The page's epoch.
    pub epoch: Epoch,
}

/// Times of leases. All racks of a pool have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRules {
    /// How long a lease is good for, from the question on, on the holder's clock.
    pub lease: Duration,
    /// The same of a lease that is good for a copy. A write may wait as long for a rack that is
    /// dead: so it is short.
    pub copy: Duration,
    /// How much faster one rack's clock may run than another's, in millionths.
    pub drift_ppm: u32,
    /// The same where nothing but the clock ends the use of a lease: the clients' reads of a copy.
    /// A clock that is set right by slewing may be a tenth too slow for so long.
    pub copy_drift_ppm: u32,
    /// How long an operation may take to land when the home's daemon has died.
    pub flight: Duration,
    /// How long a holder may take to give a lease back before it is fenced.
    pub grace: Duration,
    /// After so long without an answer a message is sent again.
    pub retry: Duration,
}

impl LeaseRules {
    /// Two seconds; clocks within a thousandth of each other, within a tenth for copies.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(2),
        copy: Duration::from_millis(250),
        drift_ppm: 1000,
        copy_drift_ppm: 100_000,
        flight: Duration::from_millis(500),
        grace: Duration::from_millis(500),
        retry: Duration::from_millis(50),
    };

    /// Those of a pool whose leases last so long. Where they last longer than two seconds, because
    /// hosts may stand still for longer, a holder has a quarter of a lease to give one back.
    #[must_use]
    pub fn of(lease: Duration) -> Self {
        let grace = Self::DEFAULT.grace.max(lease / 4);
        Self { lease, grace, ..Self::DEFAULT }
    }

    /// How long the home must take a lease for good that was given now, on its own clock.
    #[must_use]
    pub fn good_at_home(&self) -> Duration {
        at_home(self.lease, self.drift_ppm)
    }

    /// How long the home must take a lease for a copy for good.
    #[must_use]
    pub fn copy_good_at_home(&self) -> Duration {
        at_home(self.copy(), self.copy_drift_ppm)
    }

    /// How long a lease for a copy is good: never longer than any other.
    #[must_use]
    pub fn copy(&self) -> Duration {
        self.copy.min(self.lease)
    }
}

fn at_home(lease: Duration, drift_ppm: u32) -> Duration {
    let lease = lease.as_nanos();
    let drift = (lease * u128::from(drift_ppm)).div_ceil(1_000_000);
    Duration::from_nanos(u64::try_from(lease + drift).unwrap_or(u64::MAX))
}

/// A page and an endpoint: a holder has one lease of a page at a time.
type Use = (PageId, EndpointToken);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_longer_leases_has_longer_to_give_one_back() {
        let grace = |seconds| LeaseRules::of(Duration::from_secs(seconds)).grace;
        assert_eq!(grace(2), LeaseRules::DEFAULT.grace);
        assert_eq!(grace(20), Duration::from_secs(5));
        assert_eq!(grace(1), LeaseRules::DEFAULT.grace);
    }
}
