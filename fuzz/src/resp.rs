//! Requests of clients that speak Redis' protocol.

use rackpool_kv_service::resp::{
    LongArgument, Parsed, ProtocolError, RequestLimits, RequestParser, first_key,
};

/// Bytes of an argument that a connection with these limits keeps.
const KEPT: usize = 64;

/// A client's requests, and the error that ends them.
type Scenario = (Vec<(Vec<Vec<u8>>, Vec<Long>)>, Option<ProtocolError>);

/// The index of an argument that was longer than [`KEPT`], and its length in bytes.
type Long = (usize, usize);

/// The parsed requests, or the error, do not depend on the pieces in which the bytes arrive, and no
/// request contains more than has arrived. The key that the lookahead finds is that of the first
/// request.
pub fn resp(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    if let Some((key, end)) = first_key(bytes) {
        let mut parser = RequestParser::default();
        let limits = RequestLimits { kept_bytes: usize::MAX, is_unauthenticated_peer: false };
        if let Ok(parsed) = parser.parse(bytes, limits) {
            assert_eq!(parsed, Parsed::Whole { end });
            assert_eq!(parser.args(bytes).at(1), key);
        }
    }
    for is_unauthenticated_peer in [false, true] {
        let limits = RequestLimits { kept_bytes: KEPT, is_unauthenticated_peer };
        let whole = scenario(bytes, bytes.len().max(1), limits);
        let pieces = scenario(bytes, usize::from(*cut) + 1, limits);
        assert_eq!(whole, pieces);
        let arguments: usize = whole.0.iter().flat_map(|(args, _)| args).map(Vec::len).sum();
        assert!(arguments <= bytes.len());
    }
}

/// Parses bytes that arrive in pieces of this length.
fn scenario(bytes: &[u8], piece: usize, limits: RequestLimits) -> Scenario {
    let (mut parser, mut input, mut requests) = (RequestParser::default(), Vec::new(), Vec::new());
    // The long arguments of the request, and the bytes of the last one that have come.
    let (mut long, mut come): (Vec<Long>, usize) = (Vec::new(), 0);
    for piece in bytes.chunks(piece) {
        input.extend_from_slice(piece);
        loop {
            match parser.parse(&input, limits) {
                Ok(Parsed::More) => break,
                Ok(Parsed::Part { at, len }) => {
                    assert!(len > 0);
                    let LongArgument { index, len: whole, missing } = parser.long();
                    if long.last() != Some(&(index, whole)) {
                        long.push((index, whole));
                        come = 0;
                    }
                    come += len;
                    assert_eq!(come + missing, whole);
                    input.drain(at..at + len);
                }
                Ok(Parsed::Whole { end }) => {
                    let args = parser.args(&input);
                    let args = args.from(0).map(<[u8]>::to_vec).collect();
                    requests.push((args, std::mem::take(&mut long)));
                    parser.reset();
                    input.drain(..end);
                }
                Err(error) => return (requests, Some(error)),
            }
        }
    }
    (requests, None)
}
