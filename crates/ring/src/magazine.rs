//! What the owner of a magazine knows of it: how many of its cells are in use.
//!
//! The cells lie in the client file, and their notes are the truth: a restarted daemon strikes out
//! what it finds to be free, and what a killed owner left goes back. The model of owner and daemon
//! is `tests/loom_magazine.rs`.

use std::cell::Cell;

use crate::objects::{self, Place};

/// What is known of one magazine. Every call gets the same cells.
#[derive(Debug)]
pub struct Magazine {
    /// Cells in use, from the first on.
    count: Cell<usize>,
    capacity: usize,
}

impl Magazine {
    /// Of cells that may have objects in them, of which `capacity` may be used.
    pub fn new<const N: usize>(capacity: usize, cells: &[impl Place; N]) -> Self {
        Self { count: Cell::new(objects::extent(cells)), capacity: capacity.min(N) }
    }

    /// Cells in use.
    #[inline]
    pub const fn count(&self) -> usize {
        self.count.get()
    }

    /// The object in the last cell in use; 0 when there is none, or the daemon has struck it out.
    pub fn last<const N: usize>(&self, cells: &[impl Place; N]) -> u64 {
        cells.get(self.count.get().wrapping_sub(1)).map_or(0, Place::object)
    }

    /// Takes the object in the last cell in use out, if `prepare`, which is told of it before,
    /// agrees. `None` when it does not, when no cell is in use, or when the last one was struck
    /// out, which is not in use any more.
    #[inline]
    pub fn take<const N: usize>(
        &self,
        cells: &[impl Place; N],
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

    /// Puts a free object into the next cell; `false` when there is no room.
    #[inline]
    pub fn keep<const N: usize>(&self, cells: &[impl Place; N], object: u64) -> bool {
        let count = self.count.get();
        let Some(cell) = cells.get(count).filter(|_| count < self.capacity) else { return false };
        cell.set(object);
        self.count.set(count + 1);
        true
    }

    /// Carries objects over from another array into the cells of this empty magazine; returns how
    /// many.
    pub fn fill<P: Place, const N: usize>(&self, from: &[P], cells: &[P; N]) -> usize {
        let filled = objects::carry(from, &cells[..self.capacity]);
        self.count.set(filled);
        filled
    }
}
