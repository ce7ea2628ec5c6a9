//! The owner's view of a magazine: how many of its cells are in use.
//!
//! The cells are in the client file and their notes are authoritative: a restarted daemon clears
//! notes of free objects, and a daemon takes back what a killed owner left.
//! `tests/loom_magazine.rs` models owner and daemon.

use std::cell::Cell;

use crate::objects::{self, NoteCell};

/// The owner's state of one magazine. Every call must be given the same cells.
#[derive(Debug)]
pub struct Magazine {
    /// Number of cells in use, from the first on.
    count: Cell<usize>,
    capacity: usize,
}

impl Magazine {
    /// The state for `cells`, which may hold objects. At most `capacity` of them will be used.
    pub fn new<const N: usize>(capacity: usize, cells: &[impl NoteCell; N]) -> Self {
        Self { count: Cell::new(objects::extent(cells)), capacity: capacity.min(N) }
    }

    /// Number of cells in use.
    #[inline]
    pub const fn count(&self) -> usize {
        self.count.get()
    }

    /// Returns the object in the last cell in use; 0 if no cell is in use or the daemon has cleared
    /// that cell.
    pub fn last<const N: usize>(&self, cells: &[impl NoteCell; N]) -> u64 {
        cells.get(self.count.get().wrapping_sub(1)).map_or(0, NoteCell::object)
    }

    /// Pops the object of the last cell in use after `prepare(object)` has returned true. Returns
    /// `None` if `prepare` returns false, if no cell is in use, or if the daemon has cleared the
    /// last one; a cleared cell is then no longer in use.
    #[inline]
    pub fn take<const N: usize>(
        &self,
        cells: &[impl NoteCell; N],
        prepare: impl FnOnce(u64) -> bool,
    ) -> Option<u64> {
        let last = self.count.get().wrapping_sub(1);
        let cell = cells.get(last)?;
        let object = cell.object();
        if object != 0 && !prepare(object) {
            return None;
        }
        cell.set(0);
        self.count.set(last);
        (object != 0).then_some(object)
    }

    /// Pushes a free object. Returns false if the magazine is full.
    #[inline]
    pub fn keep<const N: usize>(&self, cells: &[impl NoteCell; N], object: u64) -> bool {
        let count = self.count.get();
        let Some(cell) = cells.get(count).filter(|_| count < self.capacity) else { return false };
        cell.set(object);
        self.count.set(count + 1);
        true
    }

    /// Moves objects from another array into this empty magazine. Returns their number.
    pub fn fill<P: NoteCell, const N: usize>(&self, from: &[P], cells: &[P; N]) -> usize {
        let filled = objects::carry(from, &cells[..self.capacity]);
        self.count.set(filled);
        filled
    }
}
