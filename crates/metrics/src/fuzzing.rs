//! The parser of what a scraper asks, without sockets, for `rackpool-fuzz`.

use crate::request::{Asked, read};

/// The longest head of a request, in bytes: longer ones are refused whether they end or not.
pub const MAX_HEAD: usize = crate::request::MAX_HEAD;

/// What these bytes ask: the metrics or the health, with their text or (`false`) only its headers,
/// or something that is refused with this status line; `None` when more has to come.
#[must_use]
pub fn asked(bytes: &[u8]) -> Option<Result<bool, &'static str>> {
    match read(bytes) {
        Asked::Unfinished => None,
        Asked::Served { with_text, .. } => Some(Ok(with_text)),
        Asked::Wrong(status) => Some(Err(status)),
    }
}
