//! A large array of addresses in a client's file, of which only the pages in use take memory.
//!
//! The client writes the cells; its daemon reads those below the high-water mark, and clears them
//! when the client has gone. Which cells are free is known to the client's process alone.

use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::objects::NoteCell;

/// Number of cells of an array.
pub const ARRAY_CELLS: usize = 1 << 20;

/// The number of cells, from the first on, that may hold an address.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct HighWater(AtomicU64);

#[cfg(not(loom))]
// SAFETY: `repr(C)`, nothing but an atomic integer and padding.
unsafe impl rackpool_shm::Shared for HighWater {}

/// An array over its high-water mark and its cells.
#[derive(Clone, Copy, Debug)]
pub struct SparseArray<'a> {
    high_water: &'a HighWater,
    cells: &'a [AtomicU64],
}

impl<'a> SparseArray<'a> {
    /// An array over `cells`. An array of zeroes is empty.
    #[must_use]
    pub const fn new(high_water: &'a HighWater, cells: &'a [AtomicU64]) -> Self {
        Self { high_water, cells }
    }

    /// Notes an address in a cell that is free. Returns false if there is no such cell.
    #[inline]
    pub fn note(&self, index: usize, addr: u64) -> bool {
        let Some(cell) = self.cells.get(index) else { return false };
        let needed = index as u64 + 1;
        // Other threads of the client only raise the mark.
        if self.high_water.0.load(Ordering::Relaxed) < needed {
            // SYNC: pairs with the load in `in_use`. The mark is raised first, so each cell with an
            // address is below it.
            self.high_water.0.fetch_max(needed, Ordering::Release);
        }
        cell.store(addr, Ordering::Release);
        true
    }

    /// Clears a cell.
    #[inline]
    pub fn clear(&self, index: usize) {
        if let Some(cell) = self.cells.get(index) {
            cell.set(0);
        }
    }

    /// The cells that may hold an address. The mark is not trusted.
    #[must_use]
    pub fn in_use(&self) -> &'a [AtomicU64] {
        // SYNC: pairs with the exchange in `note`.
        let count = usize::try_from(self.high_water.0.load(Ordering::Acquire));
        self.cells.get(..count.unwrap_or(usize::MAX)).unwrap_or(self.cells)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn values(array: SparseArray<'_>) -> Vec<u64> {
        array.in_use().iter().map(NoteCell::object).collect()
    }

    #[test]
    fn the_mark_covers_the_last_cell_in_use_and_never_sinks() {
        let (high_water, cells) = (HighWater::default(), <[AtomicU64; 8]>::default());
        let array = SparseArray::new(&high_water, &cells);
        assert_eq!(values(array), []);
        assert!(array.note(3, 64) && array.note(1, 128));
        assert_eq!(values(array), [0, 128, 0, 64]);
        array.clear(3);
        array.clear(9);
        assert_eq!(values(array), [0, 128, 0, 0]);
        assert!(!array.note(8, 64), "there is no such cell");
    }

    #[test]
    fn a_mark_behind_the_last_cell_means_all_cells() {
        for mark in [9, u64::MAX] {
            let high_water = HighWater(AtomicU64::new(mark));
            let cells = <[AtomicU64; 8]>::default();
            assert_eq!(SparseArray::new(&high_water, &cells).in_use().len(), 8);
        }
    }
}
