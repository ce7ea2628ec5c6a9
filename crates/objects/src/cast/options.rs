use std::collections::BTreeMap;
use std::time::Duration;

use rackpool_client::RackId;
use rackpool_proto::multicast::MulticastRules;
pub use rackpool_proto::multicast::Visibility as CastVisibility;
use rackpool_proto::multicast::event::Failure;
pub use rackpool_proto::multicast::schedule::Schedule as CastSchedule;

/// How an object is cast.
#[derive(Clone, Debug)]
pub struct CastOptions {
    /// Who sends which block to whom. Interleaved pipelines unless set.
    pub schedule: CastSchedule,
    /// When programs may use the copies: each as soon as its rack has the whole object, or none
    /// before all racks have it.
    pub visible: CastVisibility,
    /// The bytes of a block, a multiple of 64 KiB. `None` chooses them by the formula of
    /// docs/design/multicast.md from what the agents have measured when they received; at first for
    /// steps of 30 us and 25 Gbit/s.
    pub block_bytes: Option<u64>,
    /// Racks with much bandwidth among them, for the hybrid schedule. A rack that is in none of
    /// them is alone.
    pub pods: Vec<Vec<RackId>>,
    /// A rack whose program reports nothing for this time is taken for lost; 10 s unless set. A
    /// killed program delays the cast by this time. Less than an access to a rack that has ended
    /// takes to fail, some leases of the pool, loses racks that wait for such an access.
    pub grace: Duration,
}

impl Default for CastOptions {
    fn default() -> Self {
        Self {
            schedule: CastSchedule::InterleavedPipelines,
            visible: CastVisibility::Each,
            block_bytes: None,
            pods: Vec::new(),
            grace: MulticastRules::DEFAULT.grace,
        }
    }
}

/// What a rack has got so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastProgress {
    /// The rack.
    pub rack: RackId,
    /// The blocks that it has.
    pub blocks: u32,
    /// The blocks of the object.
    pub of_blocks: u32,
}

/// How a cast has ended.
#[derive(Clone, Debug)]
pub struct CastReport {
    /// For each rack that the object was to come to: whether it has it.
    pub racks: BTreeMap<RackId, Result<(), CastFailure>>,
    /// The length of the object in bytes, with its metadata.
    pub bytes: u64,
    /// The number of blocks that the object was cut into.
    pub blocks: u32,
    /// The bytes of a block.
    pub block_bytes: u64,
    /// The time from the call to the last rack's answer.
    pub took: Duration,
}

impl CastReport {
    /// Whether each rack has the object.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.racks.values().all(Result::is_ok)
    }
}

/// Why a rack did not get the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CastFailure {
    /// No agent serves the rack, or the pool has no such rack.
    #[error("no agent serves the rack: start `rackpool agent` there")]
    NoAgent,
    /// The rack's agent is of another release.
    #[error("the rack's agent is of another release: run the same one everywhere ({0})")]
    OtherRelease(String),
    /// The object was deleted, or was made again, during the cast.
    #[error("the object was deleted meanwhile")]
    Deleted,
    /// The rack could not take part, for example because it has no room.
    #[error("the rack could not take part: {0}")]
    Refused(String),
    /// The multicast failed for the rack.
    #[error(transparent)]
    Multicast(#[from] Failure),
    /// The calling program was taken for lost, and the program of another rack ended the cast.
    #[error("another rack ended the cast: see with `Store::explain` what the racks have")]
    TakenOver,
}
