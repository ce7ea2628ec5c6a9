//! Damaged swap records: daemons must report them and leave them and their frames unused.

use rackpool_model::{FrameId, PageId, PageState};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::swap::{RECORD_WORDS, RECORDS, Record, SwapRecordError, Waits};

use crate::world::{RackNode, World};

/// The most damaged records of one rack.
const MOST: usize = 2;

/// A damaged record and its original content.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    slot: usize,
    /// The damaged words.
    pub(crate) words: [u64; RECORD_WORDS],
    /// Frames that its swap was using.
    frames: Vec<FrameId>,
    /// Pages of that swap.
    pages: Vec<PageId>,
}

impl<B: Bugs> World<B> {
    /// Damages a record at random while the daemon of the rack is dead, so that it is no valid
    /// record.
    pub(crate) fn damage(&mut self, rack: usize) {
        let node = &self.racks[rack];
        let is_over = node.damages.len() >= MOST || self.weather.scribbled != Some(rack);
        // A memory without pages has no records yet.
        if is_over || node.pages.is_none() || !self.rng.percent(40) {
            return;
        }
        let whole = |slot: &usize| !node.damages.iter().any(|damage| damage.slot == *slot);
        let in_use = |slot: &usize| node.memory.records[*slot][0] != 0;
        let mut slots: Vec<usize> = (0..RECORDS).filter(whole).collect();
        if slots.iter().any(in_use) {
            slots.retain(in_use);
        }
        let slot = slots[self.rng.below(slots.len())];
        let before = node.memory.records[slot];
        let mut words = before;
        // Not every change is detectable: another swap number is as valid as the right one.
        for _ in 0..8 {
            words = before;
            words[self.rng.below(RECORD_WORDS)] ^= self.rng.next();
            if Record::from_words(&words).is_err() {
                break;
            }
        }
        if Record::from_words(&words).is_err() {
            self.scribble(rack, slot, words);
        }
    }

    fn scribble(&mut self, rack: usize, slot: usize, words: [u64; RECORD_WORDS]) {
        let memory = &mut self.racks[rack].memory;
        let record = Record::from_words(&memory.records[slot]).ok().flatten();
        memory.records[slot] = words;
        // A vacated frame may be used by another swap.
        let under_way = |(frame, page): (Option<FrameId>, PageId)| {
            let word = memory.word(frame?).filter(|word| word.page() == page)?;
            let over = matches!(word.state(), Some(PageState::Free | PageState::Live));
            frame.filter(|_| !over)
        };
        let sides = record.iter().flat_map(|record| {
            [(record.out_frame, record.out.page), (record.in_frame, record.incoming.page)]
        });
        let frames = sides.filter_map(under_way).collect();
        let pages = record.iter().flat_map(|one| [one.out, one.incoming, one.vacant]);
        let pages = pages.map(|life| life.page).collect();
        self.racks[rack].damages.push(Damage { slot, words, frames, pages });
        self.seen.damaged += 1;
    }

    pub(crate) fn damage_reported(&mut self, rack: usize, slot: usize, error: SwapRecordError) {
        let node = &mut self.racks[rack];
        if let Some(daemon) = &mut node.daemon {
            daemon.reported[slot] = true;
        }
        if !node.damages.iter().any(|damage| damage.slot == slot) {
            self.breaks(|| format!("record {slot} of rack {rack}: {error}"));
        }
    }

    /// Checks that a daemon does not write its damaged record.
    pub(crate) fn check_record(&mut self, rack: usize, slot: usize) {
        if self.racks[rack].damages.iter().any(|damage| damage.slot == slot) {
            self.breaks(|| format!("rack {rack} writes over its damaged record {slot}"));
        }
    }

    /// Returns true if the frame belongs to a swap whose record is damaged.
    pub(crate) fn is_left_alone(&self, rack: usize, frame: FrameId) -> bool {
        self.racks[rack].damages.iter().any(|damage| damage.frames.contains(&frame))
    }

    /// Returns true if no rack can serve the page until an operator has repaired a damaged record.
    pub(crate) fn is_stuck(&self, page: PageId) -> bool {
        let mut damages = self.racks.iter().flat_map(|rack| &rack.damages);
        let named = damages.any(|damage| damage.pages.contains(&page));
        let damaged = self.racks.iter().filter(|rack| !rack.damages.is_empty());
        let is_in = |state, rack: &RackNode<B>| {
            let mut all = rack.memory.all();
            all.any(|found| found.word.page() == page && found.word.state() == Some(state))
        };
        let whole = |state| self.racks.iter().any(|rack| is_in(state, rack));
        let leaving = damaged.into_iter().any(|rack| is_in(PageState::Leaving, rack));
        (named || leaving || self.is_left_vacant(page))
            && !whole(PageState::Free)
            && !whole(PageState::Live)
    }

    /// Returns true if a page that has arrived stays unwritable until an operator has repaired a
    /// damaged record: its old home can't tell whether it has quiesced the page.
    pub(crate) fn is_left_waiting(&self, rack: usize, page: PageId) -> bool {
        let Some(daemon) = &self.racks[rack].daemon else { return false };
        let mut waits = daemon.machine.swap().waits();
        waits.any(|one| one.comes == Some(page) && self.is_damaged(usize::from(one.peer.0)))
    }

    /// Returns true if a page that goes stays in this rack because its new home has a damaged
    /// record and can't tell whether its copy is complete.
    pub(crate) fn is_left_behind(&self, rack: usize, page: PageId) -> bool {
        let Some(daemon) = &self.racks[rack].daemon else { return false };
        let mut waits = daemon.machine.swap().waits();
        waits.any(|one| one.goes == Some(page) && self.is_damaged(usize::from(one.peer.0)))
    }

    /// Returns true if a free page waits for the frame of such a page.
    fn is_left_vacant(&self, page: PageId) -> bool {
        self.racks.iter().filter_map(|rack| rack.daemon.as_ref()).any(|daemon| {
            let mut waits = daemon.machine.swap().waits();
            waits.any(|one| one.vacant == Some(page) && self.is_damaged(usize::from(one.peer.0)))
        })
    }

    /// The number of swaps of a rack that are under way only for such pages.
    pub(crate) fn left_waiting(&self, rack: usize) -> usize {
        let Some(daemon) = &self.racks[rack].daemon else { return 0 };
        let stands = |one: &Waits| {
            let waits = one.comes.is_some() || one.goes.is_some();
            waits && self.is_damaged(usize::from(one.peer.0))
        };
        daemon.machine.swap().waits().filter(stands).count()
    }

    pub(crate) fn is_damaged(&self, rack: usize) -> bool {
        !self.racks[rack].damages.is_empty()
    }

    pub(crate) fn check_damage(&self) -> Result<(), String> {
        for (index, rack) in self.racks.iter().enumerate() {
            for Damage { slot, words, .. } in &rack.damages {
                if rack.memory.records[*slot] != *words {
                    return Err(format!("the damaged record {slot} of rack {index} has changed"));
                }
                if !rack.daemon.as_ref().is_some_and(|daemon| daemon.reported[*slot]) {
                    return Err(format!(
                        "nobody reports the damaged record {slot} of rack {index}"
                    ));
                }
            }
        }
        Ok(())
    }
}
