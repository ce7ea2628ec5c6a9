//! Writes in a page that moves, carried out by the processor of its old home.

use std::collections::BTreeSet;

use rackpool_model::{FrameId, PageId, PageState, PageWord};
use rackpool_proto::planted::{Bug, Bugs};
use rackpool_proto::swap::RackEvent;
use rackpool_wire::swap::SwapId;

use crate::daemon::Input;
use crate::history::Kind;
use crate::message::Message;
use crate::rules::{RACKS, WORDS};
use crate::world::{RackNode, World, rack_id};

/// What dies with the daemon.
#[derive(Debug, Default)]
pub(crate) struct Delegated {
    /// The words written for others, by frame.
    written: BTreeSet<(FrameId, usize)>,
    /// What came last and is to be merged.
    came: [Option<u64>; WORDS],
}

impl<B: Bugs> World<B> {
    /// Writes or changes a word for somebody, if the page is live here, or moves and is written by this
    /// rack alone. `None`: it was not done.
    pub(crate) fn write_for(
        &mut self,
        rack: usize,
        page: PageId,
        word: usize,
        kind: Kind,
    ) -> Option<u64> {
        let (frame, found) = self.racks[rack].memory.find(page)?;
        match found.state() {
            Some(PageState::Live) => Some(self.carry_out(rack, frame, word, kind)),
            Some(PageState::Frozen) => {
                let daemon = self.racks[rack].daemon.as_mut()?;
                let (delegates, unexpected) =
                    (daemon.swap.delegates(page), daemon.swap.expects_no_writer(page));
                if delegates && !self.bugs.has(Bug::ForgetOneWrite) {
                    daemon.delegated.written.insert((frame, word));
                }
                let before = delegates.then(|| {
                    self.check_delegated(rack, page);
                    self.seen.delegated += 1;
                    self.carry_out(rack, frame, word, kind)
                });
                if unexpected {
                    self.feed(rack, Input::Swap(RackEvent::WriteWanted(page)));
                }
                before
            }
            _ => None,
        }
    }

    /// What is written here is seen by nobody who reads the page elsewhere.
    fn check_delegated(&mut self, rack: usize, page: PageId) {
        let reads = |other: &RackNode<B>| {
            other.memory.all().any(|(_, word)| word.page() == page && word.is_readable())
        };
        if (0..RACKS).any(|other| other != rack && reads(&self.racks[other])) {
            self.breaks(|| format!("rack {rack} writes {page}, which is read elsewhere by now"));
        }
    }

    pub(crate) fn send_delta(
        &mut self,
        rack: usize,
        to: usize,
        swap: SwapId,
        frame: FrameId,
        known: bool,
    ) {
        let node = &self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let bytes = node.memory.frames[frame.0 as usize].bytes;
        let written = |word| daemon.delegated.written.contains(&(frame, word));
        let words = std::array::from_fn(|word| written(word).then_some(bytes[word]));
        self.send(rack, to, Message::Delta { swap, theirs: frame, known, words });
    }

    pub(crate) fn delta_came(
        &mut self,
        rack: usize,
        from: usize,
        swap: SwapId,
        theirs: FrameId,
        known: bool,
        words: [Option<u64>; WORDS],
    ) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        daemon.delegated.came = words;
        let from = rack_id(from);
        self.feed(rack, Input::Swap(RackEvent::DeltaCame { from, swap, theirs, known }));
    }

    pub(crate) fn merge(&mut self, rack: usize, frame: FrameId) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let bytes = &mut node.memory.frames[frame.0 as usize].bytes;
        for (into, came) in bytes.iter_mut().zip(daemon.delegated.came) {
            *into = came.unwrap_or(*into);
        }
    }

    /// What was written in a frame whose page does not move any more needs no remembering.
    pub(crate) fn forget_writes(&mut self, rack: usize, frame: FrameId, word: PageWord) {
        if word.state() != Some(PageState::Frozen)
            && let Some(daemon) = &mut self.racks[rack].daemon
        {
            daemon.delegated.written.retain(|(of, _)| *of != frame);
        }
    }
}
