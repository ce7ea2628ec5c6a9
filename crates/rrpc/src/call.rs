use std::time::Instant;

use rackpool_fabric::FabricError;

use crate::Place;

/// How an answer's data travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// In the message of the answer.
    Pure,
    /// The answer says where it lies, the caller reads it.
    ThenOneSided,
    /// The server writes it to where the caller wants it.
    ZeroCopy,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pure, Self::ThenOneSided, Self::ZeroCopy];
}

/// How much data a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// None: the head of the answer says all.
    Head,
    /// Whatever there is, at most so many bytes.
    UpTo(u32),
    /// So many bytes: the size is known.
    Exactly(u32),
}

/// What happens when no answer has come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The caller is told. The request may still be carried out.
    GiveUp,
    /// The endpoint is ended, and then the caller is told: nothing comes of the request later.
    CutOff,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is asked: at most [`MAX_BODY`](crate::MAX_BODY) bytes.
    pub body: &'a [u8],
    /// How much data shall come back.
    pub wants: Wants,
    /// Where data shall go that does not come with the message; `None`: into the arena, which has
    /// room for [`most_read`](crate::Arena::most_read) bytes.
    pub into: Option<Place>,
    /// The mode for data of a known size; `None`: what the endpoint's thresholds say.
    pub mode: Option<Mode>,
    /// When the caller has waited long enough.
    pub deadline: Instant,
    /// What happens then.
    pub overdue: Overdue,
}

impl<'a> Call<'a> {
    /// A request whose answer is a head.
    #[must_use]
    pub const fn new(body: &'a [u8], deadline: Instant, overdue: Overdue) -> Self {
        Self { body, wants: Wants::Head, into: None, mode: None, deadline, overdue }
    }
}

/// Why a request was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no such endpoint, or it is ending.
    #[error("there is no connection: connect first")]
    NotConnected,
    /// Too many requests to this peer have no answer yet.
    #[error("{open} requests wait for this peer: wait for an answer first")]
    TooManyOpen {
        /// How many.
        open: usize,
    },
    /// The request does not fit into a message, or the data not into where it shall go.
    #[error("{len} B where at most {max} B fit")]
    TooLong {
        /// How many bytes.
        len: usize,
        /// The most there can be.
        max: usize,
    },
    /// No buffer is free.
    #[error("no buffer of {len} B is free: give buffers back first")]
    NoRoom {
        /// How many bytes.
        len: u32,
    },
}

/// Why a request that was sent has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The endpoint has ended. Whether the request was carried out is unknown.
    #[error("the connection ended: {0}")]
    Disconnected(FabricError),
    /// Its time is over. It may still be carried out.
    #[error("no answer came in time")]
    DeadlinePassed,
    /// There is more data than was asked for.
    #[error("the answer has {len} B of data, more than was asked for")]
    TooLarge {
        /// How many bytes.
        len: u32,
    },
    /// The peer can't answer.
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
