//! Which page lies in which frame, and how far swaps are: read from the racks' own metadata, as
//! it stands at any moment.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use rackpool_client::{PageSize, RackId};
use rackpool_model::{FrameId, PageId, PageState, PageWord};
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::metadata::{MetadataLayout, RackMetadata, SWAP_RECORDS};
use rackpool_shm::{Mapping, file};

use crate::pool::TestPool;

/// How far a swap's record is; the numbers are the record's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// It may still be given up.
    Open = 1,
    /// The metadata server decides.
    InDoubt = 2,
    /// Words and frames are being switched.
    Committed = 3,
    /// Everything goes back to where it was.
    GivenUp = 4,
}

/// All phases.
pub const PHASES: [Phase; 4] = [Phase::Open, Phase::InDoubt, Phase::Committed, Phase::GivenUp];

/// The metadata of all racks.
#[derive(Debug)]
pub struct Atlas {
    racks: Vec<(RackMetadata, u32)>,
}

/// Whether the frame is the home of a page that is in use.
const fn is_used(word: PageWord) -> bool {
    matches!(word.state(), Some(PageState::Live | PageState::Shared))
}

impl Atlas {
    /// Maps the metadata of a pool whose racks are all there.
    #[must_use]
    pub fn of(pool: &TestPool) -> Self {
        let options = pool.cluster.options();
        let page_size = PageSize::from_bytes(options.page_size).expect("a page size");
        let frames = u32::try_from(options.memory / options.page_size).expect("a small rack");
        let layout = MetadataLayout::new(page_size, frames);
        let rack = |rack| {
            let path = RackDirectory::new(pool.dir(), RackId(rack)).metadata();
            let found = file::open(&path).expect("a readable file").expect("the rack's metadata");
            let mapping = Mapping::new(&found, layout.bytes()).expect("a mapping");
            (RackMetadata::new(mapping, layout).expect("a whole file"), frames)
        };
        Self { racks: (0..options.racks).map(rack).collect() }
    }

    /// Whether a swap of the rack is in this phase now: one that it asked for, or one that it serves.
    #[must_use]
    pub fn is_in(&self, rack: u16, phase: Phase, asked: bool) -> bool {
        let (metadata, _) = &self.racks[usize::from(rack)];
        let records = metadata.swaps().expect("a whole file");
        let (first, second) = records.split_at(SWAP_RECORDS / 2);
        let records = if asked { first } else { second };
        records.iter().any(|record| record.words[0].load(Ordering::Acquire) & 0xff == phase as u64)
    }

    fn words(&self) -> impl Iterator<Item = (u16, FrameId, PageWord)> {
        (0_u16..).zip(&self.racks).flat_map(|(rack, (metadata, frames))| {
            (0..*frames).map(FrameId).map(move |frame| {
                let word = metadata.word(frame).expect("a frame").load(Ordering::Acquire);
                (rack, frame, PageWord::from_raw(word))
            })
        })
    }

    /// Whether no swap is under way and no page on its way out. One that is shared stays so until
    /// somebody writes it.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let racks = 0..u16::try_from(self.racks.len()).expect("few racks");
        let swaps = racks.flat_map(|rack| {
            PHASES.iter().flat_map(move |phase| [(rack, phase, true), (rack, phase, false)])
        });
        swaps.into_iter().all(|(rack, phase, asked)| !self.is_in(rack, *phase, asked))
            && self
                .words()
                .all(|(_, _, word)| word.state() == Some(PageState::Free) || is_used(word))
    }

    /// The rack of each page that is in use.
    #[must_use]
    pub fn homes(&self) -> BTreeMap<PageId, u16> {
        let live = self.words().filter(|(_, _, word)| is_used(*word));
        live.map(|(rack, _, word)| (word.page(), rack)).collect()
    }

    /// What must never be in a pool at rest: a page in two frames, or in none.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut found = BTreeMap::<PageId, Vec<String>>::new();
        let mut frames = 0;
        for (rack, frame, word) in self.words() {
            frames += 1;
            let place = format!("{frame} of rack {rack} ({:?})", word.state());
            found.entry(word.page()).or_default().push(place);
        }
        let mut problems: Vec<String> = found
            .iter()
            .filter(|(_, places)| places.len() > 1)
            .map(|(page, places)| format!("{page} is in {}", places.join(" and in ")))
            .collect();
        if found.len() != frames {
            problems.push(format!("{frames} frames hold {} pages", found.len()));
        }
        problems
    }
}
