//! Writes in a page that moves: forwarded writes, and dirty-logged writes of clients of the old
//! home.

use std::collections::BTreeSet;

use rackpool_model::{FrameId, FrameWord, PageId, PageState, PageWord};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_proto::rack::RackEvent;
use rackpool_wire::swap::SwapId;

use crate::history::Kind;
use crate::memory::Use;
use crate::message::Message;
use crate::rules::{RACKS, WORDS};
use crate::world::{RackNode, World, rack_id};

/// The volatile state of forwarding; it is lost with the daemon.
#[derive(Debug, Default)]
pub(crate) struct Forwarded {
    /// The words written, by frame.
    written: BTreeSet<(FrameId, usize)>,
    /// The dirty lines received last, to be applied.
    came: [Option<u64>; WORDS],
}

impl<B: Bugs> World<B> {
    /// Executes a write or atomic if the page is live here, or moves and this rack forwards writes.
    /// Returns `None` if it was not executed.
    pub(crate) fn write_for(
        &mut self,
        rack: usize,
        page: PageId,
        word: usize,
        kind: Kind,
    ) -> Option<u64> {
        let FrameWord { frame, word: found } = self.racks[rack].memory.find(page)?;
        match found.state() {
            Some(PageState::Live) => Some(self.carry_out(rack, frame, word, kind)),
            Some(PageState::Frozen) => {
                self.take_noted(rack);
                let daemon = self.racks[rack].daemon.as_mut()?;
                let forwards = found.is_dirty_logged() || daemon.machine.swap().forwards(page);
                let unexpected = daemon.machine.swap().expects_no_writer(page);
                if forwards && !self.bugs.has(Bug::ForgetOneWrite) {
                    daemon.forwarded.written.insert((frame, word));
                }
                let before = forwards.then(|| {
                    self.check_forwarded(rack, page);
                    self.seen.forwarded += 1;
                    self.carry_out(rack, frame, word, kind)
                });
                if unexpected {
                    self.feed(rack, RackEvent::WriteWanted(page));
                }
                before
            }
            _ => None,
        }
    }

    /// Takes clients' notes about pages that move.
    fn take_noted(&mut self, rack: usize) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        let frames = &node.memory.frames;
        let moves =
            |frame: FrameId| frames[frame.0 as usize].word.state() == Some(PageState::Frozen);
        let noted = node.memory.noted.iter_mut().flat_map(|noted| noted.drain(..));
        daemon.forwarded.written.extend(noted.filter(|(frame, _)| moves(*frame)));
    }

    /// A client whose last note names this frame may still store to it, since an earlier swap.
    pub(crate) fn remember_noted_last(&mut self, rack: usize, frame: FrameId) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        let last = node.memory.noted_last.iter().flatten();
        daemon.forwarded.written.extend(last.filter(|(noted, _)| *noted == frame));
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
        let written = |word| daemon.forwarded.written.contains(&(frame, word));
        let words = std::array::from_fn(|word| written(word).then_some(bytes[word]));
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
        daemon.forwarded.came = words;
        let from = rack_id(from);
        self.feed(rack, RackEvent::DirtyLinesReceived { from, swap, theirs, known });
    }

    pub(crate) fn apply_dirty_lines(&mut self, rack: usize, frame: FrameId) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let bytes = &mut node.memory.frames[frame.0 as usize].bytes;
        for (into, came) in bytes.iter_mut().zip(daemon.forwarded.came) {
            *into = came.unwrap_or(*into);
        }
    }

    /// Forgets the written words of a frame whose page is not frozen any more.
    pub(crate) fn forget_writes(&mut self, rack: usize, frame: FrameId, word: PageWord) {
        if word.state() != Some(PageState::Frozen)
            && let Some(daemon) = &mut self.racks[rack].daemon
        {
            daemon.forwarded.written.retain(|(of, _)| *of != frame);
        }
    }
}
