//! Writes in a page that moves, carried out by this thread for clients and other racks: what was written
//! where, and how the page's new home gets it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rackpool_model::{Access, FrameId, GlobalAddr, PageId, PageState, RackId};
use rackpool_proto::swap::RackEvent;
use rackpool_rrpc::{AskId, MAX_BODY};
use rackpool_wire::peer::{LINE_BYTES, PeerReply, PeerRequest};
use rackpool_wire::rack::RackAnswer;
use rackpool_wire::swap::SwapId;

use super::MESSAGE;
use crate::plane::DataPlane;
use crate::plane::atomics::Operation;
use crate::plane::clients::Caller;
use crate::plane::command::count;
use crate::plane::peers::Purpose;
use crate::plane::transfers::{Wanted, Within};

/// The longest write that is carried out for somebody (bytes): a longer one waits until the page has
/// moved, or this thread would copy for so long that others notice.
const LONGEST: u32 = 4 << 10;
/// The most lines of a page that are written before who wants to write waits after all.
const LINES: usize = 512;

const _: () = {
    // The last write begins when there is room, and may begin and end in the midst of a line.
    let most = LINES + LONGEST as usize / LINE_BYTES + 1;
    assert!(most * (LINE_BYTES + size_of::<u32>()) + 256 <= MAX_BODY, "they go in one message");
};

/// What has come from the old home of a page.
#[derive(Debug)]
struct Delta {
    lines: Vec<u32>,
    bytes: Vec<u8>,
}

/// Lines that were written, by the frames of their pages; and what other racks have written.
#[derive(Debug, Default)]
pub(super) struct Delegated {
    written: BTreeMap<FrameId, BTreeSet<u32>>,
    came: BTreeMap<SwapId, Delta>,
}

impl Delegated {
    /// The page in the frame does not move any more, or has been handed over.
    pub(super) fn forget(&mut self, frame: FrameId) {
        self.written.remove(&frame);
    }

    /// Whether more may be written in the frame.
    pub(super) fn has_room(&self, frame: FrameId) -> bool {
        self.written.get(&frame).is_none_or(|lines| lines.len() < LINES)
    }
}

impl DataPlane {
    /// Whether this rack carries out what is to be written in the page: it moves.
    pub(in crate::plane) fn writes_for_others(&self, page: PageId) -> bool {
        self.swaps.machine.delegates(page)
            && self.slab.lookup(page).is_some_and(|(frame, word, _)| {
                word.state() == Some(PageState::Frozen) && self.swaps.delegated.has_room(frame)
            })
    }

    /// Whether the page was to come here and was lost on the way.
    pub(in crate::plane) fn swap_has_lost(&self, page: PageId) -> bool {
        self.swaps.machine.is_lost(page)
    }

    /// Somebody writes the page, which may be moving, or waits to.
    pub(in crate::plane) fn want_to_write(&mut self, page: PageId) {
        if self.swaps.machine.expects_no_writer(page) {
            // The machine is told in this poll round: it may be at work.
            self.swaps.inputs.push_back(RackEvent::WriteWanted(page));
        }
    }

    /// Bytes of the page in this frame, which moves, are written for somebody.
    pub(in crate::plane) fn note_written(
        &mut self,
        page: PageId,
        frame: FrameId,
        offset: u64,
        len: usize,
    ) {
        #[expect(clippy::cast_possible_truncation, reason = "a page has at most 2^24 lines")]
        let line = |at: u64| (at / LINE_BYTES as u64) as u32;
        let last =
            (offset + len.saturating_sub(1) as u64).min(self.rack.geometry.page_size.bytes() - 1);
        self.swaps.delegated.written.entry(frame).or_default().extend(line(offset)..=line(last));
        count(&self.figures.swaps.delegated);
        self.want_to_write(page);
    }

    /// A client's transfer for which there is no lease: its page may be in this rack and move, or move
    /// and be written by its home. `false`: neither.
    pub(in crate::plane) fn delegate_transfer(
        &mut self,
        caller: Caller,
        wanted: &Wanted,
    ) -> anyhow::Result<bool> {
        let page = wanted.addr.page(self.rack.geometry.page_size);
        let Some(page) = page else { return Ok(false) };
        if let Some((frame, word, _)) = self.slab.lookup(page) {
            let frozen = word.state() == Some(PageState::Frozen);
            match self.within(caller, wanted) {
                Ok(within) if frozen && self.move_here(caller, wanted, frame, within) => {
                    self.clients.finish(caller, RackAnswer::Done(0));
                }
                Ok(_) => self.refuse_transfer(caller, wanted.batch, RackAnswer::Moved),
                Err(answer) => self.refuse_transfer(caller, wanted.batch, answer),
            }
            return Ok(true);
        }
        let now = self.moment();
        let home = if wanted.is_read { None } else { self.leases.delegate(now, page) };
        let Some(home) = home else { return Ok(false) };
        let bytes = match self.within(caller, wanted) {
            Ok(within) if within.len <= LONGEST => self.bytes_of(caller, within),
            // It waits for the page.
            Ok(_) => {
                self.leases.note_undelegated(page);
                None
            }
            Err(answer) => {
                self.refuse_transfer(caller, wanted.batch, answer);
                return Ok(true);
            }
        };
        let Some(bytes) = bytes else {
            self.refuse_transfer(caller, wanted.batch, RackAnswer::Moved);
            return Ok(true);
        };
        self.remote_access(page, Access::Write, 1)?;
        self.transfers.delegating.insert((caller.client, caller.thread));
        let request = PeerRequest::Write { addr: wanted.addr, bytes };
        let purpose = Purpose::Operation(Operation { caller, page, batch: Some(wanted.batch) });
        self.ask(home, request, purpose, self.now() + self.lease)?;
        Ok(true)
    }

    /// What stands in a client's data ring.
    fn bytes_of(&self, caller: Caller, within: Within) -> Option<Vec<u8>> {
        let mut bytes = vec![0; within.len as usize];
        let file = &self.client(caller)?.file;
        file.memory().read(within.local_offset, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Moves bytes between a page of this rack that moves and a client's data ring; `false`: this can't
    /// be done now.
    fn move_here(
        &mut self,
        caller: Caller,
        wanted: &Wanted,
        frame: FrameId,
        within: Within,
    ) -> bool {
        let Within { page, offset, len, local_offset } = within;
        let at = u64::from(frame.0) * self.rack.geometry.page_size.bytes() + offset;
        if wanted.is_read {
            let mut bytes = vec![0; len as usize];
            let Some(client) = self.client(caller) else { return false };
            return self.rack.frames.read(at, &mut bytes).is_ok()
                && client.file.memory().write(local_offset, &bytes).is_ok();
        }
        if len > LONGEST || !self.writes_for_others(page) {
            return false;
        }
        let Some(bytes) = self.bytes_of(caller, within) else { return false };
        self.note_written(page, frame, offset, bytes.len());
        self.rack.frames.write(at, &bytes).is_ok()
    }

    /// Another rack wants something written in a page of this one. Nothing in it is trusted.
    pub(in crate::plane) fn serve_write(
        &mut self,
        addr: GlobalAddr,
        bytes: &[u8],
    ) -> anyhow::Result<PeerReply> {
        let page_size = self.rack.geometry.page_size;
        let Some(page) = addr.page(page_size) else { return Ok(PeerReply::NotAllocated) };
        let offset = addr.offset(page_size);
        if bytes.is_empty() || bytes.len() as u64 > page_size.bytes() - offset {
            return Ok(PeerReply::Invalid(format!(
                "{} B at {addr} are not in its page",
                bytes.len()
            )));
        }
        let moving = self.writes_for_others(page);
        if moving && bytes.len() > LONGEST as usize {
            // What is written has to go in one message.
            return Ok(PeerReply::Busy);
        }
        let access = if moving { Access::Read } else { Access::Write };
        let frame = match self.usable(page, access) {
            Ok((frame, ..)) => frame,
            Err(refusal) => {
                if refusal == PeerReply::Busy {
                    self.sharing.need(page);
                    self.want_to_write(page);
                }
                return Ok(refusal);
            }
        };
        if moving {
            self.note_written(page, frame, offset, bytes.len());
        }
        self.rack.frames.write(u64::from(frame.0) * page_size.bytes() + offset, bytes)?;
        Ok(PeerReply::Written { moving })
    }

    /// Sends the new home of a page what was written in it.
    pub(super) fn send_delta(
        &mut self,
        now: Instant,
        swap: SwapId,
        to: RackId,
        (frame, known): (FrameId, bool),
    ) -> anyhow::Result<()> {
        let written = self.swaps.delegated.written.get(&frame).filter(|_| known);
        let lines: Vec<u32> = written.into_iter().flatten().copied().collect();
        let mut bytes = vec![0; lines.len() * LINE_BYTES];
        let start = u64::from(frame.0) * self.rack.geometry.page_size.bytes();
        for (line, into) in lines.iter().zip(bytes.chunks_exact_mut(LINE_BYTES)) {
            self.rack.frames.read(start + u64::from(*line) * LINE_BYTES as u64, into)?;
        }
        let request = PeerRequest::Delta { swap, frame, known, lines, bytes };
        self.meet(to);
        self.ask(to, request, Purpose::Swap, now + MESSAGE)
    }

    /// Another rack sends what it has written in a page that comes here. Nothing in it is trusted.
    pub(in crate::plane) fn serve_delta(
        &mut self,
        ask: AskId,
        request: PeerRequest,
    ) -> anyhow::Result<()> {
        self.reply(ask, &PeerReply::Heard)?;
        let Some(from) = self.peers.rack_at(ask.endpoint) else { return Ok(()) };
        let PeerRequest::Delta { swap, frame: theirs, known, lines, bytes } = request else {
            return Ok(());
        };
        let in_page = self.rack.geometry.page_size.bytes() / LINE_BYTES as u64;
        let is_whole = bytes.len() == lines.len() * LINE_BYTES
            && lines.iter().all(|line| u64::from(*line) < in_page);
        if !is_whole {
            tracing::error!(
                "{from} says of a page that it gives that lines of no page were written"
            );
            self.fabric.disconnect(ask.endpoint);
            return Ok(());
        }
        self.swaps.delegated.came.insert(swap, Delta { lines, bytes });
        self.tell_swaps(RackEvent::DeltaCame { from, swap, theirs, known })?;
        self.swaps.delegated.came.remove(&swap);
        Ok(())
    }

    /// Stores what has come in the frame of a page that is not read yet.
    pub(super) fn merge(&mut self, swap: SwapId, frame: FrameId) {
        let Some(Delta { lines, bytes }) = self.swaps.delegated.came.get(&swap) else { return };
        let start = u64::from(frame.0) * self.rack.geometry.page_size.bytes();
        for (line, from) in lines.iter().zip(bytes.chunks_exact(LINE_BYTES)) {
            let at = start + u64::from(*line) * LINE_BYTES as u64;
            if let Err(error) = self.rack.frames.write(at, from) {
                tracing::error!("what was written in {frame} has no place: {error}");
            }
        }
    }
}
