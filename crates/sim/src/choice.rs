//! Which operations clients choose.

use rackpool_model::{FrameWord, PageId};
use rackpool_proto::planted_bugs::Bugs;

use crate::history::Kind;
use crate::rules::{MILLI, RACKS, USED, WORDS};
use crate::world::World;

impl<B: Bugs> World<B> {
    /// Chooses an operation. Each rack prefers some pages, which change over time.
    pub(crate) fn choose(&mut self, client: usize) -> Option<(PageId, usize, Kind)> {
        if self.rng.percent(15)
            && let Some(page) = self.allocated_page(client)
        {
            let word = self.rng.below(WORDS);
            let kind = self.kind(page, word);
            return self.history.has_room(page, word).then_some((page, word, kind));
        }
        if self.rng.percent(self.weather.roots) {
            return self.choose_root();
        }
        let pages = RACKS * USED as usize;
        let favourite =
            self.clients[client].rack + usize::try_from(self.now / (400 * MILLI)).unwrap_or(0);
        let index = match self.rng.below(10) {
            0..4 => (favourite * 2 + 1) % pages,
            4..7 => (favourite * 5 + 3) % pages,
            _ => self.rng.below(pages),
        };
        let (rack, frame) = (index % RACKS, u32::try_from(index / RACKS).ok()?);
        let page = PageId(self.racks[rack].pages?.first.0 + frame);
        let word = self.rng.below(WORDS);
        let kind = self.kind(page, word);
        self.history.has_room(page, word).then_some((page, word, kind))
    }

    fn kind(&mut self, page: PageId, word: usize) -> Kind {
        let new = self.rng.next() | 1;
        if self.rng.percent(self.weather.reads) {
            return Kind::Read;
        }
        match self.rng.below(12) + 8 {
            8..14 => Kind::Write(new),
            14..17 => Kind::FetchAndAdd(new),
            // Half of these expect the current value.
            _ if self.rng.percent(50) => Kind::CompareAndSwap { expected: 0, new },
            _ => Kind::CompareAndSwap { expected: self.peek(page, word), new },
        }
    }

    fn peek(&self, page: PageId, word: usize) -> u64 {
        let found = self.racks.iter().find_map(|rack| {
            let FrameWord { frame, .. } = rack.memory.find(page)?;
            Some(rack.memory.frames[frame.0 as usize].bytes[word])
        });
        found.unwrap_or(0)
    }
}
