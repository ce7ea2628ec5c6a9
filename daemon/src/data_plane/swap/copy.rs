//! Copying a page: its bytes by one-sided reads, its slab header and bitmap by a request. Both are
//! in place before the machine receives `Copied`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_fabric::{EndpointId, FabricError};
use rackpool_model::{FrameId, RackId};
use rackpool_proto::rack::RackEvent;
use rackpool_rrpc::{CallId, Data, Overdue, RequestId, Wants};
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::swap::SwapId;
use rackpool_wire::{decode, encode};

use crate::data_plane::DataPlane;
use crate::data_plane::error::Result;
use crate::data_plane::page_copy_chunks::Pieces;
use crate::data_plane::stalled_transfers::Progress;
use crate::data_plane::transfer_number::TransferUser;
use crate::slab::Contents;

/// How long a page's home may take to send its header and bitmap.
const TIMEOUT: Duration = Duration::from_millis(500);
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    OnTheWay,
    Ended { whole: bool },
}

/// A copy in progress.
#[derive(Debug)]
struct Copying {
    swap: SwapId,
    frame: FrameId,
    bytes: Pieces,
    contents: Part,
}

/// All copies in progress, by transfer number.
#[derive(Debug, Default)]
pub(super) struct SwapCopies {
    all: BTreeMap<u64, Copying>,
    /// The copy that each request for a header and bitmap belongs to.
    asked: BTreeMap<CallId, u64>,
}

impl SwapCopies {
    /// Returns the copies of bytes in progress, the oldest first.
    pub(super) fn on_their_way(&self) -> impl Iterator<Item = Progress> {
        let all = self.all.iter().filter(|(_, copy)| copy.bytes.outcome().is_none());
        all.map(|(id, copy)| copy.bytes.progress(*id))
    }

    /// Gives up the copies of an aborted swap.
    pub(super) fn give_up(&mut self, swap: SwapId) {
        for copying in self.all.values_mut().filter(|copying| copying.swap == swap) {
            copying.bytes.give_up();
        }
    }
}

impl DataPlane {
    pub(in crate::data_plane) fn begin_copy(
        &mut self,
        swap: SwapId,
        from: RackId,
        theirs: FrameId,
        ours: FrameId,
    ) -> Result<()> {
        let now = self.now();
        let begun = match self.peers.connected_endpoint(from) {
            Some(endpoint) => self.post_copy(now, swap, endpoint, theirs, ours)?,
            None => false,
        };
        if !begun {
            self.machine.handle(RackEvent::PageCopied { swap, whole: false });
        }
        Ok(())
    }

    /// Begins a copy. Returns false if it could not begin.
    fn post_copy(
        &mut self,
        now: Instant,
        swap: SwapId,
        endpoint: EndpointId,
        theirs: FrameId,
        ours: FrameId,
    ) -> Result<bool> {
        let bytes = self.rack.geometry.page_size.bytes();
        let Some(word) = self.slab.word_of(ours) else { return Ok(false) };
        let request = PeerRequest::Contents { page: word.page(), epoch: word.epoch() };
        let body = encode(&request)?;
        let mut call = rackpool_rrpc::Call::new(&body, now + TIMEOUT, Overdue::GiveUp);
        call.wants = Wants::UpTo(u32::try_from(self.slab.bitmap_bytes().max(8))?);
        let id = self.transfer_numbers.next(TransferUser::Swap);
        let asked = match self.rrpc.call(endpoint, &call) {
            Ok(asked) => asked,
            Err(error) => {
                tracing::debug!("{} can't be asked for: {error}", word.page());
                return Ok(false);
            }
        };
        let mut pieces = Pieces::new(endpoint, self.swaps.frames, theirs, ours, bytes);
        self.post_pieces(id, &mut pieces);
        if pieces.outcome() == Some(false) {
            // The endpoint is ending.
            self.rrpc.cancel(asked);
            return Ok(false);
        }
        self.swaps.budget.take(now, bytes);
        let contents = Part::OnTheWay;
        let copying = Copying { swap, frame: ours, bytes: pieces, contents };
        self.swaps.copies.all.insert(id, copying);
        self.swaps.copies.asked.insert(asked, id);
        Ok(true)
    }

    /// A chunk of a page has ended.
    pub(in crate::data_plane) fn page_read(
        &mut self,
        id: u64,
        result: Result<(), FabricError>,
    ) -> Result<()> {
        let Some(mut copying) = self.swaps.copies.all.remove(&id) else { return Ok(()) };
        self.piece_ended(id, &mut copying.bytes, result.is_ok());
        if copying.bytes.outcome() == Some(true) {
            self.metrics.swaps.add_copied(self.rack.geometry.page_size.bytes());
        }
        self.swaps.copies.all.insert(id, copying);
        self.end_copy(id)
    }

    /// Handles another rack's answer. Returns true if it answers a request for a header and bitmap.
    /// The bytes are not trusted.
    pub(in crate::data_plane) fn contents_answered(
        &mut self,
        call: CallId,
        head: &[u8],
        data: Data,
    ) -> Result<bool> {
        let Some(id) = self.swaps.copies.asked.remove(&call) else { return Ok(false) };
        let bitmap = self.take_data(data);
        let frame = self.swaps.copies.all.get(&id).map(|copying| copying.frame);
        let whole = match (decode::<PeerReply>(head), bitmap, frame) {
            (Ok(PeerReply::Contents { usage }), Some(bitmap), Some(frame)) => {
                let taken = self.slab.take_contents(frame, &Contents { usage, bitmap })?;
                taken.inspect_err(|error| tracing::error!("{error}")).is_ok()
            }
            _ => false,
        };
        self.contents_ended(id, whole)?;
        Ok(true)
    }

    /// Takes the bytes that came with an answer.
    fn take_data(&mut self, data: Data) -> Option<Vec<u8>> {
        match data {
            Data::None => Some(Vec::new()),
            Data::Message(bytes) => Some(bytes.to_vec()),
            Data::Arena { block, len } => {
                let mut bytes = vec![0; usize::try_from(len).ok()?];
                let read = self.rrpc.read(&block, &mut bytes);
                self.rrpc.give_back(block);
                read.is_ok().then_some(bytes)
            }
            Data::Place(_) => None,
        }
    }

    /// A call has failed. Returns true if it was a request for a header and bitmap.
    pub(in crate::data_plane) fn contents_failed(&mut self, call: CallId) -> Result<bool> {
        let Some(id) = self.swaps.copies.asked.remove(&call) else { return Ok(false) };
        self.contents_ended(id, false)?;
        Ok(true)
    }

    fn contents_ended(&mut self, id: u64, whole: bool) -> Result<()> {
        if let Some(copying) = self.swaps.copies.all.get_mut(&id) {
            copying.contents = Part::Ended { whole };
            if !whole {
                copying.bytes.give_up();
            }
        }
        self.end_copy(id)
    }

    fn end_copy(&mut self, id: u64) -> Result<()> {
        let Some(copying) = self.swaps.copies.all.get(&id) else { return Ok(()) };
        let swap = copying.swap;
        let (Some(bytes), Part::Ended { whole: contents }) =
            (copying.bytes.outcome(), copying.contents)
        else {
            return Ok(());
        };
        self.swaps.copies.all.remove(&id);
        self.machine.handle(RackEvent::PageCopied { swap, whole: bytes && contents });
        Ok(())
    }

    /// Sends the header and bitmap of a page that the other rack is about to get.
    pub(in crate::data_plane) fn serve_contents(
        &mut self,
        ask: RequestId,
        request: &PeerRequest,
    ) -> Result<()> {
        let PeerRequest::Contents { page, epoch } = *request else { return Ok(()) };
        match self.slab.contents(page, epoch)? {
            Some(Contents { usage, bitmap }) => {
                self.rrpc.answer(ask, &encode(&PeerReply::Contents { usage })?, &bitmap);
                Ok(())
            }
            None => self.reply(ask, &PeerReply::NotHere),
        }
    }
}
