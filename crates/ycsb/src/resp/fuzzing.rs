//! The parser of a server's answers, without sockets, for `rackpool-fuzz`.

use std::io::BufRead;

use super::answer::{Answer, answer};
use super::error::RespError;

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A null.
    Nothing,
    /// A simple string.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bytes(Vec<u8>),
    /// A list of replies, which may be lists themselves.
    List(Vec<Self>),
    /// An error.
    Refused(String),
}

/// Reads the next reply; `None` if the bytes are no complete reply.
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
