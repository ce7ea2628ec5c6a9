//! Numbers of new records, and how far all records are acknowledged.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::counter::SharedCounter;

/// YCSB's `AcknowledgedCounterGenerator`: hands out the numbers of records to insert. It reports a
/// record as the newest only once the store has acknowledged that record and all before it.
#[derive(Debug)]
pub(crate) struct AcknowledgedCounter {
    next: SharedCounter,
    present: SharedCounter,
    early: Mutex<BTreeSet<u64>>,
}

impl AcknowledgedCounter {
    /// Starts with the records `0..present`.
    pub(crate) fn new(present: u64) -> Self {
        Self {
            next: SharedCounter::new(present),
            present: SharedCounter::new(present),
            early: Mutex::default(),
        }
    }

    /// Returns the number of the next record to insert. Each number is returned once.
    pub(crate) fn take(&self) -> u64 {
        self.next.take()
    }

    /// Records that the store has acknowledged record `number`.
    pub(crate) fn acknowledge(&self, number: u64) {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        let mut present = self.present.get();
        early.insert(number);
        while early.remove(&present) {
            present += 1;
        }
        self.present.publish(present);
    }

    /// Returns the number of records that are present: `0..present()`.
    pub(crate) fn present(&self) -> u64 {
        self.present.get()
    }

    /// Returns the newest record that is present together with all before it.
    pub(crate) fn newest(&self) -> u64 {
        self.present().saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_holds_the_newest_back() {
        let counter = AcknowledgedCounter::new(10);
        assert_eq!(counter.newest(), 9);
        assert_eq!([counter.take(), counter.take(), counter.take()], [10, 11, 12]);
        counter.acknowledge(12);
        counter.acknowledge(11);
        assert_eq!(counter.newest(), 9);
        counter.acknowledge(10);
        assert_eq!((counter.newest(), counter.present()), (12, 13));
    }
}
