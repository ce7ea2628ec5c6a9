//! Writes to a page that moves. Clients of this rack write the page and log the lines; this thread
//! writes it for clients without room in their log and for other racks (forwarded writes). This
//! module collects the dirty lines and sends them to the page's new home.

use std::collections::BTreeMap;
use std::time::Instant;

use rackpool_model::{Access, ClientId, FrameId, FrameWord, GlobalAddr, PageId, PageSize, RackId};
use rackpool_proto::rack::{Executor, LineRules, PageAccess, RackEvent, RackMachine};
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
use crate::data_plane::error::{PlaneError, Result};
use crate::data_plane::home_requests::refusal;
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

/// Dirty lines received from other racks.
#[derive(Debug, Default)]
pub(super) struct Forwarded {
    came: BTreeMap<SwapId, DirtyLines>,
}

/// Returns the machine's rules of dirty lines.
pub(in crate::data_plane) fn line_rules(page_size: PageSize) -> LineRules {
    let in_page = u32::try_from(page_size.bytes() / LINE_BYTES as u64).unwrap_or(u32::MAX);
    LineRules { in_page, forwarded: LINES, sent: MOST }
}

impl DataPlane {
    /// Returns true if the page was to come here and was lost on the way.
    pub(in crate::data_plane) fn swap_has_lost(&self, page: PageId) -> bool {
        self.machine.swap().is_lost(page)
    }

    /// Takes the entries of a thread's dirty log.
    pub(in crate::data_plane) fn take_noted(&mut self, client: ClientId, thread: u16) {
        let Some(slot) = self.clients.all.get(client).and_then(|client| client.thread(thread))
        else {
            return;
        };
        take_log(&mut self.machine, &self.slab, slot);
    }

    /// A page was frozen. A thread whose latest log entry names the page's frame may still be about
    /// to write those lines, since an earlier swap, and that swap may have taken the entry. So the
    /// lines count as dirty.
    pub(in crate::data_plane) fn remember_noted_last(&mut self, frame: FrameId) {
        let (machine, slab) = (&mut self.machine, &self.slab);
        for slot in self.clients.all.values().flat_map(Client::threads) {
            slot.lines.look_at_last(|noted, lines| {
                if noted == frame {
                    machine.note_dirty(slab, frame, lines);
                }
            });
        }
    }

    /// Records that this thread writes bytes of a moving page.
    pub(in crate::data_plane) fn note_written(
        &mut self,
        found: FrameWord,
        offset: u64,
        len: usize,
    ) {
        #[expect(clippy::cast_possible_truncation, reason = "a page has at most 2^24 lines")]
        let line = |at: u64| (at / LINE_BYTES as u64) as u32;
        let last =
            (offset + len.saturating_sub(1) as u64).min(self.rack.geometry.page_size.bytes() - 1);
        self.machine.note_forwarded(found, line(offset)..=line(last));
        count(&self.metrics.swaps.forwarded);
    }

    /// Executes a client's write for which there is no lease. In a moving page of this rack it is
    /// executed here, or waits; in another rack's moving page it is executed there, or waits there.
    /// Any other write is refused, and the client translates the page again.
    pub(in crate::data_plane) fn forward_transfer(
        &mut self,
        caller: Caller,
        within: Within,
        batch: u64,
    ) -> Result<()> {
        let Within { page, offset, len, .. } = within;
        // The thread's dirty log may have been full: emptying it lets the thread write by itself
        // again.
        self.take_noted(caller.client, caller.thread);
        let now = self.cached_now();
        let answer = match self.machine.executor(self.at(now), &self.slab, page, false) {
            _ if self.has_lost_lock(caller, page, offset, u64::from(len)) => RackAnswer::LockLost,
            _ if len > LONGEST_FORWARDED => RackAnswer::Moved,
            // A lock of the page is being lost.
            Executor::Home(home) if !self.may_operate_at(caller, page, home) => RackAnswer::Moved,
            Executor::Home(home) => return self.have_written(home, caller, within, batch),
            Executor::ThisRack(found) => match self.bytes_of(caller, within) {
                Some(bytes) => {
                    self.write_moving(found, offset, &bytes)?;
                    self.clients.finish(caller, RackAnswer::Done(0));
                    return Ok(());
                }
                None => RackAnswer::Invalid,
            },
            Executor::Later => {
                self.transfers.forwarding.insert(caller.client_thread());
                self.wait_for_swap(page, Work::Write(caller, within, batch));
                return Ok(());
            }
            Executor::Unknown => RackAnswer::Moved,
        };
        self.refuse_transfer(caller, batch, answer);
        Ok(())
    }

    /// Continues a client's write that has waited for a moving page of this rack.
    pub(super) fn go_on_writing(
        &mut self,
        caller: Caller,
        within: Within,
        batch: u64,
    ) -> Result<()> {
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
    ) -> Result<()> {
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
    fn write_moving(&mut self, found: FrameWord, offset: u64, bytes: &[u8]) -> Result<()> {
        self.note_written(found, offset, bytes.len());
        let at = u64::from(found.frame.0) * self.rack.geometry.page_size.bytes() + offset;
        Ok(self.rack.frames.write(at, bytes)?)
    }

    /// Executes a write of another rack. Its arguments are not trusted.
    pub(in crate::data_plane) fn serve_write(
        &mut self,
        addr: GlobalAddr,
        bytes: &[u8],
    ) -> Result<PeerReply> {
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
        let access = self.machine.access(&self.slab, page, Access::Write);
        let moving = match access {
            PageAccess::Forwarded(found) => {
                self.write_moving(found, offset, bytes)?;
                true
            }
            PageAccess::Usable(found) => {
                let at = u64::from(found.frame.0) * page_size.bytes() + offset;
                self.rack.frames.write(at, bytes)?;
                false
            }
            _ => return Ok(refusal(access)),
        };
        Ok(PeerReply::Written { moving })
    }

    /// Sends the dirty lines of a page to its new home.
    pub(in crate::data_plane) fn send_dirty_lines(
        &mut self,
        now: Instant,
        swap: SwapId,
        to: RackId,
        frame: FrameId,
        known: bool,
    ) -> Result<()> {
        let threads = self.clients.all.values().filter(|client| !client.gone);
        for slot in threads.flat_map(Client::threads) {
            take_log(&mut self.machine, &self.slab, slot);
        }
        let lines = if known { self.machine.dirty_lines(frame) } else { None };
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
    ) -> Result<()> {
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
    ) -> Result<()> {
        let came = self.swaps.forwarded.came.remove(&swap);
        let DirtyLines { lines, bytes } = came
            .ok_or_else(|| PlaneError::Bug("dirty lines are applied that have not come".into()))?;
        let start = u64::from(frame.0) * self.rack.geometry.page_size.bytes();
        for (line, from) in lines.iter().zip(bytes.chunks_exact(LINE_BYTES)) {
            let at = start + u64::from(*line) * LINE_BYTES as u64;
            self.rack.frames.write(at, from)?;
        }
        Ok(())
    }
}

/// Takes the entries of a thread's dirty log that belong to moving pages.
fn take_log(machine: &mut RackMachine, slab: &Slab, slot: &ThreadSlot) {
    slot.lines.take(|frame, lines| machine.note_dirty(slab, frame, lines));
}
