use std::ops::Range;

use rackpool_client::{GlobalAddr, ReadRequest};

use crate::entries::verify::SlotCheck;
use crate::entry::{Form, ValueKind};
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::{BUCKET_BYTES, BUCKET_SLOTS, PATH_BUCKETS, slot_addr, word_at};
use crate::layout::hash::KeyHash;
use crate::layout::segment::{SegmentHeader, SegmentRef};
use crate::layout::slot::{SlotKind, SlotWord};
use crate::memory::Memory;
use crate::memory::words::read_word;
use crate::segments::reshape::PathState;

/// What the caller is going to do with the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupIntent {
    /// Read only: the slot may be frozen.
    Read,
    /// Change the slot: it was not frozen when it was read.
    Write,
    /// As `Write`, but also find a slot with a damaged or lost object that may be this key's.
    Replace,
}

/// The live slot of a key.
#[derive(Debug)]
pub(crate) struct LiveSlot {
    pub(crate) at: GlobalAddr,
    pub(crate) word: SlotWord,
    /// The position of the value in the handle's scratch buffer.
    pub(crate) value: Range<usize>,
    pub(crate) form: Form,
    /// The lot of the object, which distinguishes versions of the entry.
    pub(crate) lot: u32,
    /// Whether the entry can't be read. It may be the key's.
    pub(crate) is_damaged: bool,
}

impl LiveSlot {
    /// A slot whose entry can't be read.
    pub(crate) fn damaged(at: GlobalAddr, word: SlotWord) -> Self {
        Self { at, word, value: 0..0, form: Form::default(), lot: 0, is_damaged: true }
    }
}

/// The first empty slot of a key's path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vacancy {
    pub(crate) at: GlobalAddr,
    pub(crate) word: SlotWord,
}

/// The slot of a key, or the fact that the key was absent at some point during the search.
#[derive(Debug)]
pub(crate) enum Located {
    Live(LiveSlot),
    Absent(Miss),
}

/// The result of a search for an absent key.
#[derive(Debug)]
pub(crate) struct Miss {
    pub(crate) segment: SegmentRef,
    /// `None` if all slots of the key's path are in use.
    pub(crate) vacancy: Option<Vacancy>,
    /// Whether a slot of the path is dead.
    pub(crate) dead: bool,
    frozen: bool,
}

impl Miss {
    /// The result for a reader if the key's lock stands for no entry.
    pub(crate) const LOCKED: Self =
        Self { segment: SegmentRef::NONE, vacancy: None, dead: false, frozen: false };
}

/// The result of one search of a path.
enum PathProbe {
    Live(LiveSlot),
    Absent(Miss),
    /// A slot changed during the search: repeat it.
    Changed,
    /// The segment's memory has been reused in another life.
    Stale,
    /// This slot, which may be the key's, points to bytes that are no object, or to memory that is
    /// lost.
    Damaged {
        slot: LiveSlot,
        is_lost: bool,
    },
}

/// After this number of attempts undecodable bytes are damage and not a race.
const MAX_DAMAGED: u32 = 64;
/// No key changes this often during one search. Only damaged conditions that refer to each other
/// cause it.
pub(crate) const MAX_CHANGED: u32 = 1 << 16;

impl<M: Memory> Handle<M> {
    /// Finds `key`; the value is then in the scratch buffer. If a transaction has locked the key,
    /// the result is the entry that the lock stands for.
    #[inline]
    pub(crate) fn locate(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        intent: LookupIntent,
    ) -> Result<Located, KvError<M::Error>> {
        if let Some(uses) = &self.recent_use {
            uses.note(hash);
        }
        match self.locate_raw(hash, key, intent)? {
            Located::Live(slot) if slot.form.kind == ValueKind::LOCK => {
                self.look_through(slot, hash, key, intent)
            }
            located => Ok(located),
        }
    }

    /// Finds the entry in the slot of `key`, even if it is a lock, and reads it into the scratch
    /// buffer.
    #[inline]
    pub(crate) fn locate_raw(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        intent: LookupIntent,
    ) -> Result<Located, KvError<M::Error>> {
        let (mut damaged, mut changed) = (0, 0);
        loop {
            let segment = self.segment(hash)?;
            let (frozen, located) = match self.probe(segment, hash, key)? {
                PathProbe::Live(slot) => (slot.word.is_frozen(), Located::Live(slot)),
                PathProbe::Absent(miss) => (miss.frozen, Located::Absent(miss)),
                PathProbe::Changed => {
                    changed += 1;
                    if changed > MAX_CHANGED {
                        return Err(KvError::Corrupt { what: "entry", addr: segment.addr() });
                    }
                    continue;
                }
                PathProbe::Stale => {
                    self.refresh(hash, segment)?;
                    continue;
                }
                PathProbe::Damaged { slot, is_lost } => {
                    damaged += 1;
                    let may_be_race = damaged <= MAX_DAMAGED && !is_lost;
                    if !self.confirm(hash, segment)? || may_be_race {
                        continue;
                    }
                    if intent != LookupIntent::Replace {
                        return Err(self.damage_at(slot.word.object().addr));
                    }
                    (slot.word.is_frozen(), Located::Live(slot))
                }
            };
            if !frozen {
                return Ok(located);
            }
            match intent {
                LookupIntent::Read if self.confirm(hash, segment)? => return Ok(located),
                LookupIntent::Read => {}
                LookupIntent::Write | LookupIntent::Replace => self.reshape(segment, hash)?,
            }
        }
    }

    /// Searches the key's path up to the first empty slot.
    fn probe(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<PathProbe, KvError<M::Error>> {
        let path = self.shared.layout.shape.path(hash);
        let near = self.shared.memory.is_near(segment.addr());
        let mut lines = [[0; BUCKET_BYTES]; PATH_BUCKETS];
        if !near {
            self.read_path(segment, path.buckets(), &mut lines)?;
        }
        let (mut dead, mut frozen, mut damaged) = (false, false, None);
        for (bucket, line) in path.buckets().iter().zip(&mut lines) {
            let first = *bucket as usize * BUCKET_SLOTS;
            if near {
                let addr = slot_addr(segment.addr(), first);
                self.shared.memory.read(addr, line).map_err(KvError::Memory)?;
            }
            for index in 0..BUCKET_SLOTS {
                let word = SlotWord::from_raw(word_at(line, index));
                let at = slot_addr(segment.addr(), first + index);
                frozen |= word.is_frozen();
                if word.may_hold(hash) {
                    match self.verify(at, word, segment, hash, key)? {
                        SlotCheck::Same(slot) => return Ok(PathProbe::Live(slot)),
                        SlotCheck::OtherKey(now) => frozen |= now.is_frozen(),
                        SlotCheck::Changed => return Ok(PathProbe::Changed),
                        SlotCheck::Stale => return Ok(PathProbe::Stale),
                        // The key may be in a later slot.
                        check @ (SlotCheck::Damaged | SlotCheck::Lost) => {
                            let is_lost = matches!(check, SlotCheck::Lost);
                            damaged.get_or_insert((LiveSlot::damaged(at, word), is_lost));
                        }
                    }
                    continue;
                }
                match word.kind() {
                    SlotKind::Live => {}
                    SlotKind::Dead => dead = true,
                    SlotKind::Empty(life) if life == segment.life() => {
                        if let Some((slot, is_lost)) = damaged {
                            return Ok(PathProbe::Damaged { slot, is_lost });
                        }
                        let vacancy = Some(Vacancy { at, word });
                        return Ok(PathProbe::Absent(Miss { segment, vacancy, dead, frozen }));
                    }
                    SlotKind::Empty(_) => return Ok(PathProbe::Stale),
                }
            }
        }
        // No empty slot has shown the segment's life; the tag does.
        let tag = read_word(&self.shared.memory, SegmentHeader::tag_addr(segment.addr()))?;
        if tag != segment.tag(hash) {
            return Ok(PathProbe::Stale);
        }
        if let Some((slot, is_lost)) = damaged {
            return Ok(PathProbe::Damaged { slot, is_lost });
        }
        Ok(PathProbe::Absent(Miss { segment, vacancy: None, dead, frozen }))
    }

    /// The error of an access to a damaged entry: that of its memory, if it is lost.
    #[cold]
    pub(crate) fn damage_at(&self, addr: GlobalAddr) -> KvError<M::Error> {
        let lost = self.shared.memory.read(addr, &mut [0; 8]).err();
        lost.map_or(KvError::Corrupt { what: "entry", addr }, KvError::Memory)
    }

    /// Reads all buckets of a path in one batch.
    fn read_path(
        &self,
        segment: SegmentRef,
        buckets: &[u32],
        lines: &mut [[u8; BUCKET_BYTES]; PATH_BUCKETS],
    ) -> Result<(), KvError<M::Error>> {
        let [a, b, c, d] = lines;
        let read = |index: usize, into| {
            let bucket = buckets.get(index).copied().unwrap_or_default() as usize;
            ReadRequest { addr: slot_addr(segment.addr(), bucket * BUCKET_SLOTS), into }
        };
        let mut reads = [read(0, &mut a[..]), read(1, b), read(2, c), read(3, d)];
        self.shared.memory.read_batch(&mut reads[..buckets.len()]).map_err(KvError::Memory)
    }

    /// Replaces the segment of a search that found no empty slot in the path of `hash`.
    pub(crate) fn make_room(
        &mut self,
        miss: &Miss,
        hash: KeyHash,
    ) -> Result<(), KvError<M::Error>> {
        let max_depth = self.shared.layout.max_depth;
        if miss.segment.depth() == max_depth && !miss.dead {
            return Err(KvError::TableFull { max_depth });
        }
        let path = if miss.dead { PathState::HasDead } else { PathState::Live };
        self.reshape_for(path, miss.segment, hash)
    }
}
