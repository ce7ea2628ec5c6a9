/// What the caller should do about a [`FabricError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Nothing is broken: poll, then try again.
    Retry,
    /// The peer is unreachable: connect again when it is back.
    PeerGone,
    /// One of its two ends closed the endpoint; it accepts nothing more.
    Fenced,
    /// Repeating the call gives the same error.
    Fatal,
}

/// An error of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The endpoint's queue has no room for the list.
    #[error(
        "{in_flight} requests are in flight and {asked} more do not fit: poll, then post again"
    )]
    QueueFull {
        /// Requests in flight.
        in_flight: usize,
        /// Requests in the list that was refused.
        asked: usize,
    },
    /// The list is longer than the queue depth of any endpoint.
    #[error("a list of {len} requests: at most {max} can be in flight")]
    ListTooLong {
        /// Requests in the list.
        len: usize,
        /// The queue depth.
        max: usize,
    },
    /// The peer has not yet taken enough of the messages sent before.
    #[error("the peer has not taken the messages sent before: poll, then send again")]
    RingFull,
    /// The endpoint is still being connected.
    #[error("the endpoint is not connected yet: wait for its Connected event")]
    NotConnected,
    /// The peer's process ended, or the network path to the peer is gone.
    #[error("the peer is gone: connect again when it is back")]
    PeerGone,
    /// One of the two ends has closed the endpoint.
    #[error("the endpoint is closed: connect again")]
    Closed,
    /// No endpoint with this id ever existed.
    #[error("there is no such endpoint")]
    UnknownEndpoint,
    /// The local region is not registered, or is being unregistered.
    #[error("local region {region} is not registered")]
    UnknownRegion {
        /// Number of the region.
        region: u32,
    },
    /// The peer exports no such region.
    #[error("the peer exports no region {region}")]
    UnknownRemoteRegion {
        /// Number of the region.
        region: u16,
    },
    /// The request leaves its local or its remote region.
    #[error("{len} B at {offset:#x} leave the {side} region of {region_len} B")]
    OutOfRange {
        /// `local` or `remote`.
        side: &'static str,
        /// Start of the access, in bytes.
        offset: u64,
        /// Size of the access, in bytes.
        len: u64,
        /// Size of the region, in bytes.
        region_len: u64,
    },
    /// A request of zero bytes.
    #[error("a request must move at least one byte")]
    Empty,
    /// A message that is empty or too large.
    #[error("a message of {len} B: it must have 1 to {max} B")]
    MessageSize {
        /// Its size, in bytes.
        len: usize,
        /// The largest size, in bytes.
        max: usize,
    },
    /// The text is not an address of this provider.
    #[error("'{address}' is no address of the {provider} fabric: expected {expected}")]
    BadAddress {
        /// The text.
        address: String,
        /// Name of the provider.
        provider: &'static str,
        /// The form of a valid address.
        expected: &'static str,
    },
    /// No process listens at the address.
    #[error("no rack daemon answers at {address}: {cause}")]
    Unreachable {
        /// The address.
        address: String,
        /// The error of the operating system.
        cause: String,
    },
    /// The peer's daemon answered, but the path for one-sided operations does not work.
    #[error("the rack daemon at {address} answers, but its memory can't be reached: {cause}")]
    NoPath {
        /// The address.
        address: String,
        /// What was tried, and what to check.
        cause: String,
    },
    /// The peer accepted the connection but did not answer in time.
    #[error("the peer at {address} did not answer within {timeout_ms} ms: is it stopped?")]
    Silent {
        /// The address.
        address: String,
        /// The timeout, in milliseconds.
        timeout_ms: u64,
    },
    /// The peer speaks another version of the fabric's protocol.
    #[error(
        "the peer speaks version {theirs} of the fabric protocol, this rack version {ours}: \
         run the same release of rackpool on both"
    )]
    Version {
        /// This side's version.
        ours: u32,
        /// The other side's version.
        theirs: u32,
    },
    /// The peer refused the connection.
    #[error("the peer refused the connection: {reason}")]
    Refused {
        /// The peer's explanation.
        reason: String,
    },
    /// The peer runs as another user.
    #[error("the peer runs as user {theirs}, this rack as user {ours}: run both as the same user")]
    OtherUser {
        /// This side's user id.
        ours: u32,
        /// The other side's user id.
        theirs: u32,
    },
    /// The peer failed to prove that it has the pool's key, or this side did.
    #[error("{lacks} does not have the other's pool key: give both racks the key of the same pool")]
    WrongKey {
        /// `this rack` or `the peer`.
        lacks: &'static str,
    },
    /// This rack has not received the pool's key yet.
    #[error("this rack has not been told the pool's key yet: it is once it is registered")]
    KeyAwaited,
    /// The address is on another host, and the fabric has no key.
    #[error(
        "{address} is not on this host, and a fabric without a pool key stays on its host: \
         give all racks the pool's key"
    )]
    KeyNeeded {
        /// The address.
        address: String,
    },
    /// The peer broke the protocol.
    #[error("the peer broke the fabric protocol: {detail}")]
    Misbehaved {
        /// The violation.
        detail: String,
    },
    /// This host could not provide something that the fabric needs.
    #[error("cannot {step}: {cause}")]
    Local {
        /// The step that failed.
        step: &'static str,
        /// The error of the operating system.
        cause: String,
    },
}

impl FabricError {
    /// How the caller should react.
    #[must_use]
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::QueueFull { .. } | Self::RingFull | Self::NotConnected | Self::KeyAwaited => {
                ErrorClass::Retry
            }
            Self::PeerGone
            | Self::Unreachable { .. }
            | Self::NoPath { .. }
            | Self::Silent { .. } => ErrorClass::PeerGone,
            Self::Closed => ErrorClass::Fenced,
            _ => ErrorClass::Fatal,
        }
    }

    /// A violation of the protocol by the peer, described by `detail`.
    pub(crate) fn misbehaved(detail: impl Into<String>) -> Self {
        Self::Misbehaved { detail: detail.into() }
    }

    /// A region of this side is smaller than it was when the request was checked.
    pub(crate) fn own_memory(error: OutOfRange) -> Self {
        Self::local("reach the own memory", error)
    }

    /// The error for a `step` that failed on this host.
    pub(crate) fn local(step: &'static str, cause: impl ToString) -> Self {
        Self::Local { step, cause: cause.to_string() }
    }
}

/// A message that the fabric did not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Unsent {
    /// The cause.
    pub error: FabricError,
    /// The message, returned so that the caller can send it later or over another endpoint.
    pub message: Vec<u8>,
}

/// Why an endpoint ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// This side called `disconnect`.
    #[error("this side closed the endpoint")]
    Local,
    /// The peer called `disconnect`.
    #[error("the peer closed the endpoint")]
    Peer,
    /// The peer's process ended, or the network path to the peer is gone.
    #[error("the peer is gone")]
    PeerGone,
    /// The peer broke the protocol, or the device reported a failure; this side closed the
    /// endpoint.
    #[error("the endpoint failed: {0}")]
    Failed(FabricError),
}

impl DisconnectReason {
    /// The error that requests in flight get when the endpoint ends for this reason.
    #[must_use]
    pub fn error(&self) -> FabricError {
        match self {
            Self::Local | Self::Peer => FabricError::Closed,
            Self::PeerGone => FabricError::PeerGone,
            // One of these requests may have caused the failure. The caller may repeat the others
            // over a new endpoint.
            Self::Failed(_) => FabricError::Closed,
        }
    }
}

/// An access that leaves its region or is misaligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} B at {offset:#x} leave a region of {region_len} B, or are not aligned")]
pub struct OutOfRange {
    /// Start of the access, in bytes.
    pub offset: u64,
    /// Size of the access, in bytes.
    pub len: u64,
    /// Size of the region, in bytes.
    pub region_len: u64,
}

/// A fabric that could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricStartError {
    /// An option is outside its valid range.
    #[error("{option} = {value}: it must be {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// The address can be reached from other hosts, and the fabric has no key.
    #[error(
        "{listen} can be reached from other hosts, and without a pool key whoever connects could \
         read and write the rack's memory: give the pool a key, or listen on 127.0.0.1"
    )]
    KeyNeeded {
        /// The address.
        listen: String,
    },
    /// The path at which the fabric should listen holds a file that is not a socket.
    #[error("'{path}' exists and is no socket: remove it or choose another path for the fabric")]
    NotASocket {
        /// The path.
        path: String,
    },
    /// A system call failed.
    #[error("cannot {step} for the fabric at '{path}': {source}")]
    System {
        /// The step that failed.
        step: &'static str,
        /// The address of the fabric.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}
