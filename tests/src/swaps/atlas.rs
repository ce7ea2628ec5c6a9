//! The page in each frame, and the progress of swaps, read from the metadata of the running racks.

use std::sync::atomic::Ordering;

use rackpool_client::{PageSize, RackId};
use rackpool_model::{FrameId, PageWord};
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::metadata::{MetadataLayout, RackMetadata, SWAP_RECORDS};
use rackpool_shm::{Mapping, file};

use super::frames::Frames;
use crate::pool::TestPool;

/// The phase of a swap's record; the numbers are those of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// The swap may still be aborted.
    Open = 1,
    /// Only the metadata server can tell whether the swap is committed.
    InDoubt = 2,
    /// Committed; words and frames are being switched.
    Committed = 3,
    /// Aborted; both pages are being restored to their old places.
    GivenUp = 4,
}

/// All phases.
pub const PHASES: [Phase; 4] = [Phase::Open, Phase::InDoubt, Phase::Committed, Phase::GivenUp];

/// A rack's part in a swap, from its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The phase of the swap.
    pub phase: Phase,
    /// True if the rack requested the swap; false if it serves it.
    pub asked: bool,
}

/// The metadata of all racks.
#[derive(Debug)]
pub struct Atlas {
    racks: Vec<(RackMetadata, u32)>,
}

impl Atlas {
    /// Maps the metadata of a pool; all its racks must exist.
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

    /// The rack's parts in the swaps of which it has a record. Records with an unknown phase are
    /// left out; [`Self::has_records`] counts them.
    pub fn parts(&self, rack: u16) -> impl Iterator<Item = Part> {
        self.phases(rack).filter_map(|(phase, asked)| {
            let phase = PHASES.into_iter().find(|known| *known as u64 == phase)?;
            Some(Part { phase, asked })
        })
    }

    /// The phase byte of each record, and whether the record is of a swap that the rack requested.
    fn phases(&self, rack: u16) -> impl Iterator<Item = (u64, bool)> {
        let (metadata, _) = &self.racks[usize::from(rack)];
        let records = metadata.swaps().expect("a whole file");
        records.iter().enumerate().map(|(slot, record)| {
            let phase = record.words[0].load(Ordering::Acquire) & 0xff;
            (phase, slot < SWAP_RECORDS / 2)
        })
    }

    /// Returns true if a swap of the rack is in this phase now.
    #[must_use]
    pub fn is_in(&self, rack: u16, part: Part) -> bool {
        self.parts(rack).any(|found| found == part)
    }

    /// Returns true if any rack has a record of a swap, also one with an unknown phase.
    #[must_use]
    pub fn has_records(&self) -> bool {
        (0..self.racks.len()).any(|rack| {
            let rack = u16::try_from(rack).expect("few racks");
            self.phases(rack).any(|(phase, _)| phase != 0)
        })
    }

    /// All frames, read one after the other: a consistent snapshot only if no page moves.
    #[must_use]
    pub fn frames(&self) -> Frames {
        let all = (0_u16..).zip(&self.racks).flat_map(|(rack, (metadata, frames))| {
            (0..*frames).map(FrameId).map(move |frame| {
                let word = metadata.word(frame).expect("a frame").load(Ordering::Acquire);
                (rack, frame, PageWord::from_raw(word))
            })
        });
        Frames::new(all.collect())
    }

    /// All frames while no page moves; `None` while one moves.
    #[must_use]
    pub fn frames_at_rest(&self) -> Option<Frames> {
        let rests = |frames: &Frames| !self.has_records() && frames.are_at_rest();
        let before = self.frames();
        let now = Some(self.frames()).filter(|_| rests(&before));
        now.filter(|now| *now == before && rests(now))
    }
}
