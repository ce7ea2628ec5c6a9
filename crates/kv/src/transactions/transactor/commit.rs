use std::time::Duration;

use crate::error::KvError;
use crate::locks::id::TransactionId;
use crate::memory::Memory;
use crate::transactions::transactor::Transactor;
use crate::transactions::transactor::record::{RESERVED, TransactorRecord, TransactorState};
use crate::transactions::transactor::value::{KeyLock, StoredValue, encode_plain};

/// The change of one key in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyChange<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value that the key must have; `None`: it must be absent.
    pub expected: Option<&'a [u8]>,
    /// The value afterwards; `None`: the key is deleted. Equal to `expected` if the key must only
    /// stay unchanged.
    pub new: Option<&'a [u8]>,
}

/// The largest grace.
const MAX_GRACE: u64 = 1023;

/// The result of one attempt to commit.
enum Attempt {
    Committed,
    /// A key has another value than expected.
    Differs,
    /// Another client aborted the transaction.
    Aborted,
}

impl<M: Memory> Transactor<M> {
    /// Makes all changes at one point in time if every key then has its expected value, else none.
    /// Returns whether it made them. A key may be named only once.
    ///
    /// # Errors
    /// After [`KvError::OutcomeUnknown`] either all changes were made or none will be. After any
    /// other error none were made.
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
            // A deletion needs a lock, whose bytes are unique: it must not hit a later equal value.
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
            // Two transactions that abort each other get out of step.
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

    /// After a failed change: resolves the key's lock if it has one. Returns whether the change is
    /// worth repeating.
    fn is_free(&mut self, change: &KeyChange<'_>) -> Result<bool, KvError<M::Error>> {
        if !self.handle.get(change.key, &mut self.raw)? {
            return Ok(change.expected.is_none());
        }
        match StoredValue::decode(&self.raw) {
            Some(StoredValue::Plain(value)) => Ok(change.expected == Some(value)),
            Some(StoredValue::Locked(_)) => self.unlock(change.key).map(|()| true),
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
            Ok(true) => self.decide(TransactorState::Committed)?,
            _ => false,
        };
        if !committed {
            self.decide(TransactorState::Aborted)?;
        }
        // Locks that cannot be resolved now are resolved before the next transaction, or by others.
        let resolved = self.resolve_own(changes.iter().map(|change| change.key), committed);
        self.clean = resolved.is_ok();
        match locked {
            _ if committed => Ok(Attempt::Committed),
            Ok(true) | Err(KvError::OutcomeUnknown) => Ok(Attempt::Aborted),
            Ok(false) => Ok(Attempt::Differs),
            Err(error) => Err(error),
        }
    }

    /// Stores the record of a new transaction.
    fn begin(&mut self, changes: &[&KeyChange<'_>]) -> Result<(), KvError<M::Error>> {
        if !self.clean {
            self.settle_last()?;
        }
        self.clean = false;
        self.number += 1;
        self.record.begin(self.number, changes.iter().map(|change| change.key));
        self.handle.put(&TransactorRecord::key(self.owner, self.slot), &self.record.bytes).map(drop)
    }

    /// Replaces the key's value by a lock of this transaction if it is the expected value.
    fn lock(&mut self, change: &KeyChange<'_>) -> Result<bool, KvError<M::Error>> {
        let id = TransactionId { owner: self.owner, slot: self.slot, number: self.number };
        let lock = KeyLock { id, old: change.expected, new: change.new };
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
