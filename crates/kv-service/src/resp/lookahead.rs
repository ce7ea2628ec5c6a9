//! Finds the keys of requests that are not yet parsed.

use super::length::{self, LengthLine};

/// Requests with more arguments are skipped.
const MAX_ARGS: usize = 16;

/// The first argument after the command's name of the request at the start of `bytes` (empty if
/// there is none), and the offset of the next request. `None` if the request is incomplete or not
/// in the form that client libraries write. The result is a hint only: the
/// [parser](super::RequestParser) decides what a request is.
#[must_use]
pub fn first_key(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let LengthLine { length: count, next: mut at } = line(bytes, 0, b'*')?;
    let mut key = 0..0;
    if count > MAX_ARGS {
        return None;
    }
    for index in 0..count {
        let LengthLine { length: len, next: begin } = line(bytes, at, b'$')?;
        at = begin + len + 2;
        if index == 1 {
            key = begin..begin + len;
        }
    }
    (at <= bytes.len()).then(|| (&bytes[key], at))
}

/// The length in the line at `at`, which begins with `kind`.
#[inline]
fn line(bytes: &[u8], at: usize, kind: u8) -> Option<LengthLine> {
    (*bytes.get(at)? == kind).then(|| length::short(bytes, at + 1))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_requests_are_whole() {
        let bytes = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\nv\r\n*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\n";
        assert_eq!(first_key(bytes), Some((&b"key"[..], 29)));
        assert_eq!(first_key(&bytes[29..]), Some((&b""[..], 14)));
        assert_eq!(first_key(&bytes[43..]), None);
        for end in 0..29 {
            assert_eq!(first_key(&bytes[..end]), None, "{end}");
        }
    }

    #[test]
    fn what_is_no_usual_request_is_not_looked_at() {
        let long = b"*2\r\n$3\r\nGET\r\n$99999999999999999999\r\nx\r\n";
        for bytes in [&b"GET a\r\n"[..], b"*-1\r\n", b"*17\r\n", b"*2\r\n:1\r\n", long] {
            assert_eq!(first_key(bytes), None);
        }
        assert_eq!(first_key(b"*0\r\n"), Some((&b""[..], 4)));
    }
}
