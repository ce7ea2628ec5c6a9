//! Numbers for new records, and up to where they are surely there.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::ycsb::counter::SharedCounter;

/// YCSB's `AcknowledgedCounterGenerator`: hands out the numbers of records to insert, and names a
/// record as newest only when it and all before it have been acknowledged by the store.
#[derive(Debug)]
pub(in crate::ycsb) struct AcknowledgedCounter {
    next: SharedCounter,
    present: SharedCounter,
    early: Mutex<BTreeSet<u64>>,
}

impl AcknowledgedCounter {
    /// Records `0..present` are there.
    pub(in crate::ycsb) fn new(present: u64) -> Self {
        Self {
            next: SharedCounter::new(present),
            present: SharedCounter::new(present),
            early: Mutex::default(),
        }
    }

    /// The number of the next record to insert. Every number is handed out once.
    pub(in crate::ycsb) fn take(&self) -> u64 {
        self.next.take()
    }

    /// Record `number` is stored.
    pub(in crate::ycsb) fn acknowledge(&self, number: u64) {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        let mut present = self.present.get();
        early.insert(number);
        while early.remove(&present) {
            present += 1;
        }
        self.present.publish(present);
    }

    /// Records `0..present()` are there.
    pub(in crate::ycsb) fn present(&self) -> u64 {
        self.present.get()
    }

    /// The number of the newest record that is surely there.
    pub(in crate::ycsb) fn newest(&self) -> u64 {
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
