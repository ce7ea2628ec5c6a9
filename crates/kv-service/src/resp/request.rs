//! Requests, parsed in place.

use std::ops::Range;
use std::sync::Arc;

use super::inline;
use super::length::{self, LengthLine};
use crate::large::LargeValue;

/// The most arguments of a request.
const MAX_ARGS: i64 = 1024 * 1024;
/// The most bytes of an argument; a greater length is a protocol error.
const MAX_BULK: i64 = 512 << 20;
/// The most bytes of a line; a longer one is a protocol error.
const MAX_LINE: usize = 64 << 10;
/// The most arguments of an unauthenticated peer's request.
const UNAUTHENTICATED_ARGS: usize = 10;
/// The most bytes of an unauthenticated peer's request.
pub const UNAUTHENTICATED_REQUEST: usize = 4096;
const UNAUTHENTICATED_BULK: i64 = 4096;
/// The decoder returns a long argument in parts of at least this number of bytes. The caller stores
/// each part in the pool's memory, which it allocates by pages.
const PART: usize = 32 << 10;
/// The most arguments for which capacity is kept between requests.
const KEPT_ARGS: usize = 1024;

/// The bytes are not a request. The connection is closed, since the start of the next request is
/// unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Protocol error: {0}")]
pub struct ProtocolError(String);

/// The limits of a connection's requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// A longer argument is not kept in the input: its caller takes its bytes as they arrive.
    pub kept_bytes: usize,
    /// The client is not authenticated, so the lower limits hold.
    pub is_unauthenticated_peer: bool,
}

/// The result of parsing the bytes received so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The request is incomplete.
    More,
    /// The `len` bytes at `at` belong to a [long argument](RequestParser::long). The caller takes
    /// them, removes them from the buffer and parses again. The argument is then empty.
    Part {
        /// The offset of these bytes.
        at: usize,
        /// Their number.
        len: usize,
    },
    /// A complete request. It has no arguments if there is nothing to execute.
    Whole {
        /// The offset of the next request.
        end: usize,
    },
}

/// An incremental parser of requests. It allocates nothing for lengths that are only announced.
#[derive(Debug, Default)]
pub struct RequestParser {
    /// The arguments so far: ranges of the input, or of `unquoted`.
    args: Vec<Range<usize>>,
    /// The number of arguments still to parse.
    missing: usize,
    /// The offset of the next line or argument.
    at: usize,
    /// The length of the argument at `at`, if its length line was parsed.
    bulk: Option<usize>,
    /// The length of the long argument that is being parsed.
    long: usize,
    /// Its bytes that have not arrived.
    missing_of_long: usize,
    /// The arguments of an inline request, after removal of quotes and escapes.
    unquoted: Option<Vec<u8>>,
}

/// An argument that is too long to be kept in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongArgument {
    /// The index of the argument.
    pub index: usize,
    /// Its length in bytes.
    pub len: usize,
    /// How many of its bytes have not been returned as a part yet.
    pub missing: usize,
}

/// A long argument whose bytes are in the pool.
#[derive(Clone, Debug)]
pub struct LargeArgument {
    /// The index of the argument.
    pub index: usize,
    /// Its bytes.
    pub value: Arc<LargeValue>,
}

/// The arguments of a request.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    ranges: &'a [Range<usize>],
    large: &'a [LargeArgument],
}

impl RequestParser {
    /// Continues to parse the request at the start of `bytes`.
    ///
    /// # Errors
    /// The bytes are not a request, or an unauthenticated peer's request is too long.
    pub fn parse(&mut self, bytes: &[u8], limits: RequestLimits) -> Result<Parsed, ProtocolError> {
        if !limits.is_unauthenticated_peer {
            return self.parse_some(bytes, limits);
        }
        let some = bytes.get(..UNAUTHENTICATED_REQUEST).unwrap_or(bytes);
        match self.parse_some(some, limits)? {
            Parsed::More if some.len() == UNAUTHENTICATED_REQUEST => {
                Err(error("unauthenticated request length"))
            }
            parsed => Ok(parsed),
        }
    }

    fn parse_some(&mut self, bytes: &[u8], limits: RequestLimits) -> Result<Parsed, ProtocolError> {
        if self.missing == 0 {
            match bytes.first() {
                None => return Ok(Parsed::More),
                Some(b'*') => {}
                Some(_) => return self.parse_line(bytes, limits),
            }
            let Some((count, next)) = number(bytes, 1, "mbulk count")? else {
                return Ok(Parsed::More);
            };
            let count = count
                .filter(|count| *count <= MAX_ARGS)
                .ok_or_else(|| error("invalid multibulk length"))?;
            let count = usize::try_from(count).unwrap_or_default();
            if limits.is_unauthenticated_peer && count > UNAUTHENTICATED_ARGS {
                return Err(error("unauthenticated multibulk length"));
            }
            if count == 0 {
                return Ok(Parsed::Whole { end: next });
            }
            self.missing = count;
            self.at = next;
        }
        while self.missing > 0 {
            if let Some(parsed) = self.parse_argument(bytes, limits)? {
                return Ok(parsed);
            }
        }
        Ok(Parsed::Whole { end: self.at })
    }

    /// Parses the next argument; `None` if it is complete.
    fn parse_argument(
        &mut self,
        bytes: &[u8],
        limits: RequestLimits,
    ) -> Result<Option<Parsed>, ProtocolError> {
        let len = match self.bulk {
            Some(len) => len,
            None => match bytes.get(self.at) {
                None => return Ok(Some(Parsed::More)),
                Some(b'$') => {
                    let Some((len, next)) = number(bytes, self.at + 1, "bulk count")? else {
                        return Ok(Some(Parsed::More));
                    };
                    let len = len
                        .filter(|len| (0..=MAX_BULK).contains(len))
                        .ok_or_else(|| error("invalid bulk length"))?;
                    if limits.is_unauthenticated_peer && len > UNAUTHENTICATED_BULK {
                        return Err(error("unauthenticated bulk length"));
                    }
                    self.at = next;
                    let len = usize::try_from(len).unwrap_or_default();
                    if len > limits.kept_bytes {
                        (self.long, self.missing_of_long) = (len, len);
                        self.bulk = Some(0);
                        0
                    } else {
                        self.bulk = Some(len);
                        len
                    }
                }
                Some(other) => {
                    let other = char::from(*other);
                    return Err(error(&format!("expected '$', got '{}'", printable(other))));
                }
            },
        };
        if self.missing_of_long > 0 {
            let there = bytes.len().saturating_sub(self.at).min(self.missing_of_long);
            if there < self.missing_of_long.min(PART) {
                return Ok(Some(Parsed::More));
            }
            self.missing_of_long -= there;
            return Ok(Some(Parsed::Part { at: self.at, len: there }));
        }
        let end = self.at + len;
        if bytes.len() < end + 2 {
            return Ok(Some(Parsed::More));
        }
        self.args.push(self.at..end);
        self.bulk = None;
        self.missing -= 1;
        // As Redis, this does not check the bytes of the line end.
        self.at = end + 2;
        Ok(None)
    }

    /// Parses an inline request, as a person types it.
    fn parse_line(&mut self, bytes: &[u8], limits: RequestLimits) -> Result<Parsed, ProtocolError> {
        let Some(end) = bytes.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
            if bytes.len() >= MAX_LINE {
                return Err(error("too big inline request"));
            }
            return Ok(Parsed::More);
        };
        let line = &bytes[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let unquoted = self.unquoted.insert(Vec::new());
        if !inline::split(line, unquoted, &mut self.args) {
            return Err(error("unbalanced quotes in request"));
        }
        if limits.is_unauthenticated_peer && self.args.len() > UNAUTHENTICATED_ARGS {
            return Err(error("unauthenticated multibulk length"));
        }
        Ok(Parsed::Whole { end: end + 1 })
    }

    /// The arguments of a complete request; `bytes` must be the input in which it was found.
    #[must_use]
    pub fn args<'a>(&'a self, bytes: &'a [u8]) -> Args<'a> {
        let bytes = self.unquoted.as_deref().unwrap_or(bytes);
        Args { bytes, ranges: &self.args, large: &[] }
    }

    /// The long argument to which the part that was just returned belongs. The arguments before it
    /// are [there](Self::args).
    #[must_use]
    pub const fn long(&self) -> LongArgument {
        let Self { long: len, missing_of_long: missing, .. } = *self;
        LongArgument { index: self.args.len(), len, missing }
    }

    /// The bytes of the current argument that were announced and have not arrived.
    #[must_use]
    pub fn awaited(&self, bytes: &[u8]) -> usize {
        self.bulk.map_or(0, |len| (self.at + len + 2).saturating_sub(bytes.len()))
    }

    /// The parser's own memory in bytes.
    #[must_use]
    pub fn held(&self) -> usize {
        self.args.capacity() * size_of::<Range<usize>>()
            + self.unquoted.as_ref().map_or(0, Vec::capacity)
    }

    /// Resets the parser for the next request.
    pub fn reset(&mut self) {
        self.args.clear();
        if self.args.capacity() > KEPT_ARGS {
            self.args = Vec::new();
        }
        self.missing = 0;
        self.at = 0;
        self.bulk = None;
        (self.long, self.missing_of_long) = (0, 0);
        self.unquoted = None;
    }
}

/// The number in the line at `at` (`None` if it is not an integer), and the offset of the next
/// line. `None` if the line is incomplete.
#[inline]
fn number(
    bytes: &[u8],
    at: usize,
    what: &str,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    match length::short(bytes, at) {
        Some(LengthLine { length, next }) => Ok(Some((i64::try_from(length).ok(), next))),
        None => long_number(bytes, at, what),
    }
}

#[cold]
fn long_number(
    bytes: &[u8],
    at: usize,
    what: &str,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let rest = bytes.get(at..).unwrap_or_default();
    let Some(len) = rest.iter().take(MAX_LINE).position(|byte| *byte == b'\r') else {
        if rest.len() >= MAX_LINE {
            return Err(error(&format!("too big {what} string")));
        }
        return Ok(None);
    };
    if rest.len() < len + 2 {
        return Ok(None);
    }
    Ok(Some((crate::number::parse_integer(&rest[..len]), at + len + 2)))
}

fn error(what: &str) -> ProtocolError {
    ProtocolError(what.to_owned())
}

/// Replaces a control character by a space, so that an error stays one line.
fn printable(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}

impl<'a> Args<'a> {
    /// The arguments at these ranges of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], ranges: &'a [Range<usize>]) -> Self {
        Self { bytes, ranges, large: &[] }
    }

    /// The same arguments, some of which are in the pool.
    #[must_use]
    pub const fn with_large(self, large: &'a [LargeArgument]) -> Self {
        Self { large, ..self }
    }

    /// The arguments that are in the pool.
    #[inline]
    #[must_use]
    pub const fn large(&self) -> &'a [LargeArgument] {
        self.large
    }

    /// The bytes in the pool of the argument with this index; `None` if it is in the input.
    #[must_use]
    pub fn large_at(&self, index: usize) -> Option<&'a Arc<LargeValue>> {
        self.large.iter().find(|large| large.index == index).map(|large| &large.value)
    }

    /// The number of arguments, including the command's name.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are no arguments.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The argument with this index; 0 is the command's name. Empty if there is none, or if it is
    /// in the pool.
    #[inline]
    #[must_use]
    pub fn at(&self, index: usize) -> &'a [u8] {
        let range = self.ranges.get(index).cloned().unwrap_or_default();
        self.bytes.get(range).unwrap_or_default()
    }

    /// The arguments from `first` on.
    pub fn from(&self, first: usize) -> impl DoubleEndedIterator<Item = &'a [u8]> + use<'a> {
        let (bytes, ranges) = (self.bytes, self.ranges.get(first..).unwrap_or_default());
        ranges.iter().map(move |range| bytes.get(range.clone()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RequestLimits = RequestLimits { kept_bytes: 100, is_unauthenticated_peer: false };

    fn words(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut parser = RequestParser::default();
        let parsed = parser.parse(bytes, LIMITS);
        assert_eq!(parsed, Ok(Parsed::Whole { end: bytes.len() }));
        parser.args(bytes).from(0).map(<[u8]>::to_vec).collect()
    }

    fn refused(bytes: &[u8]) -> String {
        let parsed = RequestParser::default().parse(bytes, LIMITS);
        parsed.unwrap_err().to_string()
    }

    #[test]
    fn a_request_comes_in_any_pieces() {
        let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n";
        let mut parser = RequestParser::default();
        for end in 0..bytes.len() {
            assert_eq!(parser.parse(&bytes[..end], LIMITS), Ok(Parsed::More), "{end}");
        }
        assert_eq!(parser.parse(bytes, LIMITS), Ok(Parsed::Whole { end: bytes.len() }));
        let args: Vec<_> = parser.args(bytes).from(0).collect();
        assert_eq!(args, [&b"SET"[..], b"k", b""]);
    }

    #[test]
    fn a_line_is_a_request() {
        assert_eq!(words(b"GET  a\r\n"), [&b"GET"[..], b"a"]);
        assert_eq!(words(b"set k \"a b\\x41\\n\" 'c d'\n"), [&b"set"[..], b"k", b"a bA\n", b"c d"]);
        assert!(words(b"\r\n").is_empty());
        assert_eq!(refused(b"get \"a\n"), "Protocol error: unbalanced quotes in request");
        assert_eq!(refused(&[b'a'; 70_000]), "Protocol error: too big inline request");
    }

    #[test]
    fn what_is_only_announced_costs_nothing() {
        let mut parser = RequestParser::default();
        let mut bytes = b"*2\r\n$4\r\nECHO\r\n$536870912\r\nxyz".to_vec();
        assert_eq!(parser.parse(&bytes, LIMITS), Ok(Parsed::More));
        bytes.resize(26 + PART, b'x');
        assert_eq!(parser.parse(&bytes, LIMITS), Ok(Parsed::Part { at: 26, len: PART }));
        let len = 512 << 20;
        assert_eq!(parser.long(), LongArgument { index: 1, len, missing: len - PART });
        assert_eq!(parser.parse(&bytes[..26], LIMITS), Ok(Parsed::More));
        let announced = b"*1000000\r\n$3\r\nGET\r\n";
        assert_eq!(RequestParser::default().parse(announced, LIMITS), Ok(Parsed::More));
    }

    #[test]
    fn a_request_is_whole_without_its_long_argument() {
        let mut parser = RequestParser::default();
        let mut bytes = b"*3\r\n$3\r\nSET\r\n$101\r\n".to_vec();
        bytes.extend([b'x'; 101]);
        bytes.extend(b"\r\n$1\r\nv\r\n");
        let Ok(Parsed::Part { at, len }) = parser.parse(&bytes, LIMITS) else { panic!("no part") };
        assert_eq!(parser.long(), LongArgument { index: 1, len: 101, missing: 0 });
        assert_eq!(parser.args(&bytes).from(0).collect::<Vec<_>>(), [b"SET"]);
        bytes.drain(at..at + len);
        assert_eq!(parser.parse(&bytes, LIMITS), Ok(Parsed::Whole { end: bytes.len() }));
        let args = parser.args(&bytes);
        assert_eq!((args.len(), args.at(1), args.at(2)), (3, &b""[..], &b"v"[..]));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for (bytes, text) in [
            (&b"*x\r\n"[..], "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$536870913\r\n", "invalid bulk length"),
            (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        ] {
            assert_eq!(refused(bytes), format!("Protocol error: {text}"));
        }
        let unauthenticated_peer = RequestLimits { is_unauthenticated_peer: true, ..LIMITS };
        let parse =
            |bytes| RequestParser::default().parse(bytes, unauthenticated_peer).unwrap_err();
        assert_eq!(
            parse(b"*11\r\n").to_string(),
            "Protocol error: unauthenticated multibulk length"
        );
        let bulk = parse(b"*1\r\n$4097\r\n").to_string();
        assert_eq!(bulk, "Protocol error: unauthenticated bulk length");
        let line = parse(b"a b c d e f g h i j k\n").to_string();
        assert_eq!(line, "Protocol error: unauthenticated multibulk length");
        let unauthenticated_peer = RequestLimits { kept_bytes: 1 << 20, ..unauthenticated_peer };
        let long = |request: &[u8], is_refused: bool| {
            let mut parser = RequestParser::default();
            let refused =
                parser.parse(request, unauthenticated_peer).map_err(|error| error.to_string());
            let due = "Protocol error: unauthenticated request length".to_owned();
            assert_eq!(refused.err(), is_refused.then_some(due));
        };
        // Also with short arguments, and for an inline request.
        let words = |len: usize| {
            let words = [b"*2\r\n$3000\r\n", &[b'a'; 3000][..], b"\r\n"].concat();
            [words, format!("${len}\r\n{}\r\n", "b".repeat(len)).into_bytes()].concat()
        };
        long(&words(4096 - 3022), false);
        long(&words(4097 - 3022), true);
        long(&[[b'a'; 4095].as_slice(), b"\n"].concat(), false);
        long(&[[b'a'; 4096].as_slice(), b"\n"].concat(), true);
        long(&[b'a'; 4096], true);
        long(&[b'a'; 4095], false);
    }

    #[test]
    fn nothing_to_do_is_a_request_without_arguments() {
        assert!(words(b"*0\r\n").is_empty());
        assert!(words(b"*-1\r\n").is_empty());
    }
}
