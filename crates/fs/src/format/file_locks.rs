//! Which ranges of a file are locked: the rules of POSIX, without pool memory or mounts.

use crate::format::session::Session;

/// The two families of locks. They are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockFamily {
    /// Locks of byte ranges, by `fcntl`; owned by a process or an open file description.
    Record,
    /// Locks of whole files, by `flock`.
    Whole,
}

/// The owner of a lock, within a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The family of its locks.
    pub family: LockFamily,
    /// The kernel's number of the owner.
    pub id: u64,
}

/// Which other locks a lock admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Admits shared locks.
    Shared,
    /// Admits no other lock.
    Exclusive,
}

/// Bytes of a file, both ends included; at least one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
}

impl LockRange {
    const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether the two overlap or are adjacent.
    const fn joins(self, other: Self) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }
}

/// A lock that an owner holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldLock {
    pub(crate) session: Session,
    pub(crate) owner: LockOwner,
    pub(crate) pid: u32,
    pub(crate) mode: LockMode,
    pub(crate) range: LockRange,
}

impl HeldLock {
    fn is_of(&self, session: Session, owner: LockOwner) -> bool {
        self.session == session && self.owner == owner
    }
}

/// All locks of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Locks {
    /// Counts exclusive locks that were given up. A mount that dropped its cache at this count has
    /// read all that was written under one.
    pub(crate) turn: u64,
    /// The mounts that have had locks of the file since they opened it.
    pub(crate) mounts: Vec<Session>,
    pub(crate) held: Vec<HeldLock>,
}

impl Locks {
    /// The locks that conflict with `wanted`.
    pub(crate) fn in_the_way(&self, wanted: &HeldLock) -> impl Iterator<Item = &HeldLock> {
        self.held.iter().filter(move |held| {
            held.owner.family == wanted.owner.family
                && !held.is_of(wanted.session, wanted.owner)
                && held.range.meets(wanted.range)
                && (held.mode == LockMode::Exclusive || wanted.mode == LockMode::Exclusive)
        })
    }

    /// Releases a range of an owner's locks; a lock that reaches beyond the range is split.
    pub(crate) fn take(&mut self, session: Session, owner: LockOwner, range: LockRange) {
        self.cut(session, owner, range, None);
    }

    /// Gives an owner a lock in place of its locks on that range, and merges neighbours. The caller
    /// must have checked that nothing conflicts.
    pub(crate) fn give(&mut self, mut wanted: HeldLock) {
        let (session, owner) = (wanted.session, wanted.owner);
        self.cut(session, owner, wanted.range, Some(wanted.mode));
        self.held.retain(|held| {
            let is_one = held.is_of(session, owner)
                && held.mode == wanted.mode
                && held.range.joins(wanted.range);
            if is_one {
                wanted.range.first = wanted.range.first.min(held.range.first);
                wanted.range.last = wanted.range.last.max(held.range.last);
            }
            !is_one
        });
        self.held.push(wanted);
    }

    /// Cuts a range out of an owner's locks. `then` is the mode that the owner gets there
    /// afterwards.
    fn cut(
        &mut self,
        session: Session,
        owner: LockOwner,
        range: LockRange,
        then: Option<LockMode>,
    ) {
        let mut rest = Vec::new();
        let mut gives_up = false;
        self.held.retain(|held| {
            if !held.is_of(session, owner) || !held.range.meets(range) {
                return true;
            }
            gives_up |= held.mode == LockMode::Exclusive && then != Some(LockMode::Exclusive);
            let before = range.first.checked_sub(1).filter(|last| held.range.first <= *last);
            rest.extend(before.map(|last| {
                let range = LockRange { first: held.range.first, last };
                HeldLock { range, ..*held }
            }));
            let behind = range.last.checked_add(1).filter(|first| *first <= held.range.last);
            rest.extend(behind.map(|first| {
                let range = LockRange { first, last: held.range.last };
                HeldLock { range, ..*held }
            }));
            false
        });
        self.held.append(&mut rest);
        self.turn = self.turn.wrapping_add(gives_up.into());
    }

    /// Releases all locks of an owner.
    pub(crate) fn take_all(&mut self, session: Session, owner: LockOwner) {
        self.take(session, owner, LockRange { first: 0, last: u64::MAX });
    }

    /// Removes all locks of a mount that leaves, or is gone.
    pub(crate) fn expel(&mut self, session: Session) {
        let had = |held: &HeldLock| held.session == session && held.mode == LockMode::Exclusive;
        let gives_up = self.held.iter().any(had);
        self.turn = self.turn.wrapping_add(gives_up.into());
        self.held.retain(|held| held.session != session);
        self.mounts.retain(|mount| *mount != session);
    }

    /// Records that a mount has locks of the file.
    pub(crate) fn join(&mut self, session: Session) {
        if !self.mounts.contains(&session) {
            self.mounts.push(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 24;

    fn owner(id: u64) -> (Session, LockOwner) {
        let session = Session { seat: u16::try_from(id % 2).unwrap(), token: 7 };
        (session, LockOwner { family: LockFamily::Record, id: id / 2 })
    }

    /// The mode that each owner holds on each byte.
    type Model = [[Option<LockMode>; BYTES]; 4];

    fn seen(locks: &Locks) -> Model {
        let mut seen = Model::default();
        for held in &locks.held {
            let id = held.owner.id * 2 + u64::from(held.session.seat);
            for byte in held.range.first..=held.range.last {
                let place = &mut seen[usize::try_from(id).unwrap()][usize::try_from(byte).unwrap()];
                assert_eq!(place.replace(held.mode), None, "two locks of one owner on one byte");
            }
        }
        seen
    }

    fn expect_merged(locks: &Locks) {
        for (at, one) in locks.held.iter().enumerate() {
            for other in &locks.held[at + 1..] {
                let same = one.is_of(other.session, other.owner) && one.mode == other.mode;
                assert!(!same || !one.range.joins(other.range), "{one:?} and {other:?}");
            }
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn each_byte_has_the_locks_that_a_map_of_bytes_has(
            steps in proptest::collection::vec((0..4_u64, 0..BYTES as u64, 0..BYTES as u64, 0..3_u8), 1..60),
        ) {
            let (mut locks, mut model) = (Locks::default(), Model::default());
            for (id, one, other, what) in steps {
                let range = LockRange { first: one.min(other), last: one.max(other) };
                let bytes = usize::try_from(range.first).unwrap()..=usize::try_from(range.last).unwrap();
                let (session, owner) = owner(id);
                let id = usize::try_from(id).unwrap();
                let turn = locks.turn;
                let had = model[id][bytes.clone()].contains(&Some(LockMode::Exclusive));
                let mode = match what {
                    0 => LockMode::Shared,
                    1 => LockMode::Exclusive,
                    _ => {
                        locks.take(session, owner, range);
                        model[id][bytes].fill(None);
                        assert_eq!(locks.turn != turn, had);
                        assert_eq!(seen(&locks), model);
                        continue;
                    }
                };
                let wanted = HeldLock { session, owner, pid: 1, mode, range };
                let blocked = model.iter().enumerate().any(|(other, bytes_of)| {
                    other != id && bytes_of[bytes.clone()].iter().flatten().any(|held| {
                        *held == LockMode::Exclusive || mode == LockMode::Exclusive
                    })
                });
                assert_eq!(locks.in_the_way(&wanted).next().is_some(), blocked);
                if blocked {
                    continue;
                }
                locks.give(wanted);
                model[id][bytes].fill(Some(mode));
                assert_eq!(locks.turn != turn, had && mode == LockMode::Shared);
                assert_eq!(seen(&locks), model);
                expect_merged(&locks);
            }
        }
    }

    #[test]
    fn ranges_up_to_the_last_byte_there_can_be_are_split_and_merged() {
        let (session, owner) = owner(0);
        let all = LockRange { first: 0, last: u64::MAX };
        let held = |first, last| {
            let range = LockRange { first, last };
            HeldLock { session, owner, pid: 1, mode: LockMode::Exclusive, range }
        };
        let mut locks = Locks::default();
        locks.give(HeldLock { range: all, ..held(0, 0) });
        locks.take(session, owner, LockRange { first: 5, last: 5 });
        assert_eq!(locks.held, [held(0, 4), held(6, u64::MAX)]);
        locks.give(held(5, 5));
        assert_eq!(locks.held, [held(0, u64::MAX)]);
        locks.take(session, owner, all);
        assert_eq!(locks.held, []);
    }

    #[test]
    fn families_do_not_meet() {
        let (session, owner) = owner(0);
        let range = LockRange { first: 0, last: 9 };
        let one = HeldLock { session, owner, pid: 1, mode: LockMode::Exclusive, range };
        let whole = LockOwner { family: LockFamily::Whole, id: 9 };
        let locks = Locks { held: vec![one], ..Locks::default() };
        assert_eq!(locks.in_the_way(&HeldLock { owner: whole, ..one }).count(), 0);
        let other = LockOwner { id: 9, ..owner };
        assert_eq!(locks.in_the_way(&HeldLock { owner: other, ..one }).count(), 1);
    }
}
