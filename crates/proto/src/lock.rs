//! Locks of cache lines: the machine of the pages' home, and the locks that a rack's clients hold
//! in other racks. See docs/design/locks.md.

mod beats;
mod home;
mod page;
mod remote;
mod words;

use alloc::vec::Vec;
use core::time::Duration;

use rackpool_model::{ClaimId, ClientId, LockClaim, LockWord, LockWordIndex, PageId, RackId};
use rackpool_wire::lock::{LockEnd, LockOutcome};

use crate::exchange::Caller;
use crate::lease::EndpointToken;

pub use home::LockHome;
pub use remote::RemoteLocks;

/// The parameters of locks.
#[derive(Clone, Copy, Debug)]
pub struct LockRules {
    /// How long a client's process may stand still before it loses its locks.
    pub lease: Duration,
    /// How long operations of other racks that an earlier daemon permitted may land.
    pub earlier_holders: Duration,
    /// How long holders in other racks read lines that they have cached, by this rack's clock,
    /// after the endpoint of their lock has ended.
    pub cached_reads: Duration,
}

impl LockRules {
    /// Defaults for a pool whose leases are at most 4 s.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(4),
        earlier_holders: Duration::from_secs(6),
        cached_reads: Duration::from_millis(275),
    };
}

/// The lock words of a rack and the claims of its clients.
pub trait LockMemory {
    /// Returns a lock word.
    fn lock_word(&self, index: LockWordIndex) -> LockWord;
    /// Returns a claim.
    fn claim(&self, id: ClaimId) -> Option<LockClaim>;
    /// Returns the claims of all clients, those of gone clients included.
    fn claims(&self) -> impl Iterator<Item = (ClaimId, LockClaim)>;
    /// Returns the number that a client's process counts up while it runs; `None`: no such client.
    fn beat(&self, client: ClientId) -> Option<u64>;
    /// Returns true if an access of the claim's thread to the page may be under way. The machine
    /// had the claim lost and a barrier executed before.
    fn is_using(&self, id: ClaimId, page: PageId) -> bool;
}

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockHolder {
    /// A client of another rack, to which an earlier daemon granted the lock, or a writer that
    /// ended without an unlock in its time: the index of the foreign claim.
    Earlier(u32),
    /// A client of this rack.
    Client(ClaimId),
    /// A client of another rack, under its rack's number of the lock.
    Rack(EndpointToken, u64),
}

/// The sender of a request, to which the answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRequester {
    /// A client of this rack.
    Client(ClaimId, Caller),
    /// Another rack, over an endpoint, with its number of the lock.
    Rack(EndpointToken, u64),
}

/// An event of locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// A lock of a page of this rack was requested.
    Requested {
        /// The sender.
        requester: LockRequester,
        /// The lines and the mode.
        claim: LockClaim,
        /// How long the request waits.
        timeout: Duration,
    },
    /// A client of this rack requests a lock of a page of another rack.
    RequestedElsewhere {
        /// The claim's place.
        id: ClaimId,
        /// The call.
        caller: Caller,
        /// The page's home.
        home: RackId,
        /// The lines and the mode.
        claim: LockClaim,
        /// How long the request waits at the home.
        timeout: Duration,
    },
    /// A home has answered a request, or a queued request; `None`: the answer is lost.
    Answered {
        /// This rack's number of the lock.
        number: u64,
        /// The endpoint over which the answer came.
        endpoint: EndpointToken,
        /// The answer.
        outcome: Option<LockOutcome>,
    },
    /// A client of this rack has unlocked, here or elsewhere, or withdraws a request.
    Unlocked {
        /// The claim's place.
        id: ClaimId,
        /// How the lock ends: abandoned if the claim's lost bit is set, because the holder may have
        /// been kept from its last writes.
        end: LockEnd,
    },
    /// Another rack's client has unlocked.
    UnlockedElsewhere {
        /// The endpoint.
        endpoint: EndpointToken,
        /// The other rack's number of the lock.
        number: u64,
        /// How the lock ends.
        end: LockEnd,
    },
    /// A client's process has ended.
    ClientGone(ClientId),
    /// An endpoint has ended: nothing that was sent over it can land any more.
    EndpointEnded(EndpointToken),
    /// The word of a page has changed.
    PageChanged(PageId),
    /// The words of a claim are managed. The machine queues this event itself.
    WordsManaged(LockClaim),
    /// A barrier was executed after these words were managed. The machine queues this event itself.
    WordsReadable(Vec<LockWordIndex>),
    /// The words of a gone client's claims are managed. The machine queues this event itself.
    ClaimsManaged(ClientId),
}

/// An action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockAction {
    /// Make the lock words of a claim managed.
    Manage(LockClaim),
    /// Store a managed word's next value.
    StoreLockWord(LockWordIndex, LockWord),
    /// Store a claim for which the daemon answers, or clear it.
    StoreForeign(u32, Option<LockClaim>),
    /// Execute a heavy barrier.
    Barrier,
    /// Queue an event for this machine, behind the actions that were emitted before.
    Queue(LockEvent),
    /// Answer a client's call. If the lock is granted, clear the lost bit of the claim before.
    Answer {
        /// The claim's place.
        id: ClaimId,
        /// The call.
        caller: Caller,
        /// The answer.
        outcome: LockOutcome,
        /// This rack's number of a granted lock of another rack's lines.
        number: Option<u64>,
    },
    /// Answer another rack's request: at once, or with a message if it is queued.
    AnswerRack {
        /// The endpoint of the request.
        endpoint: EndpointToken,
        /// The other rack's number of the lock.
        number: u64,
        /// The answer.
        outcome: LockOutcome,
    },
    /// Request a lock from a page's home.
    Request {
        /// The home.
        home: RackId,
        /// This rack's number of the lock.
        number: u64,
        /// The lines and the mode.
        claim: LockClaim,
        /// How long the request waits at the home.
        timeout: Duration,
    },
    /// Tell a home that a lock is not needed any more.
    Unlock {
        /// The endpoint over which it was granted.
        endpoint: EndpointToken,
        /// This rack's number of the lock.
        number: u64,
        /// How the lock ends.
        end: LockEnd,
        /// The claim of a writer: what its line cache holds under this number, and the writer has
        /// not written back, goes along.
        writer: Option<ClaimId>,
    },
    /// Set the lost bit of a claim: operations under its guard fail.
    Lose(ClaimId),
    /// Clear the claims of a gone client.
    ClearClaims(ClientId),
    /// The client's locks in other racks have ended: nothing reads its line caches any more.
    RemoteLocksEnded(ClientId),
}
