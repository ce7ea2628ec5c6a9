use std::time::Instant;

use rackpool_fabric::FabricError;

use crate::Place;

/// How the data of an answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Pure RPC: the data is in the answer's message.
    Pure,
    /// RPC then one-sided: the answer names the data's place, and the caller reads it.
    ThenOneSided,
    /// Zero-copy RPC: the server writes the data to the caller's place.
    ZeroCopy,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pure, Self::ThenOneSided, Self::ZeroCopy];
}

/// The amount of data that a caller expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// None: the answer has a head only.
    Head,
    /// An unknown amount, at most this number of bytes.
    UpTo(u32),
    /// Exactly this number of bytes.
    Exactly(u32),
}

/// What happens to a request without an answer at its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The caller gets an error. The request may still be executed.
    GiveUp,
    /// The endpoint is closed, and then the caller gets an error. After that the request has no
    /// further effect.
    CutOff,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The request's body: at most [`MAX_BODY`](crate::MAX_BODY) bytes.
    pub body: &'a [u8],
    /// The amount of data expected.
    pub wants: Wants,
    /// The place for data that does not travel in the message. `None` uses the arena, which has
    /// room for [`most_read`](crate::Arena::most_read) bytes.
    pub into: Option<Place>,
    /// The mode for data of a known size. `None` chooses it by the endpoint's thresholds.
    pub mode: Option<Mode>,
    /// When the request is overdue.
    pub deadline: Instant,
    /// What happens at the deadline.
    pub overdue: Overdue,
}

impl<'a> Call<'a> {
    /// A request whose answer has a head only.
    #[must_use]
    pub const fn new(body: &'a [u8], deadline: Instant, overdue: Overdue) -> Self {
        Self { body, wants: Wants::Head, into: None, mode: None, deadline, overdue }
    }
}

/// Why a request was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The endpoint does not exist, or is ending.
    #[error("there is no connection: connect first")]
    NotConnected,
    /// The limit of unanswered requests to this peer is reached.
    #[error("{open} requests wait for this peer: wait for an answer first")]
    TooManyOpen {
        /// The number of open requests.
        open: usize,
    },
    /// The body exceeds a message, or the data exceeds its place.
    #[error("{len} B where at most {max} B fit")]
    TooLong {
        /// Its length, in bytes.
        len: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// The arena has no free block of this size.
    #[error("no buffer of {len} B is free: give buffers back first")]
    NoRoom {
        /// Length of the block, in bytes.
        len: u32,
    },
}

/// Why a request that was sent has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The endpoint has ended. It is unknown whether the request was executed.
    #[error("the connection ended: {0}")]
    Disconnected(FabricError),
    /// The deadline has passed. The request may still be executed.
    #[error("no answer came in time")]
    DeadlinePassed,
    /// The answer has more data than the caller expected.
    #[error("the answer has {len} B of data, more than was asked for")]
    TooLarge {
        /// Length of the data, in bytes.
        len: u32,
    },
    /// The peer cannot answer, for the reason given by the code.
    #[error("the peer can't answer: {}", why(*.0))]
    Refused(u32),
}

const fn why(code: u32) -> &'static str {
    match code {
        crate::message::DOES_NOT_FIT => "the answer does not fit",
        crate::message::NO_ROOM => "it has no buffer free",
        crate::message::NO_ANSWER => "it has no answer to this request",
        _ => "for a reason that this release does not know",
    }
}
