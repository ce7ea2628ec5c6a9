//! The parser of a server's answers, without sockets, for `rackpool-fuzz`.

use std::io::BufRead;

use super::answer::{Answer, answer};
use super::connection::RespError;

/// What a server has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// There is nothing.
    Nothing,
    /// A short text.
    Text(String),
    /// A number.
    Integer(i64),
    /// Any bytes.
    Bytes(Vec<u8>),
    /// Replies, which may be lists themselves.
    List(Vec<Self>),
    /// It will not.
    Refused(String),
}

/// Reads the next reply; `None` when what comes is none, or is not all there.
pub fn reply(from: &mut impl BufRead) -> Option<Reply> {
    match answer(from) {
        Ok(answer) => Some(answer.into()),
        Err(RespError::Refused(why)) => Some(Reply::Refused(why)),
        Err(_) => None,
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Nothing => Self::Nothing,
            Answer::Text(text) => Self::Text(text),
            Answer::Integer(number) => Self::Integer(number),
            Answer::Bytes(bytes) => Self::Bytes(bytes),
            Answer::List(items) => Self::List(items.into_iter().map(Self::from).collect()),
        }
    }
}
