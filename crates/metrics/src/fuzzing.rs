//! The parser of a scraper's HTTP request, without sockets, for `rackpool-fuzz`.

use crate::request::{Asked, read};

/// The longest request head, in bytes. Longer heads are refused whether they are complete or not.
pub const MAX_HEAD: usize = crate::request::MAX_HEAD;

/// Parses a request. Returns whether the answer has a body (GET) or only headers (HEAD), or the
/// status line of a refusal; `None` when the head is incomplete.
#[must_use]
pub fn asked(bytes: &[u8]) -> Option<Result<bool, &'static str>> {
    match read(bytes) {
        Asked::Unfinished => None,
        Asked::Served { with_text, .. } => Some(Ok(with_text)),
        Asked::Wrong(status) => Some(Err(status)),
    }
}
