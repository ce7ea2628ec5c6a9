/// What the caller should do about a [`FabricError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Nothing is broken: poll, then try again.
    Retry,
    /// The peer is not there: connect again when it is back.
    PeerGone,
    /// The endpoint was torn down by one of its two ends: nothing more can happen on it.
    Fenced,
    /// Trying the same again gives the same error.
    Fatal,
}

/// Why the fabric did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The endpoint has as many requests in flight as it can have.
    #[error(
        "{in_flight} requests are in flight and {asked} more do not fit: poll, then post again"
    )]
    QueueFull {
        /// Requests in flight.
        in_flight: usize,
        /// Requests in the list that was refused.
        asked: usize,
    },
    /// A list that no endpoint can take.
    #[error("a list of {len} requests: at most {max} can be in flight")]
    ListTooLong {
        /// Requests in the list.
        len: usize,
        /// The depth of the queue.
        max: usize,
    },
    /// The peer has not yet taken enough of the messages sent before.
    #[error("the peer has not taken the messages sent before: poll, then send again")]
    RingFull,
    /// The endpoint is still being connected.
    #[error("the endpoint is not connected yet: wait for its Connected event")]
    NotConnected,
    /// The peer's process ended, or the way to it is gone.
    #[error("the peer is gone: connect again when it is back")]
    PeerGone,
    /// One of the two ends has torn the endpoint down.
    #[error("the endpoint is closed: connect again")]
    Closed,
    /// There never was such an endpoint.
    #[error("there is no such endpoint")]
    UnknownEndpoint,
    /// There is no such local region, or it is being unregistered.
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
    /// A request for no bytes.
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
    /// The text is no address of this provider.
    #[error("'{address}' is no address of the {provider} fabric: expected {expected}")]
    BadAddress {
        /// The text.
        address: String,
        /// Name of the provider.
        provider: &'static str,
        /// What an address looks like.
        expected: &'static str,
    },
    /// Nobody listens at the address.
    #[error("no rack daemon answers at {address}: {cause}")]
    Unreachable {
        /// The address.
        address: String,
        /// What the operating system said.
        cause: String,
    },
    /// The peer's daemon was reached, and not by the way that its memory is accessed.
    #[error("the rack daemon at {address} answers, but its memory can't be reached: {cause}")]
    NoPath {
        /// The address.
        address: String,
        /// What was tried, and what to look at.
        cause: String,
    },
    /// The peer took the connection and then said nothing.
    #[error("the peer at {address} did not answer within {timeout_ms} ms: is it stopped?")]
    Silent {
        /// The address.
        address: String,
        /// How long it was given, in milliseconds.
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
    /// The peer does not want the connection.
    #[error("the peer refused the connection: {reason}")]
    Refused {
        /// The peer's words.
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
    /// The peer can't prove that it belongs to the pool, or this side could not.
    #[error("{lacks} does not have the other's pool key: give both racks the key of the same pool")]
    WrongKey {
        /// `this rack` or `the peer`.
        lacks: &'static str,
    },
    /// The key of the pool has not come yet.
    #[error("this rack has not been told the pool's key yet: it is once it is registered")]
    KeyAwaited,
    /// An address of another host, and no key.
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
        /// What it did.
        detail: String,
    },
    /// This host could not provide something that the fabric needs.
    #[error("cannot {step}: {cause}")]
    Local {
        /// What was tried.
        step: &'static str,
        /// What the operating system said.
        cause: String,
    },
}

impl FabricError {
    /// What to do about it.
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

    /// The peer broke the protocol in the way that `detail` says.
    pub(crate) fn misbehaved(detail: impl Into<String>) -> Self {
        Self::Misbehaved { detail: detail.into() }
    }

    /// A region of this side is not what it was when it was checked.
    pub(crate) fn own_memory(error: OutOfRange) -> Self {
        Self::local("reach the own memory", error)
    }

    /// `step` failed on this host.
    pub(crate) fn local(step: &'static str, cause: impl ToString) -> Self {
        Self::Local { step, cause: cause.to_string() }
    }
}

/// A message that the fabric did not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Unsent {
    /// Why.
    pub error: FabricError,
    /// The message, to be sent later or over another endpoint.
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
    /// The peer's process ended, or the way to it is gone.
    #[error("the peer is gone")]
    PeerGone,
    /// The peer broke the protocol, or the device gave up; this side closed the endpoint.
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
            // One of them may have been the cause. The others may be done again over another
            // endpoint.
            Self::Failed(_) => FabricError::Closed,
        }
    }
}

/// An access that leaves its region.
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
pub enum StartError {
    /// An option makes no sense.
    #[error("{option} = {value}: it must be {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// An address that other hosts can reach, and no key.
    #[error(
        "{listen} can be reached from other hosts, and without a pool key whoever connects could \
         read and write the rack's memory: give the pool a key, or listen on 127.0.0.1"
    )]
    KeyNeeded {
        /// The address.
        listen: String,
    },
    /// Something that is no socket lies where the fabric should listen.
    #[error("'{path}' exists and is no socket: remove it or choose another path for the fabric")]
    NotASocket {
        /// The path.
        path: String,
    },
    /// The operating system refused something.
    #[error("cannot {step} for the fabric at '{path}': {source}")]
    System {
        /// What was tried.
        step: &'static str,
        /// The address of the fabric.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
}
