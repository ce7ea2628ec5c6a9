use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use crate::{DisconnectReason, FabricError, MemoryRegion, Unsent};

/// The largest message, in bytes.
pub const MAX_MESSAGE: usize = 64 << 10;

/// A connection to another rack. Never used again after its `Disconnected` or `ConnectFailed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u64);

/// Memory of this side that was given to [`Fabric::register`]. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// Memory that the peer exports, in the order in which it lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteRegion(pub u16);

impl RemoteRegion {
    /// The frames of the peer's rack: what every rack exports first.
    pub const FRAMES: Self = Self(0);
}

/// One request of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// Chosen by the caller and given back with the completion. The fabric does not look at it.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
}

/// A one-sided operation: it does not involve the peer's daemon, which need not even poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copies from the peer's memory to this side's.
    Read(Transfer),
    /// Copies from this side's memory to the peer's.
    Write(Transfer),
}

/// Where the bytes of an operation are. Aligned 8-byte words are moved whole when both offsets
/// leave the same remainder divided by 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Memory of this side.
    pub local: RegionId,
    /// Where in it, in bytes.
    pub local_offset: u64,
    /// Memory of the peer.
    pub remote: RemoteRegion,
    /// Where in it, in bytes.
    pub remote_offset: u64,
    /// How many bytes; at least 1.
    pub len: u32,
}

impl Operation {
    /// Where the bytes are.
    #[must_use]
    pub const fn transfer(&self) -> &Transfer {
        match self {
            Self::Read(transfer) | Self::Write(transfer) => transfer,
        }
    }
}

/// What happened on a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A [`Fabric::connect`] of this side succeeded.
    Connected {
        /// The endpoint that `connect` returned.
        endpoint: EndpointId,
        /// Who is at the other end.
        peer: RackId,
        /// Which life of its daemon.
        incarnation: Incarnation,
    },
    /// A peer connected to this side.
    Accepted {
        /// The new endpoint.
        endpoint: EndpointId,
        /// Who is at the other end.
        peer: RackId,
        /// Which life of its daemon.
        incarnation: Incarnation,
    },
    /// A [`Fabric::connect`] of this side failed; the endpoint is gone.
    ConnectFailed {
        /// The endpoint that `connect` returned.
        endpoint: EndpointId,
        /// Why.
        error: FabricError,
    },
    /// A posted request is done. Every request that `post` took gets this exactly once. After an
    /// error it is unknown how much of the request took place.
    Completed {
        /// Where it was posted.
        endpoint: EndpointId,
        /// The id that the caller chose.
        id: u64,
        /// Whether it was done.
        result: Result<(), FabricError>,
    },
    /// The peer sent a message.
    Message {
        /// Where it came in.
        endpoint: EndpointId,
        /// Its bytes: 1 to [`MAX_MESSAGE`].
        bytes: Vec<u8>,
    },
    /// No write of the peer through this endpoint can land in this side's memory any more, but what
    /// this side has written may still touch the peer's. Comes before
    /// [`Disconnected`](Self::Disconnected) where that may have to wait, and not elsewhere.
    Fenced {
        /// Which one.
        endpoint: EndpointId,
    },
    /// The endpoint ended; its last event. From here on no write of the peer through this endpoint
    /// can land in this side's memory and no operation of this side touches the peer's.
    Disconnected {
        /// Which one.
        endpoint: EndpointId,
        /// Why.
        reason: DisconnectReason,
    },
    /// No operation uses the region any more; its last event.
    Unregistered {
        /// Which one.
        region: RegionId,
    },
}

/// What was asked of the device below a fabric, or of the kernel, since the fabric was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Work requests for its send queues, or frames for its sockets: parts of one-sided operations,
    /// messages, and what the provider itself sends.
    pub requests: u64,
    /// Lists in which they were posted, each with one doorbell; or writes to a socket.
    pub doorbells: u64,
    /// Completions, or answers, that were taken for them. One may stand for many requests.
    pub completions: u64,
    /// Requests that were to complete by themselves: 0 where each is answered.
    pub signalled: u64,
    /// Requests that carried their bytes within them: 0 where there is no such thing.
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

/// How racks reach each other. One thread owns a fabric and polls it; nothing here blocks.
///
/// A loop that sleeps when there is nothing to do:
///
/// ```text
/// loop {
///     fabric.poll(&mut events);          // then handle the events, post and send
///     fabric.flush(endpoint);            // once for each that was given something
///     if events.is_empty() && fabric.arm() {
///         epoll_wait(fabric.wake_fd(), ...);
///         fabric.disarm();
///     }
/// }
/// ```
pub trait Fabric: Send {
    /// Makes memory of this side usable in operations. The fabric holds on to it until
    /// [`Event::Unregistered`].
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId;

    /// Takes the memory back: later posts that name it are refused, operations in flight go on
    /// (or fall with their endpoint), then comes [`Event::Unregistered`]. Nothing happens when the
    /// region is unknown.
    fn unregister(&mut self, region: RegionId);

    /// Starts connecting to the fabric whose [`address`](Self::address) is given. The result is
    /// an event: [`Event::Connected`] or [`Event::ConnectFailed`].
    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError>;

    /// Posts a list of one-sided operations: all of them, or none and an error. They are executed
    /// and completed in order, from the next [`flush`](Self::flush) on. Ranges are checked here: a
    /// request that leaves its region is an error of `post` and the endpoint lives on.
    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError>;

    /// Sends a message of 1 to [`MAX_MESSAGE`] bytes, with the next [`flush`](Self::flush).
    /// Messages arrive in order, each once, unless the endpoint ends before, and after the writes
    /// posted before them have landed. When the peer is slow the error is of class `Retry`; a
    /// fabric that is armed wakes when there is room again.
    fn send(&mut self, endpoint: EndpointId, message: Vec<u8>) -> Result<(), Unsent>;

    /// Rings once for all that was posted and sent on the endpoint since the last time, operations
    /// and messages together: one doorbell, or one system call, as far as a queue of the provider
    /// holds it all. Called once in a poll round, when nothing more comes. The rest, and what
    /// nobody flushes, goes with [`poll`](Self::poll) and [`arm`](Self::arm): nothing stays behind
    /// when its owner sleeps. What goes wrong shows at the next poll. Nothing happens when the
    /// endpoint is unknown, has ended or was given nothing.
    fn flush(&mut self, endpoint: EndpointId);

    /// Appends what has happened and moves what can be moved. Cheap, without a system call, when
    /// there is nothing to do.
    fn poll(&mut self, events: &mut Vec<Event>);

    /// Tears an endpoint down. Requests in flight get [`Event::Completed`] with an error, then
    /// comes [`Event::Disconnected`], when no late write of the peer can land any more. Nothing
    /// happens when the endpoint is unknown or ends already.
    fn disconnect(&mut self, endpoint: EndpointId);

    /// Before sleeping: flushes all endpoints and asks for [`wake_fd`](Self::wake_fd) to become
    /// readable as soon as there is something to do. False when there is already, or when
    /// operations are in flight that complete without a wake-up: then poll again.
    /// [`disarm`](Self::disarm) follows in any case before the next poll that matters; calling it
    /// after `false` is allowed and not needed.
    fn arm(&mut self) -> bool;

    /// After sleeping: no more wake-ups; empties [`wake_fd`](Self::wake_fd).
    fn disarm(&mut self);

    /// What to wait for (readable) between [`arm`](Self::arm) and [`disarm`](Self::disarm); one
    /// descriptor for all endpoints, the same for the fabric's whole life.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// How long until something in flight completes by itself: zero when it is time to poll,
    /// `None` when nothing is in flight, or when it wakes.
    fn next_completion(&self) -> Option<Duration>;

    /// How many one-sided requests an endpoint can have in flight.
    fn queue_depth(&self) -> usize;

    /// What was asked of the device or the kernel; nothing where neither has a part in it.
    fn device_counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }

    /// Where peers [`connect`](Self::connect) to.
    fn address(&self) -> String;

    /// For people: the provider and what can be expected from it.
    fn description(&self) -> String;
}
