//! Messages between two daemons.

use rackpool_model::{Epoch, FrameId, MemoryId, PageId, RackId};
use rackpool_wire::peer::{LINE_BYTES, PeerReply, PeerRequest};
use rackpool_wire::swap::{SwapId, SwapMessage};

use crate::ADDR;

const FRAME: FrameId = FrameId(4);
const EPOCH: Epoch = Epoch::new(2);

/// Requests of one daemon to another.
pub(crate) fn requests() -> [PeerRequest; 5] {
    let (rack, memory, sequence) = (RackId(1), MemoryId(77), 4);
    let (lines, bytes) = (vec![3, 8], vec![7; 2 * LINE_BYTES]);
    [
        PeerRequest::Revoke { page: PageId(9), lease: 3, keep_reading: true },
        PeerRequest::Free { rack, memory, sequence, addrs: vec![ADDR; 3] },
        PeerRequest::Write { addr: ADDR, bytes: vec![5; 64] },
        PeerRequest::DirtyLines { swap: SwapId(6), frame: FRAME, known: true, lines, bytes },
        PeerRequest::Return { page: PageId(9), lease: 3 },
    ]
}

/// Replies to such requests.
pub(crate) fn replies() -> [PeerReply; 3] {
    [
        PeerReply::Location {
            lease: 3,
            frame: FRAME,
            epoch: EPOCH,
            usage: 1,
            writable: false,
            forwards: true,
            sharing: None,
        },
        PeerReply::Written { moving: true },
        PeerReply::Allocated(vec![ADDR; 32]),
    ]
}

/// Messages about a swap.
pub(crate) const fn about_swaps() -> [SwapMessage; 2] {
    [
        SwapMessage::Prepared { ticket: 8, frame: FRAME, epoch: EPOCH, stale: true },
        SwapMessage::Copy { ticket: 8, frame: FRAME, stale: true },
    ]
}
