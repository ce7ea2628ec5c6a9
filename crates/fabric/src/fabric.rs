use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use crate::{DisconnectReason, FabricError, MemoryRegion, Unsent};

/// The largest message, in bytes.
pub const MAX_MESSAGE: usize = 64 << 10;

/// A connection to another rack. An id is never reused after its `Disconnected` or `ConnectFailed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

/// Memory of this side that was given to [`Fabric::register`]. An id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// Index of a region in the peer's list of exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteRegion(pub u16);

impl RemoteRegion {
    /// The frames of the peer's rack, which every rack exports first.
    pub const FRAMES: Self = Self(0);
}

/// One request of a posted list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// Chosen by the caller and returned with the completion. The fabric does not interpret it.
    pub id: u64,
    /// The operation to execute.
    pub operation: Operation,
}

/// A one-sided operation. The peer's daemon takes no part in it and need not poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copies from the peer's memory to this side's.
    Read(Transfer),
    /// Copies from this side's memory to the peer's.
    Write(Transfer),
}

/// Source and destination of an operation. Aligned 8-byte words are moved whole if the two offsets
/// are congruent modulo 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Memory of this side.
    pub local: RegionId,
    /// Offset in `local`, in bytes.
    pub local_offset: u64,
    /// Memory of the peer.
    pub remote: RemoteRegion,
    /// Offset in `remote`, in bytes.
    pub remote_offset: u64,
    /// Length in bytes; at least 1.
    pub len: u32,
}

impl Operation {
    /// The operation's source and destination.
    #[must_use]
    pub const fn transfer(&self) -> &Transfer {
        match self {
            Self::Read(transfer) | Self::Write(transfer) => transfer,
        }
    }
}

/// An event that [`Fabric::poll`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A [`Fabric::connect`] of this side succeeded. No write of another incarnation of the rack
    /// lands any more.
    Connected {
        /// The endpoint that `connect` returned.
        endpoint: EndpointId,
        /// The rack at the other end.
        peer: RackId,
        /// The incarnation of its daemon.
        incarnation: Incarnation,
    },
    /// A peer connected to this side. No write of another incarnation of the rack has landed since
    /// the first of the peer's own could land, and none lands any more.
    Accepted {
        /// The new endpoint.
        endpoint: EndpointId,
        /// The rack at the other end.
        peer: RackId,
        /// The incarnation of its daemon.
        incarnation: Incarnation,
    },
    /// A [`Fabric::connect`] of this side failed; the endpoint no longer exists.
    ConnectFailed {
        /// The endpoint that `connect` returned.
        endpoint: EndpointId,
        /// The cause.
        error: FabricError,
    },
    /// A posted request has ended. Every request that `post` accepted gets this event exactly once.
    /// After an error, it is unknown which part of the request was executed.
    Completed {
        /// The endpoint to which the request was posted.
        endpoint: EndpointId,
        /// The id that the caller chose.
        id: u64,
        /// `Ok` if the request was executed completely.
        result: Result<(), FabricError>,
    },
    /// The peer sent a message.
    Message {
        /// The endpoint on which the message arrived.
        endpoint: EndpointId,
        /// Its bytes: 1 to [`MAX_MESSAGE`].
        bytes: Vec<u8>,
    },
    /// The peer's writes through this endpoint can no longer land in this side's memory. Operations
    /// that this side posted may still access the peer's memory. The event precedes
    /// [`Disconnected`](Self::Disconnected) only if that event may have to wait for the peer.
    Fenced {
        /// The fenced endpoint.
        endpoint: EndpointId,
    },
    /// The last event of an endpoint. From now on no write of the peer through this endpoint can
    /// land in this side's memory, and no operation of this side accesses the peer's memory.
    Disconnected {
        /// The endpoint that ended.
        endpoint: EndpointId,
        /// The cause.
        reason: DisconnectReason,
    },
    /// The last event of a region: no operation uses its memory any more.
    Unregistered {
        /// The region that ended.
        region: RegionId,
    },
}

/// Requests to the device or to the kernel since the fabric was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Work requests on send queues (RDMA), or frames for sockets (TCP): parts of one-sided
    /// operations, messages, and the provider's own control traffic.
    pub requests: u64,
    /// Doorbells, one for each posted list of work requests (RDMA); or writes to a socket (TCP).
    pub doorbells: u64,
    /// Completions (RDMA) or answers (TCP) received. One may cover many requests.
    pub completions: u64,
    /// Work requests with a completion of their own; 0 where the peer answers each request.
    pub signalled: u64,
    /// Work requests that carried their bytes inline; 0 for providers without inline data.
    pub inlined: u64,
}

impl std::ops::AddAssign for DeviceCounters {
    fn add_assign(&mut self, more: Self) {
        self.requests += more.requests;
        self.doorbells += more.doorbells;
        self.completions += more.completions;
        self.signalled += more.signalled;
        self.inlined += more.inlined;
    }
}

/// Communication with other racks. One thread owns a fabric and polls it. No method blocks.
///
/// An event loop that sleeps when it has nothing to do:
///
/// ```text
/// loop {
///     fabric.poll(&mut events);          // then handle the events, post and send
///     fabric.flush(endpoint);            // once for each that was given something
///     if events.is_empty() && fabric.arm() {
///         epoll_wait(fabric.wake_fd(), fabric.next_completion(), ...);
///         fabric.disarm();
///     }
/// }
/// ```
pub trait Fabric: Send {
    /// Makes memory of this side usable in operations. The fabric keeps a reference to the memory
    /// until [`Event::Unregistered`].
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId;

    /// Ends the use of a region. Later posts that name the region are refused. Operations in flight
    /// complete, or fail with their endpoint; then [`Event::Unregistered`] is reported. Has no
    /// effect if the region is unknown.
    fn unregister(&mut self, region: RegionId);

    /// Starts to connect to the fabric with the given [`address`](Self::address). An event reports
    /// the result: [`Event::Connected`] or [`Event::ConnectFailed`].
    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError>;

    /// Posts a list of one-sided operations: all of them, or none if it returns an error. The
    /// fabric executes and completes them in order, starting with the next [`flush`](Self::flush).
    /// Ranges are checked here: a request that leaves its region makes `post` return an error, and
    /// the endpoint stays open.
    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError>;

    /// Queues a message of 1 to [`MAX_MESSAGE`] bytes for the next [`flush`](Self::flush). Messages
    /// arrive in order and exactly once, unless the endpoint ends first, and after the writes
    /// posted before them have landed. If the peer has not yet taken enough earlier messages, the
    /// error is of class `Retry`; an armed fabric wakes its owner when there is room again.
    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent>;

    /// Submits the operations and messages queued on the endpoint since the last flush with one
    /// doorbell or system call, as far as a queue of the provider holds them. The owner calls it
    /// once in a poll round, after the last post. The remainder, and anything not flushed, is
    /// submitted by [`poll`](Self::poll) and [`arm`](Self::arm), so nothing stays queued while the
    /// owner sleeps. Failures are reported by the next poll. Has no effect if the endpoint is
    /// unknown, has ended or has nothing queued.
    fn flush(&mut self, endpoint: EndpointId);

    /// Appends new events to `events` and makes progress on operations in flight. If there is
    /// nothing to do, the call is cheap and makes no system call.
    fn poll(&mut self, events: &mut Vec<Event>);

    /// Closes an endpoint. Requests in flight get [`Event::Completed`] with an error.
    /// [`Event::Disconnected`] follows once no late write of the peer can land. Has no effect if
    /// the endpoint is unknown or already ending.
    fn disconnect(&mut self, endpoint: EndpointId);

    /// Prepares to sleep: flushes all endpoints and requests that [`wake_fd`](Self::wake_fd) become
    /// readable as soon as there is something to do. Returns false if there is something to do
    /// already: the caller must poll again. After `true`, the caller sleeps no longer than
    /// [`next_completion`](Self::next_completion), and must call [`disarm`](Self::disarm) when it
    /// wakes, before it polls. After `false`, calling `disarm` is allowed and not needed.
    fn arm(&mut self) -> bool;

    /// Ends the sleep: stops wake-ups and empties [`wake_fd`](Self::wake_fd).
    fn disarm(&mut self);

    /// The descriptor that becomes readable between [`arm`](Self::arm) and
    /// [`disarm`](Self::disarm). One descriptor serves all endpoints; it stays the same for the
    /// fabric's whole life.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// Time until an operation in flight completes without a wake-up; zero if it is due. `None` if
    /// nothing is in flight, or if each completion makes [`wake_fd`](Self::wake_fd) readable.
    fn next_completion(&self) -> Option<Duration>;

    /// The number of one-sided requests that an endpoint can have in flight.
    fn queue_depth(&self) -> usize;

    /// Counts of requests to the device or the kernel; all zero if the provider uses neither.
    fn device_counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// The address to which peers [`connect`](Self::connect).
    fn address(&self) -> String;

    /// A description for operators: the provider, and the performance to expect of it.
    fn description(&self) -> String;
}
