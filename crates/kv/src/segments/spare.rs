use rackpool_client::{GlobalAddr, PublishCas, PublishMode};

use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::{slots_in, word_at};
use crate::layout::header::TableHeader;
use crate::layout::life::SegmentLife;
use crate::layout::segment::{SegmentHeader, SegmentRef};
use crate::layout::slot::SlotWord;
use crate::layout::spare_block::{SparePlace, SpareSegments};
use crate::memory::words::read_word;
use crate::memory::{Memory, ReservedObject};

/// The segments of a table. None is returned to the pool while the table exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Segments in the directory, which have entries.
    pub current: u64,
    /// Segments outside the directory that are not borrowed.
    pub spare: u64,
    /// Spare segments that cannot be reused yet, since the deletion of one of their keys is
    /// unresolved.
    pub marked: u64,
    /// Segments that clients have borrowed.
    pub taken: u64,
}

/// A borrowed spare segment: its reservation, its last life, and the slots of that life.
pub(crate) struct BorrowedSegment<D> {
    pub(crate) reservation: D,
    pub(crate) life: SegmentLife,
    pub(crate) slots: Vec<SlotWord>,
}

/// A segment that is not in the directory any more.
struct Retired {
    /// Its last life.
    life: SegmentLife,
    slots: Vec<SlotWord>,
}

impl<M: Memory> Handle<M> {
    /// The most attempts. If that number of new segments was added and none could be borrowed, the
    /// list is damaged.
    const MAX_TRIES: u32 = 64;

    /// Borrows a spare segment; adds a new one if there is none. Segments that cannot be read stay
    /// where they are.
    pub(crate) fn take_segment(
        &mut self,
    ) -> Result<BorrowedSegment<M::Reservation>, KvError<M::Error>> {
        let mut tries = 0;
        loop {
            let mut vacancy = None;
            let mut failed = None;
            let mut last = TableHeader::spare_segments_addr(self.shared.layout.addr);
            for block in self.spare_segments()? {
                last = block.addr;
                for (at, place) in block.places() {
                    match place {
                        Some(SparePlace::Empty) => vacancy = vacancy.or(Some(at)),
                        Some(SparePlace::Taken) | None => {}
                        Some(SparePlace::Segment(segment)) => match self.take_from(at, segment) {
                            Ok(Some(taken)) => return Ok(taken),
                            Ok(None) => {}
                            Err(error @ (KvError::Memory(_) | KvError::Corrupt { .. })) => {
                                failed = Some(error);
                            }
                            Err(error) => return Err(error),
                        },
                    }
                }
            }
            tries += 1;
            if tries > Self::MAX_TRIES
                && let Some(error) = failed
            {
                return Err(error);
            }
            match vacancy {
                Some(place) => self.stock(place)?,
                None => self.lengthen_spare_segments(last)?,
            }
        }
    }

    /// Counts the segments. If other clients use the table, one may be missed or counted twice.
    ///
    /// # Errors
    /// As [`Handle::scan`].
    pub fn segments(&mut self) -> Result<SegmentCounts, KvError<M::Error>> {
        let mut segments = SegmentCounts::default();
        let mut at = 0;
        while let Some(hash) = self.suffix_at(at) {
            at += self.resolve(hash).map(|segment| self.suffixes_of(segment))?;
            segments.current += 1;
        }
        for block in self.spare_segments()? {
            for (_, place) in block.places() {
                match place {
                    Some(SparePlace::Segment(addr)) => {
                        segments.spare += 1;
                        let Retired { slots, .. } = self.read_retired(addr)?;
                        segments.marked += u64::from(slots.iter().any(|slot| slot.is_marked()));
                    }
                    Some(SparePlace::Taken) => segments.taken += 1,
                    Some(SparePlace::Empty) | None => {}
                }
            }
        }
        Ok(segments)
    }

    /// Reads all blocks of spare segments.
    pub(crate) fn spare_segments(&self) -> Result<Vec<SpareSegments>, KvError<M::Error>> {
        let mut blocks = Vec::with_capacity(1);
        let mut addr = TableHeader::spare_segments_addr(self.shared.layout.addr);
        while blocks.len() < SpareSegments::MAX_BLOCKS {
            let mut bytes = [0; SpareSegments::BYTES];
            self.shared.memory.read(addr, &mut bytes).map_err(KvError::Memory)?;
            blocks.push(SpareSegments { addr, bytes });
            match word_at(&bytes, SpareSegments::NEXT) {
                0 => return Ok(blocks),
                next => addr = GlobalAddr::from_raw(next),
            }
        }
        Err(KvError::Corrupt { what: "spare segments", addr })
    }

    /// Borrows `segment` from its place. `None` if another client borrowed it, or if it has a mark:
    /// its slots are the evidence of an unresolved deletion (I6).
    fn take_from(
        &mut self,
        place: GlobalAddr,
        segment: GlobalAddr,
    ) -> Result<Option<BorrowedSegment<M::Reservation>>, KvError<M::Error>> {
        let owner = read_word(&self.shared.memory, SegmentHeader::owner_addr(segment))?;
        if owner != 0 {
            // The segment is still in its place after its owner word was read. So the reservation
            // that published it no longer needs the word.
            if read_word(&self.shared.memory, place)? != segment.raw() {
                return Ok(None);
            }
            self.clear_owner(SegmentHeader::owner_addr(segment), owner)?;
        }
        let taken = self.shared.memory.take(place, segment).map_err(KvError::Memory)?;
        let Some(reservation) = taken else { return Ok(None) };
        match self.read_retired(segment) {
            Ok(Retired { life, slots }) if !slots.iter().any(|slot| slot.is_marked()) => {
                Ok(Some(BorrowedSegment { reservation, life, slots }))
            }
            Ok(_) => {
                self.finish(reservation);
                Ok(None)
            }
            Err(error) => {
                self.finish(reservation);
                Err(error)
            }
        }
    }

    /// Reads a spare segment.
    fn read_retired(&self, segment: GlobalAddr) -> Result<Retired, KvError<M::Error>> {
        let mut bytes = vec![0; SegmentHeader::BYTES + self.shared.layout.shape.slots() * 8];
        self.shared.memory.read(segment, &mut bytes).map_err(KvError::Memory)?;
        let (header, slots) = bytes.split_at(SegmentHeader::BYTES);
        let life = SegmentHeader::life_in(SegmentHeader::tag_in(header));
        let life = life.ok_or(KvError::Corrupt { what: "retired segment", addr: segment })?;
        Ok(Retired { life, slots: slots_in(slots).collect() })
    }

    /// Publishes newly allocated segment memory into an empty place.
    fn stock(&mut self, place: GlobalAddr) -> Result<(), KvError<M::Error>> {
        let shape = self.shared.layout.shape;
        let reservation = self.shared.memory.reserve(shape.bytes()).map_err(KvError::Memory)?;
        let addr = reservation.addr();
        if SegmentRef::new(addr, 0, SegmentLife::FIRST).is_none() {
            self.finish(reservation);
            return Err(KvError::Address { addr });
        }
        let tag = SegmentHeader::tag(SegmentLife::NONE, 0, 0);
        let mut bytes = SegmentHeader::bytes(tag, SegmentRef::NONE, reservation.token()).to_vec();
        bytes.resize(SegmentHeader::BYTES + shape.slots() * 8, 0);
        self.add_spare_segment(reservation, place, &bytes)
    }

    /// Appends a block behind `last`.
    fn lengthen_spare_segments(&mut self, last: GlobalAddr) -> Result<(), KvError<M::Error>> {
        let bytes = SpareSegments::BYTES as u64;
        let reservation = self.shared.memory.reserve(bytes).map_err(KvError::Memory)?;
        let mut block = [0; SpareSegments::BYTES];
        block[..8].copy_from_slice(&reservation.token().to_le_bytes());
        self.add_spare_segment(
            reservation,
            SpareSegments::word_addr(last, SpareSegments::NEXT),
            &block,
        )
    }

    /// Writes a reservation and publishes it into a word of a block, if that word is still 0.
    fn add_spare_segment(
        &mut self,
        mut reservation: M::Reservation,
        at: GlobalAddr,
        bytes: &[u8],
    ) -> Result<(), KvError<M::Error>> {
        let new = reservation.addr().raw();
        let link = PublishCas {
            addr: at,
            expected: 0,
            new,
            mask: u64::MAX,
            replaced: None,
            mode: PublishMode::Plain,
        };
        let written = self.shared.memory.write(reservation.addr(), bytes).map_err(KvError::Memory);
        let published = written.and_then(|()| self.publish_once(&mut reservation, &link));
        self.finish(reservation);
        published.map(drop)
    }
}
