use std::time::Duration;

use super::record::{RESERVED, Record, State};
use super::transactor::Transactor;
use super::value::{Lock, Stored, TransactionId, encode_plain};
use crate::error::KvError;
use crate::memory::Memory;

/// What a transaction does to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value before; `None` if it must not be there.
    pub expected: Option<&'a [u8]>,
    /// Its value afterwards; `None` if it is to be gone. The same as before if it only must not
    /// change.
    pub new: Option<&'a [u8]>,
}

/// A transactor's grace grows up to this.
const MAX_GRACE: u64 = 1023;

/// How a try to commit ended.
enum Attempt {
    Committed,
    /// A key has another value than was expected.
    Differs,
    /// Somebody aborted it.
    Aborted,
}

impl<M: Memory> Transactor<M> {
    /// Makes all changes at one moment if every key has its expected value then, or none. Says
    /// whether it did. No key may be named twice.
    ///
    /// # Errors
    /// After [`KvError::OutcomeUnknown`] the changes were made, all of them, or will not be made;
    /// after any other error they were not made.
    pub fn commit(&mut self, changes: &[KeyChange<'_>]) -> Result<bool, KvError<M::Error>> {
        self.grace = 0;
        let mut sorted: Vec<&KeyChange<'_>> = changes.iter().collect();
        sorted.sort_unstable_by_key(|change| change.key);
        let twice = sorted.windows(2).any(|pair| pair[0].key == pair[1].key);
        if twice || sorted.iter().any(|change| change.key.first() == Some(&RESERVED)) {
            let allowed = "different keys that don't begin with the byte 0xff";
            return Err(KvError::Option { name: "key", value: RESERVED.into(), allowed });
        }
        match *sorted {
            [] => return Ok(true),
            // A deletion must not hit another value that looks the same: a lock is only its own.
            [change] if change.new.is_some() || change.expected.is_none() => {
                return self.change_one(change);
            }
            _ => {}
        }
        let mut pause = Duration::from_micros(10);
        loop {
            match self.attempt(&sorted)? {
                Attempt::Committed => return Ok(true),
                Attempt::Differs => return Ok(false),
                Attempt::Aborted => {}
            }
            // Two that abort each other get out of step.
            self.grace = (2 * self.grace + 1).min(MAX_GRACE);
            if !self.lock_wait.is_zero() {
                std::thread::sleep(
                    pause + Duration::from_micros(self.owner % 13 + u64::from(self.slot)),
                );
                pause = (pause * 2).min(self.lock_wait);
            }
        }
    }

    /// A transaction of one key needs no record.
    fn change_one(&mut self, change: &KeyChange<'_>) -> Result<bool, KvError<M::Error>> {
        loop {
            if self.replace_plain(change.key, change.expected, change.new)? {
                return Ok(true);
            }
            if !self.is_free(change)? {
                return Ok(false);
            }
        }
    }

    /// After a change that failed: whether it is worth trying again. A lock is taken away first.
    fn is_free(&mut self, change: &KeyChange<'_>) -> Result<bool, KvError<M::Error>> {
        if !self.handle.get(change.key, &mut self.raw)? {
            return Ok(change.expected.is_none());
        }
        match Stored::decode(&self.raw) {
            Some(Stored::Plain(value)) => Ok(change.expected == Some(value)),
            Some(Stored::Locked(_)) => self.unlock(change.key).map(|()| true),
            None => Err(self.damaged()),
        }
    }

    fn attempt(&mut self, changes: &[&KeyChange<'_>]) -> Result<Attempt, KvError<M::Error>> {
        self.begin(changes)?;
        let mut locked = Ok(true);
        for change in changes {
            locked = self.lock(change);
            if !matches!(locked, Ok(true)) {
                break;
            }
        }
        let committed = match locked {
            Ok(true) => self.decide(State::Committed)?,
            _ => false,
        };
        if !committed {
            self.decide(State::Aborted)?;
        }
        // What can't be resolved now is when the next transaction begins, or by others.
        let resolved = self.resolve_own(changes.iter().map(|change| change.key), committed);
        self.clean = resolved.is_ok();
        match locked {
            _ if committed => Ok(Attempt::Committed),
            Ok(true) | Err(KvError::OutcomeUnknown) => Ok(Attempt::Aborted),
            Ok(false) => Ok(Attempt::Differs),
            Err(error) => Err(error),
        }
    }

    /// Writes the record of a new transaction.
    fn begin(&mut self, changes: &[&KeyChange<'_>]) -> Result<(), KvError<M::Error>> {
        if !self.clean {
            self.settle_last()?;
        }
        self.clean = false;
        self.number += 1;
        self.record.begin(self.number, changes.iter().map(|change| change.key));
        self.handle.put(&Record::key(self.owner, self.slot), &self.record.bytes).map(drop)
    }

    /// Puts the lock of this transaction under a key if it has its expected value.
    fn lock(&mut self, change: &KeyChange<'_>) -> Result<bool, KvError<M::Error>> {
        let id = TransactionId { owner: self.owner, slot: self.slot, number: self.number };
        let lock = Lock { id, old: change.expected, new: change.new };
        let mut plain = Vec::new();
        loop {
            let max = u64::from(u32::MAX);
            lock.encode(&mut self.staging).ok_or(KvError::TooLarge { bytes: max, max })?;
            let expected = change.expected.map(|value| {
                encode_plain(&mut plain, value);
                &plain[..]
            });
            if self.handle.compare_and_put(change.key, expected, &self.staging)? {
                return Ok(true);
            }
            if !self.is_free(change)? {
                return Ok(false);
            }
        }
    }
}
