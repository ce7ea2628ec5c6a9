//! Answers, appended to the connection's output.

use std::io::Write;

use super::Views;
use crate::large::StringView;
use crate::number::Decimal;

/// The most bytes of answers that are kept for one connection.
const MAX_WAITING: usize = 256 << 20;

/// A shorter large string is copied into the answer.
const COPIED: usize = 64 << 10;

/// Writes answers in the protocol version that the client has chosen.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    views: &'a mut Views,
    resp3: bool,
}

impl<'a> Reply<'a> {
    /// Appends to `out`, and large strings to `views`.
    pub const fn new(out: &'a mut Vec<u8>, views: &'a mut Views, resp3: bool) -> Self {
        Self { out, views, resp3 }
    }

    /// Whether answers are written in version 3.
    #[must_use]
    pub const fn is_resp3(&self) -> bool {
        self.resp3
    }

    /// Sets whether answers are written in version 3.
    pub const fn set_resp3(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }

    /// The bytes in the output.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether the output exceeds the limit, so that the connection must be closed.
    #[must_use]
    pub const fn is_too_long(&self) -> bool {
        self.out.len() > MAX_WAITING
    }

    /// Whether the output is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Truncates the output to `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
        if !self.views.is_empty() {
            self.views.truncate(len);
        }
    }

    /// A bulk string that is sent from the memory of the pool.
    pub fn view(&mut self, view: StringView) {
        let bytes = view.as_slice();
        if bytes.len() < COPIED {
            return self.bulk(bytes);
        }
        self.header(b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.views.push(self.out.len(), view);
        self.end();
    }

    /// A simple string such as `+OK`.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error. Its first word is its kind.
    pub fn error(&mut self, text: &str) {
        self.out.push(b'-');
        let bytes =
            text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte });
        self.out.extend(bytes);
        self.end();
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        self.header(b':', number);
    }

    /// A count.
    pub fn count(&mut self, count: usize) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// 1 or 0.
    pub fn flag(&mut self, flag: bool) {
        self.integer(flag.into());
    }

    /// A bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.out.extend_from_slice(bytes);
        self.end();
    }

    /// A bulk string from text.
    pub fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// A verbatim string (version 3), else a bulk string.
    pub fn verbatim(&mut self, text: &str) {
        if self.resp3 {
            self.header(b'=', i64::try_from(text.len()).unwrap_or(i64::MAX).saturating_add(4));
            self.out.extend_from_slice(b"txt:");
            self.out.extend_from_slice(text.as_bytes());
            self.end();
        } else {
            self.text(text);
        }
    }

    /// A null in the place of a bulk string.
    pub fn null(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// A null in the place of an array.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// A bulk string, or a null.
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// A double (version 3), else a bulk string.
    pub fn double(&mut self, number: f64) {
        if self.resp3 {
            self.out.push(b',');
            // Writing to a `Vec` cannot fail.
            let _ = write!(self.out, "{}", Decimal(number));
            self.end();
        } else {
            self.text(&Decimal(number).to_string());
        }
    }

    /// The header of an array of `len` answers.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// The header of a map of `len` pairs.
    pub fn map(&mut self, len: usize) {
        if self.resp3 {
            self.header(b'%', i64::try_from(len).unwrap_or(i64::MAX));
        } else {
            self.array(len * 2);
        }
    }

    /// The header of a set of `len` answers.
    pub fn set(&mut self, len: usize) {
        let kind = if self.resp3 { b'~' } else { b'*' };
        self.header(kind, i64::try_from(len).unwrap_or(i64::MAX));
    }

    #[inline]
    fn header(&mut self, kind: u8, number: i64) {
        self.out.push(kind);
        crate::number::push_integer(self.out, number);
        self.end();
    }

    #[inline]
    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(resp3: bool, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, &mut Views::default(), resp3));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_version_has_its_own_words() {
        let all = |reply: &mut Reply<'_>| {
            reply.null();
            reply.null_array();
            reply.map(1);
            reply.set(1);
            reply.double(1.5);
            reply.verbatim("hi");
        };
        assert_eq!(written(false, all), "$-1\r\n*-1\r\n*2\r\n*1\r\n$3\r\n1.5\r\n$2\r\nhi\r\n");
        assert_eq!(written(true, all), "_\r\n_\r\n%1\r\n~1\r\n,1.5\r\n=6\r\ntxt:hi\r\n");
    }

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(written(false, |reply| reply.error("ERR a\r\nb")), "-ERR a  b\r\n");
        assert_eq!(written(false, |reply| reply.integer(i64::MIN)), ":-9223372036854775808\r\n");
    }
}
