//! The memory of a program in a group: its words and its ring. Only the program itself writes it.

use std::sync::Arc;

use rackpool_client::{AccessError, GlobalAddr, Pin, PinnedBytesMut, PinnedWords, Pool, RackId};
use rackpool_proto::group::MOST_MEMBERS;
use rackpool_proto::group::words::{Found, GroupWords};

use super::record;
use crate::error::StoreError;
use crate::layout::head::at;

/// The bytes before the ring.
pub(super) const HEADER: u64 = HEADER_BYTES as u64;
const HEADER_BYTES: usize = 256;
/// The least memory of a program.
pub(super) const LEAST: u64 = 4 << 10;
const WORD: u64 = 8;
const WORDS: usize = 8 * GroupWords::COUNT;
/// Offset of what does not change: hash of the name, length of the object.
const FIXED: u64 = WORDS as u64;
/// Offset of the racks of the members.
const RACKS: u64 = 64;
/// Offset of their count, and of the grace time in milliseconds.
const COUNT: u64 = 96;
/// Offset of the addresses of their objects.
const SEATS: u64 = 128;

/// A word that only this program stores.
type OwnWord = PinnedWords<Arc<Pool>, 1>;

/// The offsets of the words.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    Number,
    Beat,
    Have,
    Taken,
    Members,
    Frozen,
}

/// The memory of this program.
#[derive(Debug)]
pub(super) struct OwnPlace {
    pool: Arc<Pool>,
    addr: GlobalAddr,
    /// The number of the group; 0 for none.
    group: u64,
    /// `None` once it is being freed.
    words: Option<OwnWords>,
}

#[derive(Debug)]
struct OwnWords {
    ring: PinnedBytesMut<Arc<Pool>>,
    number: OwnWord,
    beat: OwnWord,
    have: OwnWord,
    taken: OwnWord,
    members: OwnWord,
    frozen: OwnWord,
}

impl OwnPlace {
    /// Allocates memory of this length, with all words 0.
    pub(super) fn new(pool: &Arc<Pool>, bytes: u64) -> Result<Self, StoreError> {
        let addr = pool.alloc_fixed(bytes)?;
        let mut place = Self { pool: Arc::clone(pool), addr, group: 0, words: None };
        pool.write(addr, &[0; HEADER_BYTES])?;
        let ring = Pin::new(Arc::clone(pool), addr)?.map_head_mut(HEADER..bytes)?;
        let word = |word: Word| ring.words(WORD * word as u64);
        place.words = Some(OwnWords {
            number: word(Word::Number)?,
            beat: word(Word::Beat)?,
            have: word(Word::Have)?,
            taken: word(Word::Taken)?,
            members: word(Word::Members)?,
            frozen: word(Word::Frozen)?,
            ring,
        });
        Ok(place)
    }

    pub(super) const fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// The length of the memory.
    pub(super) fn bytes(&self) -> u64 {
        HEADER + self.ring().len() as u64
    }

    pub(super) fn ring(&self) -> &[u8] {
        self.words.as_ref().map_or(&[], |words| &words.ring)
    }

    pub(super) fn ring_mut(&mut self) -> &mut [u8] {
        self.words.as_mut().map_or(&mut [], |words| &mut words.ring)
    }

    /// Begins to take part in the group of this number: all values are 0. Changes nothing if this
    /// program has begun already.
    pub(super) fn begin(&mut self, number: u64) {
        if self.group == number {
            return;
        }
        self.leave();
        self.group = number;
        for word in [Word::Beat, Word::Have, Word::Taken, Word::Members, Word::Frozen] {
            self.store(word, 0);
        }
        self.store(Word::Number, number);
    }

    /// Says that this program takes part in no group any more.
    pub(super) fn leave(&self) {
        self.store(Word::Number, 0);
    }

    /// Stores a word, after all that this program has written or read into the ring.
    pub(super) fn store(&self, word: Word, value: u64) {
        let Some(words) = &self.words else { return };
        let of = match word {
            Word::Number => return words.number.store([value]),
            Word::Beat => &words.beat,
            Word::Have => &words.have,
            Word::Taken => &words.taken,
            Word::Members => &words.members,
            Word::Frozen => &words.frozen,
        };
        of.store([GroupWords::stored(value, self.group)]);
    }

    /// What stores the word `beat`, for the thread that does it.
    pub(super) fn beat(&self) -> Result<impl Fn(u64) + Send + 'static, StoreError> {
        let beat = self.words.as_ref().map(|words| words.ring.words(WORD * Word::Beat as u64));
        let (beat, group): (Option<OwnWord>, _) = (beat.transpose()?, self.group);
        Ok(move |value| {
            if let Some(beat) = &beat {
                beat.store([GroupWords::stored(value, group)]);
            }
        })
    }

    /// Writes what does not change: the hash of the group's name, the racks of the members, and the
    /// grace time in milliseconds.
    pub(super) fn write_group(
        &self,
        hash: u64,
        racks: &[RackId],
        grace_ms: u64,
    ) -> Result<(), StoreError> {
        let bytes = self.bytes().to_le_bytes();
        self.pool.write(at(self.addr, FIXED), &[hash.to_le_bytes(), bytes].concat())?;
        let count = (racks.len() as u64).to_le_bytes();
        let racks: Vec<u8> = racks.iter().flat_map(|rack| rack.0.to_le_bytes()).collect();
        self.pool.write(at(self.addr, RACKS), &racks)?;
        self.pool.write(at(self.addr, COUNT), &[count, grace_ms.to_le_bytes()].concat())?;
        Ok(())
    }

    /// Writes the addresses of the members' objects.
    pub(super) fn write_seats(&self, seats: &[GlobalAddr]) -> Result<(), StoreError> {
        let seats: Vec<u8> = seats.iter().flat_map(|seat| seat.raw().to_le_bytes()).collect();
        Ok(self.pool.write(at(self.addr, SEATS), &seats)?)
    }

    /// Reads the stream from `begin` up to `end` from another program's ring into this one.
    ///
    /// # Errors
    /// That of a read whose end is not known. Its bytes may come later: the contents of the ring
    /// are undefined from then on.
    pub(super) fn read(
        &mut self,
        from: GlobalAddr,
        number: u64,
        begin: u64,
        end: u64,
    ) -> Result<Found<()>, StoreError> {
        let Some(words) = &mut self.words else { return Ok(Found::Gone) };
        let len = words.ring.len() as u64;
        let mut position = begin;
        while position < end {
            let offset = position % len;
            let part = (end - position).min(len - offset);
            let (into, bytes) = (usize::try_from(offset), usize::try_from(part));
            let (Ok(into), Ok(bytes)) = (into, bytes) else { return Ok(Found::Gone) };
            match words.ring.read_from(into, at(from, HEADER + offset), bytes, |_| ()) {
                Ok(()) => position += part,
                Err(error @ AccessError::Daemon(_)) => return Err(error.into()),
                Err(error) => return found_after(error),
            }
        }
        let is_whole = record::is_whole(&words.ring, number, begin, end);
        Ok(if is_whole { Found::Is(()) } else { Found::Gone })
    }
}

impl Drop for OwnPlace {
    fn drop(&mut self) {
        self.leave();
        // Memory that is being written is not freed.
        drop(self.words.take());
        // The daemon takes it back when the program ends if this fails.
        let _ = self.pool.free(self.addr);
    }
}

/// What a root's object says about its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupPlace {
    /// The number of the group.
    pub(super) number: u64,
    pub(super) words: GroupWords,
    pub(super) hash: u64,
    /// The length of each program's object.
    pub(super) bytes: u64,
    pub(super) racks: Vec<RackId>,
    pub(super) grace_ms: u64,
    pub(super) seats: Vec<GlobalAddr>,
}

/// Reads what a root's object says. The memory may be any other by now.
pub(super) fn read_group(pool: &Pool, addr: GlobalAddr) -> Result<Found<GroupPlace>, StoreError> {
    let mut bytes = [0; HEADER_BYTES];
    if let Err(error) = pool.read(addr, &mut bytes) {
        return found_after(error);
    }
    Ok(decode_group(&bytes).map_or(Found::Gone, Found::Is))
}

pub(super) fn decode_group(bytes: &[u8; HEADER_BYTES]) -> Option<GroupPlace> {
    let word = |at: u64| {
        let at = usize::try_from(at).ok()?;
        bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
    };
    let count = usize::try_from(word(COUNT)?).ok().filter(|count| *count <= MOST_MEMBERS)?;
    let rack = |index: usize| {
        let at = usize::try_from(RACKS).ok()? + 2 * index;
        bytes.get(at..)?.first_chunk().copied().map(|rack| RackId(u16::from_le_bytes(rack)))
    };
    let (bytes, number) = (word(FIXED + WORD)?, word(0)?);
    let words = words_in(|index| word(WORD * index as u64))?;
    let Found::Is(words) = GroupWords::found(words, number) else { return None };
    Some(GroupPlace {
        number,
        words,
        hash: word(FIXED)?,
        bytes: Some(bytes).filter(|bytes| bytes.is_power_of_two() && *bytes >= LEAST)?,
        racks: (0..count).map(rack).collect::<Option<_>>()?,
        grace_ms: word(COUNT + WORD)?,
        seats: (0..count as u64)
            .map(|index| word(SEATS + WORD * index).map(GlobalAddr::from_raw))
            .collect::<Option<_>>()?,
    })
}

/// Reads the words of another program, if it takes part in the group of this number.
pub(super) fn read_words(
    pool: &Pool,
    addr: GlobalAddr,
    number: u64,
) -> Result<Found<GroupWords>, StoreError> {
    let mut bytes = [0; WORDS];
    if let Err(error) = pool.read(addr, &mut bytes) {
        return found_after(error);
    }
    let word =
        |index: usize| bytes.get(8 * index..)?.first_chunk().copied().map(u64::from_le_bytes);
    Ok(words_in(word).map_or(Found::Gone, |words| GroupWords::found(words, number)))
}

fn words_in(word: impl Fn(usize) -> Option<u64>) -> Option<[u64; GroupWords::COUNT]> {
    let mut words = [0; GroupWords::COUNT];
    for (index, into) in words.iter_mut().enumerate() {
        *into = word(index)?;
    }
    Some(words)
}

/// What an access that has failed says about the memory of another program.
fn found_after<T>(error: AccessError) -> Result<Found<T>, StoreError> {
    match error {
        AccessError::PageLost(_)
        | AccessError::NotAllocated(_)
        | AccessError::InvalidAddress(_)
        | AccessError::BeyondObject { .. } => Ok(Found::Gone),
        AccessError::RackUnavailable(_) | AccessError::PageBusy(..) => Ok(Found::Silent),
        error => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_group_are_none() {
        let mut bytes = [0; HEADER_BYTES];
        assert_eq!(decode_group(&bytes), None, "a length of 0");
        let mut put = |at: u64, word: u64| {
            let at = usize::try_from(at).unwrap();
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            decode_group(&bytes)
        };
        put(FIXED + WORD, LEAST);
        let number = 0x9876_5432_10fe_dcba;
        assert_eq!(put(0, number), None, "words of another program");
        for word in 1..GroupWords::COUNT as u64 {
            put(WORD * word, GroupWords::stored(0, number));
        }
        assert_eq!(put(FIXED + WORD, LEAST).unwrap().racks, []);
        let found = put(COUNT, 16).unwrap();
        assert_eq!((found.racks.len(), found.seats.len()), (MOST_MEMBERS, MOST_MEMBERS));
        assert_eq!(put(COUNT, 17), None, "17 members");
        assert_eq!(put(COUNT, u64::MAX), None);
        assert!(put(COUNT, 2).is_some());
        assert_eq!(put(FIXED + WORD, LEAST + 1), None, "no power of two");
    }
}
