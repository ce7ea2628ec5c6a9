//! Copies a page from another rack in chunks. Other operations to that rack are posted in between
//! and wait for two chunks rather than for a page.

use rackpool_fabric::{EndpointId, Operation, RegionId, RemoteRegion, Transfer};
use rackpool_model::FrameId;

use super::DataPlane;
use super::stalled_transfers::Progress;

/// Bytes of a chunk: 5 us at 100 Gbit/s.
const PIECE_BYTES: u64 = 64 << 10;
/// Chunks in flight: enough to keep the wire busy until the completion of one is handled.
const AT_A_TIME: u32 = 2;

/// The progress of a page copy. All chunks use one endpoint, so fencing the endpoint ends all of
/// them. For leases and swaps they are one operation, which ends with the last posted chunk.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) endpoint: EndpointId,
    local: RegionId,
    ours: FrameId,
    theirs: FrameId,
    page_bytes: u64,
    posted: u64,
    on_the_way: u32,
    /// Chunks that have ended, successfully or not.
    ended: u32,
    /// Set when a chunk has failed or the copy was given up: no further chunk is posted.
    failed: bool,
}

impl Pieces {
    /// Creates a copy of which nothing is posted yet.
    pub(super) const fn new(
        endpoint: EndpointId,
        local: RegionId,
        theirs: FrameId,
        ours: FrameId,
        page_bytes: u64,
    ) -> Self {
        let (posted, on_the_way, ended, failed) = (0, 0, 0, false);
        Self { endpoint, local, ours, theirs, page_bytes, posted, on_the_way, ended, failed }
    }

    /// Returns the next chunk to post now, if any, and counts it as posted.
    pub(super) fn next(&mut self) -> Option<Operation> {
        let len = PIECE_BYTES.min(self.page_bytes - self.posted);
        if len == 0 || self.failed || self.on_the_way == AT_A_TIME {
            return None;
        }
        let at = |frame: FrameId| u64::from(frame.0) * self.page_bytes + self.posted;
        let transfer = Transfer {
            local: self.local,
            local_offset: at(self.ours),
            remote: RemoteRegion::FRAMES,
            remote_offset: at(self.theirs),
            len: u32::try_from(len).ok()?,
        };
        self.posted += len;
        self.on_the_way += 1;
        Some(Operation::Read(transfer))
    }

    /// A posted chunk has ended, or could not be posted.
    const fn ended(&mut self, whole: bool) {
        self.on_the_way = self.on_the_way.saturating_sub(1);
        self.ended += 1;
        self.failed |= !whole;
    }

    /// Gives up the copy: posts no further chunk. Chunks in flight still have to end.
    pub(super) const fn give_up(&mut self) {
        self.failed = true;
    }

    /// Returns the progress, with the transfer number of the whole page.
    pub(super) const fn progress(&self, id: u64) -> Progress {
        Progress { id, ended: self.ended, endpoint: self.endpoint }
    }

    /// Returns whether the copy is complete; `None` while a chunk is in flight or has to be posted.
    pub(super) const fn outcome(&self) -> Option<bool> {
        match (self.on_the_way, self.failed) {
            (0, true) => Some(false),
            (0, false) if self.posted == self.page_bytes => Some(true),
            _ => None,
        }
    }
}

impl DataPlane {
    /// A chunk of the page with this number has ended; posts the next one.
    pub(super) fn piece_ended(&mut self, id: u64, pieces: &mut Pieces, whole: bool) {
        self.has_copied_chunk = true;
        pieces.ended(whole);
        self.post_pieces(id, pieces);
    }

    /// Posts the chunks that may be in flight now, with the transfer number of the whole page.
    pub(super) fn post_pieces(&mut self, id: u64, pieces: &mut Pieces) {
        while let Some(piece) = pieces.next() {
            if self.rrpc.transfer(pieces.endpoint, id, piece).is_err() {
                // The endpoint is ending.
                pieces.ended(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(page_bytes: u64) -> Pieces {
        Pieces::new(EndpointId(1), RegionId(0), FrameId(3), FrameId(5), page_bytes)
    }

    fn offsets(operation: Option<Operation>) -> (u64, u64, u32) {
        let Some(Operation::Read(transfer)) = operation else { panic!("{operation:?}") };
        (transfer.remote_offset, transfer.local_offset, transfer.len)
    }

    #[test]
    fn a_page_is_read_once_in_order_and_two_pieces_at_a_time() {
        let (page, piece) = (1 << 21, 64 << 10);
        let mut pieces = pieces(page);
        for number in 0..page / piece {
            let at = number * piece;
            assert_eq!(offsets(pieces.next()), (3 * page + at, 5 * page + at, 64 << 10));
            if number > 0 {
                assert_eq!(pieces.next(), None, "two are on their way");
                pieces.ended(true);
            }
            assert_eq!(pieces.outcome(), None);
        }
        assert_eq!(pieces.next(), None, "all are posted");
        pieces.ended(true);
        assert_eq!(pieces.outcome(), Some(true));
    }

    #[test]
    fn a_page_of_less_than_a_piece_is_one() {
        let mut pieces = pieces(4096);
        assert_eq!(offsets(pieces.next()).2, 4096);
        assert_eq!(pieces.next(), None);
        pieces.ended(true);
        assert_eq!(pieces.outcome(), Some(true));
    }

    #[test]
    fn after_a_failure_nothing_is_posted_and_the_rest_is_waited_for() {
        let mut pieces = pieces(1 << 21);
        assert!(pieces.next().is_some() && pieces.next().is_some());
        pieces.ended(false);
        assert_eq!((pieces.next(), pieces.outcome()), (None, None), "one may still land");
        pieces.ended(true);
        assert_eq!(pieces.outcome(), Some(false));
    }

    #[test]
    fn of_a_page_that_nobody_wants_any_more_nothing_is_posted_and_the_rest_is_waited_for() {
        let mut pieces = pieces(1 << 21);
        assert!(pieces.next().is_some() && pieces.next().is_some());
        pieces.give_up();
        pieces.ended(true);
        assert_eq!((pieces.next(), pieces.outcome()), (None, None), "one may still land");
        pieces.ended(true);
        assert_eq!(pieces.outcome(), Some(false));
    }
}
