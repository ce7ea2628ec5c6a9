//! The record of a file's locks.
//!
//! ```text
//! 0 turn u64 | 8 mounts u16 | 10 each: seat u16, token u64
//! then for each owner and kind: mount u16, its place among the mounts | owner u64 | pid u32
//!     | what u8 | number of ranges
//!     | for each range: gap after the range before it | its bytes; 0: to the end of all numbers
//! what: 1 of a whole file (flock) | 2 exclusive
//! ```
//!
//! Numbers without a size are of variable length, so that a program that has locked a thousand
//! records finds room.

use crate::error::FsError;
use crate::format::codec::{Reader, put_short_number};
use crate::format::file_locks::{HeldLock, LockFamily, LockMode, LockOwner, LockRange, Locks};
use crate::format::session::Session;

/// The most bytes of a record: a transaction keeps the old and the new record in one object that
/// must fit into the smallest page.
const MAX_BYTES: usize = 28 << 10;
const WHOLE: u8 = 1;
const EXCLUSIVE: u8 = 2;

/// What locks that are encoded as one group have in common. Groups are encoded in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LockGroup {
    seat: u16,
    token: u64,
    family: LockFamily,
    owner: u64,
    pid: u32,
    is_exclusive: bool,
}

impl Locks {
    /// Encodes the record; `None` if no mount has locks.
    pub(crate) fn encode(&self) -> Result<Option<Vec<u8>>, FsError> {
        if self.mounts.is_empty() {
            return Ok(None);
        }
        let mut bytes = self.turn.to_le_bytes().to_vec();
        let mounts = u16::try_from(self.mounts.len()).map_err(|_| FsError::NoLocks)?;
        bytes.extend_from_slice(&mounts.to_le_bytes());
        self.mounts.iter().for_each(|mount| mount.encode(&mut bytes));
        let mut held: Vec<&HeldLock> = self.held.iter().collect();
        held.sort_unstable_by_key(|held| (Self::group_of(held), held.range.first));
        for alike in held.chunk_by(|one, other| Self::group_of(one) == Self::group_of(other)) {
            let [first, ..] = alike else { continue };
            let place = self.mounts.iter().position(|mount| *mount == first.session);
            let place = place.and_then(|place| u16::try_from(place).ok());
            bytes.extend_from_slice(&place.ok_or(FsError::NoLocks)?.to_le_bytes());
            bytes.extend_from_slice(&first.owner.id.to_le_bytes());
            bytes.extend_from_slice(&first.pid.to_le_bytes());
            let whole = if first.owner.family == LockFamily::Whole { WHOLE } else { 0 };
            let exclusive = if first.mode == LockMode::Exclusive { EXCLUSIVE } else { 0 };
            bytes.push(whole | exclusive);
            put_short_number(&mut bytes, alike.len() as u64);
            let mut end = 0;
            for LockRange { first, last } in alike.iter().map(|held| held.range) {
                put_short_number(&mut bytes, first.saturating_sub(end));
                // A lock up to the last possible byte has no successor; its length is written as 0.
                end = last.wrapping_add(1);
                put_short_number(&mut bytes, if end == 0 { 0 } else { end - first });
            }
        }
        if bytes.len() > MAX_BYTES { Err(FsError::NoLocks) } else { Ok(Some(bytes)) }
    }

    /// The group of a lock.
    const fn group_of(held: &HeldLock) -> LockGroup {
        let HeldLock { session, owner, pid, mode, .. } = *held;
        let is_exclusive = matches!(mode, LockMode::Exclusive);
        LockGroup {
            seat: session.seat,
            token: session.token,
            family: owner.family,
            owner: owner.id,
            pid,
            is_exclusive,
        }
    }

    pub(crate) fn decode(value: Option<&[u8]>) -> Result<Self, FsError> {
        let mut locks = Self::default();
        let Some(value) = value else { return Ok(locks) };
        let mut from = Reader::new(value, "the locks of a file");
        locks.turn = from.u64()?;
        for _ in 0..from.u16()? {
            locks.mounts.push(Session::decode(&mut from)?);
        }
        while !from.is_empty() {
            let mount = locks.mounts.get(usize::from(from.u16()?));
            let session = *mount.ok_or(from.damaged())?;
            let (id, pid, what) = (from.u64()?, from.u32()?, from.u8()?);
            if what > WHOLE | EXCLUSIVE {
                return Err(from.damaged());
            }
            let whole = what & WHOLE != 0;
            let family = if whole { LockFamily::Whole } else { LockFamily::Record };
            let exclusive = what & EXCLUSIVE != 0;
            let mode = if exclusive { LockMode::Exclusive } else { LockMode::Shared };
            let owner = LockOwner { family, id };
            // In the order in which they were encoded: ranges of one owner do not overlap.
            let count = from.short_number()?;
            let like =
                HeldLock { session, owner, pid, mode, range: LockRange { first: 0, last: 0 } };
            let behind = |last: &HeldLock| Self::group_of(last) < Self::group_of(&like);
            if count == 0 || !locks.held.last().is_none_or(behind) {
                return Err(from.damaged());
            }
            // The end of the previous range; `None` after a range up to the last byte, which
            // nothing can follow.
            let mut end = Some(0_u64);
            for _ in 0..count {
                let first = end.and_then(|end| end.checked_add(from.short_number().ok()?));
                let (first, len) = (first.ok_or(from.damaged())?, from.short_number()?);
                end = first.checked_add(len).filter(|_| len > 0);
                if end.is_none() && len > 0 {
                    return Err(from.damaged());
                }
                let range = LockRange { first, last: end.map_or(u64::MAX, |end| end - 1) };
                locks.held.push(HeldLock { range, ..like });
            }
        }
        Ok(locks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(count: u64) -> Locks {
        let mounts = vec![Session { seat: 3, token: 1 << 60 }, Session { seat: 4, token: 9 }];
        let held = (0..count).map(|number| HeldLock {
            session: mounts[usize::from(number % 2 == 0)],
            owner: LockOwner {
                family: if number % 3 == 0 { LockFamily::Whole } else { LockFamily::Record },
                id: number << 50,
            },
            pid: 77,
            mode: if number % 5 == 0 { LockMode::Exclusive } else { LockMode::Shared },
            range: LockRange { first: number, last: u64::MAX - number },
        });
        Locks { turn: 1 << 40, held: held.collect(), mounts: mounts.clone() }
    }

    fn sorted(mut locks: Locks) -> Locks {
        locks.held.sort_unstable_by_key(|held| (Locks::group_of(held), held.range.first));
        locks
    }

    #[test]
    fn come_back_as_they_went_and_are_damaged_when_cut() {
        let locks = sorted(some(20));
        let bytes = locks.encode().unwrap().unwrap();
        assert_eq!(Locks::decode(Some(&bytes)).unwrap(), locks);
        let wholes = (0..=20).map(|count| {
            let held = locks.held[..count].to_vec();
            Locks { held, ..locks.clone() }.encode().unwrap().unwrap().len()
        });
        let wholes: Vec<usize> = wholes.collect();
        for len in (0..bytes.len()).filter(|len| !wholes.contains(len)) {
            let cut = Locks::decode(Some(&bytes[..len]));
            assert!(matches!(cut, Err(FsError::Damaged(_))), "{len}");
        }
        assert_eq!(Locks::decode(None).unwrap(), Locks::default());
        assert_eq!(Locks::default().encode().unwrap(), None);
    }

    /// An owner's locks of `bytes` bytes each, `gap` bytes apart.
    fn record(id: u64, count: u64, bytes: u64, gap: u64) -> impl Iterator<Item = HeldLock> {
        let owner = LockOwner { family: LockFamily::Record, id };
        let range = move |at: u64| LockRange { first: at, last: at + bytes - 1 };
        let held = move |number: u64| HeldLock {
            session: Session { seat: 3, token: 1 << 60 },
            owner,
            pid: 5,
            mode: if number.is_multiple_of(2) { LockMode::Exclusive } else { LockMode::Shared },
            range: range(1000 + number * (bytes + gap)),
        };
        (0..count).map(held)
    }

    #[test]
    fn thousands_of_records_of_some_programs_fit() {
        let mounts = vec![Session { seat: 3, token: 1 << 60 }];
        let held = (0..4).flat_map(|id| record(id << 50, 1024, 8, 50 + id)).collect();
        let locks = sorted(Locks { turn: 1, held, mounts });
        let bytes = locks.encode().unwrap().unwrap();
        assert_eq!(Locks::decode(Some(&bytes)).unwrap(), locks);
    }

    #[test]
    fn the_ends_of_all_numbers_come_back() {
        let mounts = vec![Session { seat: 3, token: 1 << 60 }];
        for (first, last) in [(0, u64::MAX), (u64::MAX, u64::MAX), (0, 0), (7, u64::MAX - 1)] {
            let mut one = record(1, 2, 1, 1).collect::<Vec<_>>();
            one[0].range = LockRange { first, last };
            let locks = sorted(Locks { turn: 1, held: one, mounts: mounts.clone() });
            let bytes = locks.encode().unwrap().unwrap();
            assert_eq!(Locks::decode(Some(&bytes)).unwrap(), locks);
        }
    }

    /// The first byte of the corpus file selects the kind of record.
    #[test]
    fn what_the_fuzz_target_begins_with_is_read() {
        let (_, record) =
            include_bytes!("../../../../fuzz/corpus/volume/locks").split_first().unwrap();
        let locks = Locks::decode(Some(record)).unwrap();
        assert_eq!((locks.mounts.len(), locks.held.len()), (2, 5));
        assert_eq!(locks.encode().unwrap().as_deref(), Some(record));
    }

    #[test]
    fn more_than_fit_are_refused() {
        assert!(some(800).encode().is_ok());
        assert!(matches!(some(2000).encode(), Err(FsError::NoLocks)));
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn any_bytes_are_locks_or_refused(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        ) {
            let _ = Locks::decode(Some(&bytes));
        }
    }
}
