//! Location leases: which racks may access a page by one-sided operations, and how the page becomes
//! clean again, that is, unused from afar.
//!
//! Two machines: [`LeaseHome`] grants leases and calls them back, [`LeaseHolder`] uses and returns
//! them. docs/design/swap.md shows why no operation can land in a page that is clean.

mod holder;
mod home;

use core::time::Duration;

use rackpool_model::{Epoch, FrameId, PageId, RackId};

use crate::Time;
use crate::share::SharingId;

pub use holder::{HolderAction, HolderEvent, LeaseHolder};
pub use home::{HomeAction, HomeEvent, LeaseHome};

/// An endpoint of the fabric. The shell numbers them; no two of one incarnation have the same
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointToken(pub u64);

/// A lease, numbered by its home. Numbers grow, across incarnations too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// What a lease permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseKind {
    /// Reading; all that is granted of a frozen page.
    Read,
    /// Reading and writing.
    Write,
    /// Reading, and keeping a replica while the lease is valid. The page is shared.
    Share(SharingId),
}

/// The leases that must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Users {
    /// Leases that permit writing or a replica. The holders keep them for reading.
    Writers,
    /// All leases.
    Everyone,
}

/// A lease that a home has just granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GrantedLease {
    /// Its number.
    pub id: LeaseId,
    /// What it permits.
    pub kind: LeaseKind,
}

/// The revocation of a lease, or of its right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revocation {
    /// The page.
    pub page: PageId,
    /// The endpoint that the lease is valid for.
    pub endpoint: EndpointToken,
    /// The lease.
    pub lease: LeaseId,
    /// The users whose right is revoked.
    pub users: Users,
}

/// A valid lease and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimedLease {
    /// The lease.
    pub lease: Lease,
    /// When it ends.
    pub until: Time,
}

/// A lease as its holder knows it, with the location of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The home's number of the lease.
    pub id: LeaseId,
    /// What it permits.
    pub kind: LeaseKind,
    /// The page's home.
    pub home: RackId,
    /// The endpoint it is valid for.
    pub endpoint: EndpointToken,
    /// The frame.
    pub frame: FrameId,
    /// The page's epoch.
    pub epoch: Epoch,
}

/// Parameters of leases. All racks of a pool use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRules {
    /// Validity of a lease, counted on the holder's clock from its request.
    pub lease: Duration,
    /// Validity of a lease that permits a replica. It is short, since a write may have to wait this
    /// long for a rack that is dead.
    pub copy: Duration,
    /// The most by which one rack's clock may run faster than another's, in millionths.
    pub drift_ppm: u32,
    /// The same for replicas, whose use by clients is ended by the clock alone. A clock that is
    /// being slewed may run a tenth too slow.
    pub copy_drift_ppm: u32,
    /// The most time that an operation takes to land after its home's daemon has died.
    pub flight: Duration,
    /// The most time that a holder may take to return a lease before the home fences its endpoint.
    pub grace: Duration,
    /// A message without an answer is repeated after this time.
    pub retry: Duration,
}

impl LeaseRules {
    /// Leases of two seconds; clocks within a thousandth of each other, within a tenth for
    /// replicas.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(2),
        copy: Duration::from_millis(250),
        drift_ppm: 1000,
        copy_drift_ppm: 100_000,
        flight: Duration::from_millis(500),
        grace: Duration::from_millis(500),
        retry: Duration::from_millis(50),
    };

    /// Returns the parameters of a pool whose leases last `lease`. Longer leases are for hosts that
    /// may stand still for longer: the grace period is a quarter of a lease, and at least the
    /// default.
    #[must_use]
    pub fn of(lease: Duration) -> Self {
        let grace = Self::DEFAULT.grace.max(lease / 4);
        Self { lease, grace, ..Self::DEFAULT }
    }

    /// Returns how long the home must consider a lease valid that it grants now, on its own clock.
    #[must_use]
    pub fn good_at_home(&self) -> Duration {
        at_home(self.lease, self.drift_ppm)
    }

    /// Returns how long the home must consider a lease for a replica valid.
    #[must_use]
    pub fn copy_good_at_home(&self) -> Duration {
        at_home(self.copy(), self.copy_drift_ppm)
    }

    /// Returns the validity of a lease for a replica: never longer than that of other leases.
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

/// Selects a lease: a holder has one lease of a page over an endpoint at a time. The order is by
/// page first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LeaseKey {
    page: PageId,
    endpoint: EndpointToken,
}

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
