//! Requests to the metrics port.

use rackpool_metrics::fuzzing::{MAX_HEAD, asked};

/// The decision on a request does not depend on the pieces in which it arrives, a head of any
/// length is decided on, and only a request for the metrics gets them. The first byte sets the
/// length of the pieces.
pub fn scrape(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    let whole = asked(bytes);
    if bytes.len() < MAX_HEAD {
        let piece = usize::from(*cut) + 1;
        let ends = (piece..bytes.len()).step_by(piece).chain([bytes.len()]);
        let pieces = ends.map(|end| asked(&bytes[..end])).find(Option::is_some).flatten();
        assert_eq!(pieces, whole);
    } else {
        assert!(whole.is_some(), "more than {MAX_HEAD} B are waited for");
    }
    if let Some(Ok(with_text)) = whole {
        let start = bytes.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or_default();
        let method = if with_text { "GET /metrics" } else { "HEAD /metrics" };
        assert!(bytes[start..].starts_with(method.as_bytes()), "nobody asked for metrics");
    }
}
