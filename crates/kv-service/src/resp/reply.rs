//! Answers, written one behind the other into the bytes that go out.

use std::io::Write;

use crate::number::Decimal;

/// More bytes than this are kept for no client.
const MAX_WAITING: usize = 256 << 20;

/// Writes answers in the version of the protocol that the client has asked for.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    resp3: bool,
}

impl<'a> Reply<'a> {
    /// Appends to `out`.
    pub const fn new(out: &'a mut Vec<u8>, resp3: bool) -> Self {
        Self { out, resp3 }
    }

    /// Whether the client has asked for version 3.
    #[must_use]
    pub const fn is_resp3(&self) -> bool {
        self.resp3
    }

    /// From now on in this version.
    pub const fn set_resp3(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }

    /// How many bytes wait to go out.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether so many bytes wait to go out that this connection has to end.
    #[must_use]
    pub const fn is_too_long(&self) -> bool {
        self.out.len() > MAX_WAITING
    }

    /// Whether none do.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Takes back what was written since there were `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// `+OK` and its like.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error; its first word is its kind.
    pub fn error(&mut self, text: &str) {
        self.out.push(b'-');
        let bytes =
            text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte });
        self.out.extend(bytes);
        self.end();
    }

    /// A number.
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

    /// Bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', i64::try_from(bytes.len()).unwrap_or(i64::MAX));
        self.out.extend_from_slice(bytes);
        self.end();
    }

    /// Text as bytes.
    pub fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// Text for people to read.
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

    /// Nothing, in place of bytes.
    pub fn null(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Nothing, in place of an array.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// Bytes, or nothing.
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// A floating-point number.
    pub fn double(&mut self, number: f64) {
        if self.resp3 {
            self.out.push(b',');
            // It is memory that is written to.
            let _ = write!(self.out, "{}", Decimal(number));
            self.end();
        } else {
            self.text(&Decimal(number).to_string());
        }
    }

    /// So many answers follow.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', i64::try_from(len).unwrap_or(i64::MAX));
    }

    /// So many pairs follow.
    pub fn map(&mut self, len: usize) {
        if self.resp3 {
            self.header(b'%', i64::try_from(len).unwrap_or(i64::MAX));
        } else {
            self.array(len * 2);
        }
    }

    /// So many different answers follow.
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
        write(&mut Reply::new(&mut out, resp3));
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
