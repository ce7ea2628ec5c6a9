//! Writes in a page that moves: forwarded writes, and dirty-logged writes of clients of the old
//! home.

use rackpool_model::{Access, FrameId, PageId, PageState};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::rack::{LeaseAnswer, PageAccess, RackEvent};
use rackpool_wire::swap::SwapId;

use crate::calls::{PageUse, refusal};
use crate::history::Kind;
use crate::memory::Use;
use crate::message::Message;
use crate::rules::{CLIENTS, RACKS, WORDS};
use crate::world::{RackNode, World, rack_id};

impl<B: Bugs> World<B> {
    /// Executes a write or atomic if the page is live here, or moves and this rack forwards writes.
    pub(crate) fn write_for(
        &mut self,
        rack: usize,
        page: PageId,
        word: usize,
        kind: Kind,
    ) -> PageUse {
        self.take_noted(rack);
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return PageUse::Refused(LeaseAnswer::Busy) };
        let access = daemon.machine.access(&node.memory, page, Access::Write);
        match access {
            PageAccess::Usable(found) => {
                let found = self.carry_out(rack, found.frame, word, kind);
                PageUse::Done { found, moving: false }
            }
            PageAccess::Forwarded(found) => {
                daemon.machine.note_forwarded(found, line(word)..=line(word));
                self.check_forwarded(rack, page);
                self.seen.forwarded += 1;
                let before = self.carry_out(rack, found.frame, word, kind);
                self.run_rack(rack);
                PageUse::Done { found: before, moving: true }
            }
            PageAccess::Busy => {
                daemon.machine.handle(RackEvent::WriteWanted(page));
                self.run_rack(rack);
                PageUse::Refused(refusal(access))
            }
            PageAccess::Free | PageAccess::Lost | PageAccess::Elsewhere => {
                PageUse::Refused(refusal(access))
            }
        }
    }

    /// Takes clients' notes about pages that move.
    pub(crate) fn take_noted(&mut self, rack: usize) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        for client in 0..CLIENTS {
            for (frame, word) in std::mem::take(&mut node.memory.noted[client]) {
                daemon.machine.note_dirty(&node.memory, frame, line(word)..=line(word));
            }
        }
    }

    /// A client whose last note names this frame may still store to it, since an earlier swap.
    pub(crate) fn remember_noted_last(&mut self, rack: usize, frame: FrameId) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        for (noted, word) in node.memory.noted_last.iter().flatten() {
            if *noted == frame {
                daemon.machine.note_dirty(&node.memory, frame, line(*word)..=line(*word));
            }
        }
    }

    /// A client logs a line of a page that moves. Returns false if its log is full.
    pub(crate) fn note_write(&mut self, client: usize, frame: FrameId, word: usize) -> bool {
        const ROOM: usize = 2;
        let rack = self.clients[client].rack;
        let noted = &mut self.racks[rack].memory.noted[client];
        let is_noted = noted.last() == Some(&(frame, word));
        let has_room = noted.len() < ROOM;
        if has_room && !is_noted {
            noted.push((frame, word));
        }
        if is_noted || has_room {
            self.racks[rack].memory.noted_last[client] = Some((frame, word));
        }
        is_noted || has_room
    }

    /// Logs a line after the store, if the page moves.
    pub(crate) fn note_late(&mut self, client: usize, operation: usize) {
        let (rack, one) = (self.clients[client].rack, self.history.get(operation));
        let slot =
            self.racks[rack].memory.slots[client].filter(|slot| slot.usage == Use::DirtyLogged);
        if let Some(slot) = slot
            && self.racks[rack].memory.frame(slot.frame).word.state() == Some(PageState::Frozen)
        {
            self.note_write(client, slot.frame, one.word);
        }
    }

    /// Checks C4: the page is readable in no other rack.
    pub(crate) fn check_forwarded(&mut self, rack: usize, page: PageId) {
        let reads = |other: &RackNode<B>| {
            other.memory.all().any(|found| found.word.page() == page && found.word.is_readable())
        };
        if (0..RACKS).any(|other| other != rack && reads(&self.racks[other])) {
            self.breaks(|| format!("rack {rack} writes {page}, which is read elsewhere by now"));
        }
    }

    pub(crate) fn send_dirty_lines(
        &mut self,
        rack: usize,
        to: usize,
        swap: SwapId,
        frame: FrameId,
        known: bool,
    ) {
        self.take_noted(rack);
        let node = &self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let bytes = node.memory.frames[frame.0 as usize].bytes;
        let lines = daemon.machine.dirty_lines(frame).filter(|_| known);
        let (known, lines) = (lines.is_some(), lines.unwrap_or_default());
        let is_dirty = |word| lines.contains(&line(word));
        let words = std::array::from_fn(|word| is_dirty(word).then_some(bytes[word]));
        self.send(rack, to, Message::DirtyLines { swap, theirs: frame, known, words });
    }

    pub(crate) fn dirty_lines_received(
        &mut self,
        rack: usize,
        from: usize,
        swap: SwapId,
        theirs: FrameId,
        known: bool,
        words: [Option<u64>; WORDS],
    ) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        daemon.came = words;
        let from = rack_id(from);
        self.feed(rack, RackEvent::DirtyLinesReceived { from, swap, theirs, known });
    }

    pub(crate) fn apply_dirty_lines(&mut self, rack: usize, frame: FrameId) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let bytes = &mut node.memory.frames[frame.0 as usize].bytes;
        for (into, came) in bytes.iter_mut().zip(daemon.came) {
            *into = came.unwrap_or(*into);
        }
    }
}

/// The line of a word: each word of this world has its own.
fn line(word: usize) -> u32 {
    u32::try_from(word).unwrap_or(u32::MAX)
}
