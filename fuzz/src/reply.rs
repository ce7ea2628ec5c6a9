//! Replies of servers that `rackpool ycsb` measures.

use std::io::{self, BufRead, BufReader, Read};

use rackpool_ycsb::fuzzing::{Reply, reply};

/// The deepest nesting of lists in a reply.
const MAX_DEPTH: usize = 4;

/// The parsed replies do not depend on the pieces in which the bytes arrive; no reply contains more
/// than has arrived; and an encoded reply is parsed to the same reply. The first byte sets the
/// length of the pieces.
pub fn replies(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    // Limits the bytes: an encoded line may be longer than the original and exceed the limit, see
    // `size`.
    let bytes = &bytes[..bytes.len().min(16 << 10)];
    let mut rest = bytes;
    let whole = scenario(&mut rest);
    let pieces = Pieces { bytes, most: usize::from(*cut) + 1 };
    assert_eq!(scenario(&mut BufReader::with_capacity(usize::from(*cut) + 1, pieces)), whole);
    let written: Vec<u8> = whole.iter().flat_map(write).collect();
    let size: usize = whole.iter().map(size).sum();
    assert!(size <= bytes.len(), "{size} B of {} B", bytes.len());
    assert_eq!(scenario(&mut &written[..]), whole);
    assert!(whole.iter().all(|reply| depth(reply) <= MAX_DEPTH));
}

/// The replies up to the first malformed one.
fn scenario(from: &mut impl BufRead) -> Vec<Reply> {
    std::iter::from_fn(|| reply(from)).collect()
}

/// Bytes that arrive in short pieces.
struct Pieces<'a> {
    bytes: &'a [u8],
    most: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(self.most);
        self.bytes.read(&mut into[..len])
    }
}

/// The fewest bytes in which a reply can have arrived. A byte that is not UTF-8 becomes three bytes
/// of text.
fn size(reply: &Reply) -> usize {
    3 + match reply {
        Reply::Nothing | Reply::Integer(_) => 1,
        Reply::Text(text) | Reply::Refused(text) => text.len() / 3,
        Reply::Bytes(bytes) => bytes.len() + 3,
        Reply::List(items) => items.iter().map(size).sum::<usize>() + 1,
    }
}

fn depth(reply: &Reply) -> usize {
    match reply {
        Reply::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Encodes a reply as a server does.
fn write(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Nothing => b"$-1\r\n".to_vec(),
        Reply::Text(text) => format!("+{text}\r\n").into_bytes(),
        Reply::Refused(text) => format!("-{text}\r\n").into_bytes(),
        Reply::Integer(number) => format!(":{number}\r\n").into_bytes(),
        Reply::Bytes(bytes) => {
            [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
        }
        Reply::List(items) => {
            let start = format!("*{}\r\n", items.len()).into_bytes();
            std::iter::once(start).chain(items.iter().map(write)).flatten().collect()
        }
    }
}
