use rackpool_model::{Epoch, FrameId, PageId, RackId};
use rackpool_wire::swap::{PageLife, SwapId};

/// The length of a record in 64-bit words.
pub const RECORD_WORDS: usize = 8;

/// The number of records of a rack: the first half for swaps that it requests, the second for those
/// that it serves.
pub const RECORDS: usize = 8;

const NO_FRAME: u32 = u32::MAX;

/// The mark in word 6.
const STALE: u64 = 1;

/// The phase of a swap, as a restarted daemon finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// This rack may abort the swap; the out page is frozen, the in frame arriving. `Copied` or
    /// `Commit` leads to `InDoubt`, a deadline or `Aborted` to `GivenUp`. After a crash the swap is
    /// given up.
    Open = 1,
    /// Only the metadata server decides. The decision leads to `Committed` or `GivenUp`. After a
    /// crash the daemon asks for the outcome.
    InDoubt = 2,
    /// Both pages have moved; the page words follow. The record is erased when both frames are
    /// done. After a crash the daemon continues from the words and marks.
    Committed = 3,
    /// No page moves; the page words go back. The record is erased when both frames are done. After
    /// a crash the daemon repeats the same steps.
    GivenUp = 4,
}

/// A rack's side of a swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// The rack that requested the hot page.
    Requester = 1,
    /// The home of the hot page.
    Home = 2,
}

/// A swap under way as recorded in the rack metadata; docs/design/swap.md has the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its phase.
    pub phase: Phase,
    /// This rack's side.
    pub role: Role,
    /// The other rack.
    pub peer: RackId,
    /// The swap.
    pub swap: SwapId,
    /// The page that goes, with its epoch here.
    pub out: PageLife,
    /// The page that comes, with its epoch at its old home.
    pub incoming: PageLife,
    /// The page id and epoch that the in frame gets back if the swap is given up, and that the out
    /// frame gets if it is committed.
    pub vacant: PageLife,
    /// The frame of `out`; `None` if a free page is offered.
    pub out_frame: Option<FrameId>,
    /// The frame for `incoming`; `None` if the page that comes is free.
    pub in_frame: Option<FrameId>,
    /// Mark *incomplete*: the copy of `incoming` may lack writes of its old home.
    pub stale: bool,
}

/// The words are not a valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("word {word} of a swap record says {value:#x}, which no swap does")]
pub struct SwapRecordError {
    /// The index of the invalid word.
    pub word: usize,
    /// Its value.
    pub value: u64,
}

impl Record {
    /// Encodes the record. The shell must store word 0 last.
    #[must_use]
    pub fn to_words(&self) -> [u64; RECORD_WORDS] {
        let head = self.phase as u64 | (self.role as u64) << 8 | u64::from(self.peer.0) << 16;
        let life = |life: PageLife| u64::from(life.page.0) | u64::from(life.epoch.raw()) << 32;
        let frame = |frame: Option<FrameId>| u64::from(frame.map_or(NO_FRAME, |frame| frame.0));
        let frames = frame(self.out_frame) | frame(self.in_frame) << 32;
        let lives = [life(self.out), life(self.incoming), life(self.vacant)];
        let mark = if self.stale { STALE } else { 0 };
        [head, self.swap.0, lives[0], lives[1], lives[2], frames, mark, 0]
    }

    /// Decodes a record; `None` if it is erased.
    ///
    /// # Errors
    /// When the words can't have been written by [`Self::to_words`].
    pub fn from_words(words: &[u64; RECORD_WORDS]) -> Result<Option<Self>, SwapRecordError> {
        let wrong = |word: usize| SwapRecordError { word, value: words[word] };
        if words[0] == 0 {
            return Ok(None);
        }
        let [phase, role, peer @ .., _, _, _, _] = words[0].to_le_bytes();
        let phase = match phase {
            1 => Phase::Open,
            2 => Phase::InDoubt,
            3 => Phase::Committed,
            4 => Phase::GivenUp,
            _ => return Err(wrong(0)),
        };
        let role = match role {
            1 => Role::Requester,
            2 => Role::Home,
            _ => return Err(wrong(0)),
        };
        let life = |word: usize| {
            let (page, epoch) = halves(words[word]);
            let life = PageLife { page: PageId(page), epoch: Epoch::new(epoch) };
            if page == 0 || epoch != life.epoch.raw() { Err(wrong(word)) } else { Ok(life) }
        };
        let (out, incoming) = halves(words[5]);
        let frame = |frame: u32| (frame != NO_FRAME).then_some(FrameId(frame));
        let record = Self {
            phase,
            role,
            peer: RackId(u16::from_le_bytes(peer)),
            swap: SwapId(words[1]),
            out: life(2)?,
            incoming: life(3)?,
            vacant: life(4)?,
            out_frame: frame(out),
            in_frame: frame(incoming),
            stale: words[6] & STALE != 0,
        };
        if out == incoming {
            return Err(wrong(5));
        }
        if record.stale && record.in_frame.is_none() {
            return Err(wrong(6));
        }
        match (0..RECORD_WORDS).find(|word| record.to_words()[*word] != words[*word]) {
            Some(word) => Err(wrong(word)),
            None => Ok(Some(record)),
        }
    }

    /// Returns true if `page` is one of the swap's pages.
    #[must_use]
    pub fn concerns(&self, page: PageId) -> bool {
        [self.out.page, self.incoming.page, self.vacant.page].contains(&page)
    }
}

/// Returns true if the page id and epoch are valid; the peer may send anything.
pub(super) fn is_possible(life: PageLife) -> bool {
    life.page.0 != 0 && life.epoch == Epoch::new(life.epoch.raw())
}

fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let life = |page, epoch| PageLife { page: PageId(page), epoch: Epoch::new(epoch) };
        Record {
            phase: Phase::InDoubt,
            role: Role::Home,
            peer: RackId(0x0304),
            swap: SwapId(7 << 32 | 9),
            out: life(5, 1),
            incoming: life(6, 0x00ff_ffff),
            vacant: life(7, 0),
            out_frame: Some(FrameId(0)),
            in_frame: Some(FrameId(1)),
            stale: true,
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_design() {
        let words = record().to_words();
        assert_eq!(words[0].to_le_bytes(), [2, 2, 4, 3, 0, 0, 0, 0]);
        assert_eq!(words[2..6], [5 | 1 << 32, 6 | 0x00ff_ffff << 32, 7, 1 << 32]);
        assert_eq!(words[6..], [1, 0]);
        assert_eq!(Record::from_words(&words), Ok(Some(record())));
        assert_eq!(Record::from_words(&[0, 1, 2, 3, 4, 5, 6, 7]), Ok(None));
    }

    #[test]
    fn what_no_swap_says_is_refused() {
        for (word, value) in [
            (0, 5),
            (0, 0x0301),
            (0, 0x0001_0000_0304_0101),
            (2, 0),
            (3, 1 << 56 | 6),
            (5, 1 | 1 << 32),
            (6, 2),
            (7, 1),
        ] {
            let mut words = record().to_words();
            words[word] = value;
            assert_eq!(Record::from_words(&words), Err(SwapRecordError { word, value }));
        }
        let mut words = record().to_words();
        words[5] = u64::from(NO_FRAME) << 32;
        let lacks_frame = Err(SwapRecordError { word: 6, value: STALE });
        assert_eq!(Record::from_words(&words), lacks_frame, "no frame, so no copy");
    }
}
