//! Writes to a page that moves. Clients of this rack write the page and log the lines; this thread
//! writes it for clients without room in their log and for other racks (forwarded writes). This
//! module collects the dirty lines and sends them to the page's new home.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Instant;

use anyhow::Context;
use rackpool_model::{
    Access, ClientId, FrameId, FrameWord, GlobalAddr, PageId, PageSize, PageState, PageWord, RackId,
};
use rackpool_proto::rack::RackEvent;
use rackpool_proto::swap::SwapPeer;
use rackpool_ring::client_file::ThreadSlot;
use rackpool_rrpc::{MAX_BODY, RequestId};
use rackpool_shm::dirty_log;
use rackpool_wire::peer::{LINE_BYTES, PeerReply, PeerRequest};
use rackpool_wire::rack::{LONGEST_FORWARDED, RackAnswer};
use rackpool_wire::swap::SwapId;

use super::MESSAGE;
use super::waiters::Work;
use crate::data_plane::DataPlane;
use crate::data_plane::atomics::HomeOperation;
use crate::data_plane::clients::{Caller, Client};
use crate::data_plane::command::count;
use crate::data_plane::peers::Purpose;
use crate::data_plane::transfers::Within;
use crate::slab::Slab;

/// Dirty lines of a page beyond which further forwarded writes wait.
const LINES: usize = 512;

/// Maximum number of dirty lines that are sent. The last write that this thread executes begins
/// while there is room, and may begin and end within a line. Clients of this rack continue to write
/// until their dirty logs are full.
const MOST: usize = LINES + LONGEST_FORWARDED as usize / LINE_BYTES + 1;

const _: () = {
    assert!(MOST * (LINE_BYTES + size_of::<u32>()) + 256 <= MAX_BODY, "they go in one message");
    assert!(
        LINE_BYTES as u64 == dirty_log::LINE_BYTES
            && LONGEST_FORWARDED as usize == dirty_log::LONGEST
    );
};

/// Dirty lines that have come from the old home of a page.
#[derive(Debug)]
struct DirtyLines {
    lines: Vec<u32>,
    bytes: Vec<u8>,
}

/// Dirty lines of this rack's moving pages, by frame; and dirty lines received from other racks.
#[derive(Debug, Default)]
pub(in crate::data_plane) struct Forwarded {
    written: BTreeMap<FrameId, BTreeSet<u32>>,
    came: BTreeMap<SwapId, DirtyLines>,
}

impl Forwarded {
    /// Forgets a frame whose word is not *frozen* any more.
    pub(in crate::data_plane) fn forget(&mut self, frame: FrameId) {
        self.written.remove(&frame);
    }

    /// Takes the entries of a thread's dirty log that belong to moving pages.
    fn take(&mut self, slab: &Slab, page_size: PageSize, slot: &ThreadSlot) {
        slot.lines.take(|frame, lines| {
            let moves = |word: PageWord| word.state() == Some(PageState::Frozen);
            if slab.word_of(frame).is_some_and(moves) {
                self.remember(page_size, frame, lines);
            }
        });
    }

    /// Adds lines to the dirty lines of a frame. The range is not trusted.
    fn remember(&mut self, page_size: PageSize, frame: FrameId, lines: RangeInclusive<u32>) {
        let last = u32::try_from(page_size.bytes() / LINE_BYTES as u64 - 1).unwrap_or(u32::MAX);
        let lines = *lines.start()..=last.min(*lines.end());
        self.written.entry(frame).or_default().extend(lines);
    }

    /// Returns the dirty lines of a frame; `None` if they are too many to send: the page is then
    /// copied again.
    fn lines(&self, frame: FrameId) -> Option<Vec<u32>> {
        let written = self.written.get(&frame);
        let lines: Vec<u32> = written.into_iter().flatten().copied().collect();
        (lines.len() <= MOST).then_some(lines)
    }

    /// Returns the frame in which this rack executes writes to the page. The page is frozen, its
    /// writers log their lines or the swap's machine allows forwarding, and there is room for more
    /// lines. After the decision the limit on lines does not apply: rather than make writers wait,
    /// the page is copied again.
    pub(super) fn frame(&self, machine: &SwapPeer, slab: &Slab, page: PageId) -> Option<FrameId> {
        let FrameWord { frame, word } = slab.find(page)?;
        let may_write = word.is_dirty_logged() || machine.forwards(page);
        let is_decided = || machine.waits().any(|waits| waits.goes == Some(page));
        let has_room = || self.written.get(&frame).is_none_or(|lines| lines.len() < LINES);
        let moves = word.state() == Some(PageState::Frozen);
        (moves && may_write && (has_room() || is_decided())).then_some(frame)
    }
}

impl DataPlane {
    /// Returns true if this rack executes writes to the page for others now.
    pub(in crate::data_plane) fn writes_for_others(&self, page: PageId) -> bool {
        self.moving_frame(page).is_some()
    }

    /// Returns the frame in which it does so.
    fn moving_frame(&self, page: PageId) -> Option<FrameId> {
        self.swaps.forwarded.frame(self.machine.swap(), &self.slab, page)
    }

    /// Returns true if the page was to come here and was lost on the way.
    pub(in crate::data_plane) fn swap_has_lost(&self, page: PageId) -> bool {
        self.machine.swap().is_lost(page)
    }

    /// A client or another rack writes the page, which may be moving, or waits to write it.
    pub(in crate::data_plane) fn want_to_write(&mut self, page: PageId) {
        if self.machine.swap().expects_no_writer(page) {
            self.machine.handle(RackEvent::WriteWanted(page));
        }
    }

    /// Takes the entries of a thread's dirty log.
    pub(in crate::data_plane) fn take_noted(&mut self, client: ClientId, thread: u16) {
        let Some(slot) = self.clients.all.get(client).and_then(|client| client.thread(thread))
        else {
            return;
        };
        self.swaps.forwarded.take(&self.slab, self.rack.geometry.page_size, slot);
    }

    /// A page was frozen. A thread whose latest log entry names the page's frame may still be about
    /// to write those lines, since an earlier swap, and that swap may have taken the entry. So the
    /// lines count as dirty.
    pub(in crate::data_plane) fn remember_noted_last(&mut self, frame: FrameId) {
        let (page_size, written) = (self.rack.geometry.page_size, &mut self.swaps.forwarded);
        for slot in self.clients.all.values().flat_map(Client::threads) {
            slot.lines.look_at_last(|noted, lines| {
                if noted == frame {
                    written.remember(page_size, frame, lines);
                }
            });
        }
    }

    /// Records that this thread writes bytes of a moving page.
    pub(in crate::data_plane) fn note_written(
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
        self.swaps.forwarded.written.entry(frame).or_default().extend(line(offset)..=line(last));
        count(&self.metrics.swaps.forwarded);
        self.want_to_write(page);
    }

    /// Executes a client's write for which there is no lease. In a moving page of this rack it is
    /// executed here, or waits; in another rack's moving page it is executed there, or waits there.
    /// Any other write is refused, and the client translates the page again.
    pub(in crate::data_plane) fn forward_transfer(
        &mut self,
        caller: Caller,
        within: Within,
        batch: u64,
    ) -> anyhow::Result<()> {
        let Within { page, offset, len, .. } = within;
        // The thread's dirty log may have been full: emptying it lets the thread write by itself
        // again.
        self.take_noted(caller.client, caller.thread);
        if len <= LONGEST_FORWARDED {
            if self.slab.lookup(page).is_none() {
                let now = self.cached_now();
                // The write has waited until this rack had quiesced the page.
                if self.lease(now, page, Access::Write).is_some() {
                    return self.post_transfer(caller, within, Access::Write, batch, None);
                }
                let home = self.machine.writing_home(self.at(now), page);
                if let Some(home) = home.filter(|home| !self.is_dead(*home)) {
                    return self.have_written(home, caller, within, batch);
                }
            } else if let Some(frame) = self.moving_frame(page)
                && let Some(bytes) = self.bytes_of(caller, within)
            {
                self.write_moving(page, frame, offset, &bytes)?;
                self.clients.finish(caller, RackAnswer::Done(0));
                return Ok(());
            } else if self.is_moving(page) {
                self.transfers.forwarding.insert(caller.client_thread());
                self.wait_for_swap(page, Work::Write(caller, within, batch));
                return Ok(());
            }
        }
        self.refuse_transfer(caller, batch, RackAnswer::Moved);
        Ok(())
    }

    /// Continues a client's write that has waited for a moving page of this rack.
    pub(super) fn go_on_writing(
        &mut self,
        caller: Caller,
        within: Within,
        batch: u64,
    ) -> anyhow::Result<()> {
        self.transfers.forwarding.remove(&caller.client_thread());
        if self.clients.is_waiting(caller) {
            self.forward_transfer(caller, within, batch)?;
        }
        Ok(())
    }

    /// Asks another rack to execute a client's write.
    fn have_written(
        &mut self,
        home: RackId,
        caller: Caller,
        within: Within,
        batch: u64,
    ) -> anyhow::Result<()> {
        let Within { page, offset, .. } = within;
        let Some(bytes) = self.bytes_of(caller, within) else {
            self.refuse_transfer(caller, batch, RackAnswer::Invalid);
            return Ok(());
        };
        let addr = GlobalAddr::new(page, offset, self.rack.geometry.page_size)?;
        count(&self.metrics.remote_operations);
        self.remote_access(page, Access::Write, 1);
        self.transfers.forwarding.insert(caller.client_thread());
        let purpose = Purpose::Operation(HomeOperation { caller, page, batch: Some(batch) });
        let request = PeerRequest::Write { addr, bytes };
        self.ask(home, request, purpose, self.now() + self.lease)
    }

    /// Reads a write's bytes from the client's data ring.
    fn bytes_of(&self, caller: Caller, within: Within) -> Option<Vec<u8>> {
        let mut bytes = vec![0; within.len as usize];
        let file = &self.client(caller)?.file;
        file.memory().read(within.local_offset, &mut bytes).ok()?;
        Some(bytes)
    }

    /// Writes to a moving page of this rack.
    fn write_moving(
        &mut self,
        page: PageId,
        frame: FrameId,
        offset: u64,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        self.note_written(page, frame, offset, bytes.len());
        let at = u64::from(frame.0) * self.rack.geometry.page_size.bytes() + offset;
        Ok(self.rack.frames.write(at, bytes)?)
    }

    /// Executes a write of another rack. Its arguments are not trusted.
    pub(in crate::data_plane) fn serve_write(
        &mut self,
        addr: GlobalAddr,
        bytes: &[u8],
    ) -> anyhow::Result<PeerReply> {
        let page_size = self.rack.geometry.page_size;
        let Some(page) = addr.page(page_size) else { return Ok(PeerReply::NotAllocated) };
        let offset = addr.offset(page_size);
        let len = bytes.len();
        if len == 0 || len as u64 > page_size.bytes() - offset {
            return Ok(PeerReply::Invalid(format!("{len} B at {addr} are not in its page")));
        }
        if len > LONGEST_FORWARDED as usize {
            let text = format!("{len} B: at most {LONGEST_FORWARDED} are written in one message");
            return Ok(PeerReply::Invalid(text));
        }
        if let Some(frame) = self.moving_frame(page) {
            self.write_moving(page, frame, offset, bytes)?;
            return Ok(PeerReply::Written { moving: true });
        }
        let frame = match self.usable(page, Access::Write) {
            Ok(found) => found.frame,
            Err(refusal) => return Ok(refusal),
        };
        self.rack.frames.write(u64::from(frame.0) * page_size.bytes() + offset, bytes)?;
        Ok(PeerReply::Written { moving: false })
    }

    /// Sends the dirty lines of a page to its new home.
    pub(in crate::data_plane) fn send_dirty_lines(
        &mut self,
        now: Instant,
        swap: SwapId,
        to: RackId,
        frame: FrameId,
        known: bool,
    ) -> anyhow::Result<()> {
        let threads = self.clients.all.values().filter(|client| !client.gone);
        for slot in threads.flat_map(Client::threads) {
            self.swaps.forwarded.take(&self.slab, self.rack.geometry.page_size, slot);
        }
        let lines = if known { self.swaps.forwarded.lines(frame) } else { None };
        let (known, lines) = (lines.is_some(), lines.unwrap_or_default());
        let mut bytes = vec![0; lines.len() * LINE_BYTES];
        let start = u64::from(frame.0) * self.rack.geometry.page_size.bytes();
        for (line, into) in lines.iter().zip(bytes.chunks_exact_mut(LINE_BYTES)) {
            self.rack.frames.read(start + u64::from(*line) * LINE_BYTES as u64, into)?;
        }
        let request = PeerRequest::DirtyLines { swap, frame, known, lines, bytes };
        self.meet(to);
        self.ask(to, request, Purpose::Swap, now + MESSAGE)
    }

    /// Handles the dirty lines of a page that comes here. They are not trusted.
    pub(in crate::data_plane) fn serve_dirty_lines(
        &mut self,
        ask: RequestId,
        request: PeerRequest,
    ) -> anyhow::Result<()> {
        self.reply(ask, &PeerReply::Heard)?;
        let Some(from) = self.peers.rack_at(ask.endpoint) else { return Ok(()) };
        let PeerRequest::DirtyLines { swap, frame: theirs, known, lines, bytes } = request else {
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
        self.swaps.forwarded.came.insert(swap, DirtyLines { lines, bytes });
        self.machine.handle(RackEvent::DirtyLinesReceived { from, swap, theirs, known });
        self.run_machine()?;
        self.swaps.forwarded.came.remove(&swap);
        Ok(())
    }

    /// Stores received dirty lines in the frame of a page that is not readable yet.
    pub(in crate::data_plane) fn apply_dirty_lines(
        &mut self,
        swap: SwapId,
        frame: FrameId,
    ) -> anyhow::Result<()> {
        let came = self.swaps.forwarded.came.remove(&swap);
        let DirtyLines { lines, bytes } = came.context("nothing has come that could be applied")?;
        let start = u64::from(frame.0) * self.rack.geometry.page_size.bytes();
        for (line, from) in lines.iter().zip(bytes.chunks_exact(LINE_BYTES)) {
            let at = start + u64::from(*line) * LINE_BYTES as u64;
            self.rack.frames.write(at, from)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: FrameId = FrameId(4);
    const PAGE_SIZE: PageSize = PageSize::DEFAULT;

    #[test]
    fn more_than_a_message_holds_is_not_told_line_by_line() {
        let mut forwarded = Forwarded::default();
        assert_eq!(forwarded.lines(FRAME), Some(vec![]), "nothing was written");
        let most = u32::try_from(MOST).unwrap();
        forwarded.remember(PAGE_SIZE, FRAME, 1..=most);
        assert_eq!(forwarded.lines(FRAME).map(|lines| lines.len()), Some(MOST));
        forwarded.remember(PAGE_SIZE, FRAME, 0..=0);
        assert_eq!(forwarded.lines(FRAME), None);
        forwarded.forget(FRAME);
        assert_eq!(forwarded.lines(FRAME), Some(vec![]));
    }

    #[test]
    fn lines_behind_the_page_are_left_out() {
        let mut forwarded = Forwarded::default();
        let last = u32::try_from(PAGE_SIZE.bytes() / LINE_BYTES as u64 - 1).unwrap();
        forwarded.remember(PAGE_SIZE, FRAME, last..=u32::MAX);
        assert_eq!(forwarded.lines(FRAME), Some(vec![last]));
    }
}
