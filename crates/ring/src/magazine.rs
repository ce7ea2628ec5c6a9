//! What the owner of a magazine knows of it: how many of its cells are in use, and which objects
//! can't be in them.
//!
//! The cells lie in the client file, and their notes are the truth: a restarted daemon strikes out
//! what it finds to be free, and what a killed owner left goes back. The model of owner and daemon
//! is `tests/loom_magazine.rs`.

mod filter;

use std::cell::Cell;

use crate::objects::{self, Place};
use filter::Filter;

/// What became of an object that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It stands in the magazine.
    Noted,
    /// It stood there before: it was freed twice. Nothing was done.
    Twice,
    /// There is no room. Nothing was done.
    Full,
}

/// What is known of one magazine. Every call gets the same cells.
#[derive(Debug)]
pub struct Magazine {
    /// Cells in use, from the first on.
    count: Cell<usize>,
    capacity: usize,
    /// Has at least the objects in the cells in use.
    filter: Filter,
}

impl Magazine {
    /// Of cells that may have objects in them, of which `capacity` may be used.
    pub fn new<const N: usize>(capacity: usize, cells: &[impl Place; N]) -> Self {
        let count = Cell::new(objects::extent(cells));
        let magazine = Self { count, capacity: capacity.min(N), filter: Filter::default() };
        magazine.look_again(cells);
        magazine
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

    /// Takes the object in the last cell in use out, which is told to `note` before. `None` when no
    /// cell is in use, or the last one was struck out, which is not in use any more.
    #[inline]
    pub fn take<const N: usize>(
        &self,
        cells: &[impl Place; N],
        note: impl FnOnce(u64),
    ) -> Option<u64> {
        let last = self.count.get().wrapping_sub(1);
        let cell = cells.get(last)?;
        let object = cell.object();
        if object != 0 {
            note(object);
        }
        cell.set(0);
        self.count.set(last);
        if object == 0 {
            self.look_again(cells);
            return None;
        }
        self.filter.remove(object);
        Some(object)
    }

    /// Puts a free object in.
    pub fn keep<const N: usize>(&self, cells: &[impl Place; N], object: u64) -> Kept {
        if self.filter.may_have(object) && self.has(cells, object) {
            return Kept::Twice;
        }
        if self.add(cells, object) { Kept::Noted } else { Kept::Full }
    }

    /// Puts a free object in if it is certain at once that it is not there, and there is room;
    /// whether it did.
    #[inline]
    pub fn keep_if_new<const N: usize>(&self, cells: &[impl Place; N], object: u64) -> bool {
        !self.filter.may_have(object) && self.add(cells, object)
    }

    /// Puts an object that is not there into the next cell; whether there is one.
    #[inline]
    fn add<const N: usize>(&self, cells: &[impl Place; N], object: u64) -> bool {
        let count = self.count.get();
        let Some(cell) = cells.get(count).filter(|_| count < self.capacity) else { return false };
        cell.set(object);
        self.count.set(count + 1);
        self.filter.add(object);
        true
    }

    fn has<P: Place>(&self, cells: &[P], object: u64) -> bool {
        cells[..self.count.get()].iter().any(|cell| cell.object() == object)
    }

    /// Carries objects over from another array into the cells of this empty magazine; returns how
    /// many.
    pub fn fill<P: Place, const N: usize>(&self, from: &[P], cells: &[P; N]) -> usize {
        let filled = objects::carry(from, &cells[..self.capacity]);
        self.count.set(filled);
        self.look_again(cells);
        filled
    }

    /// Learns anew what the cells in use hold.
    #[cold]
    fn look_again<P: Place>(&self, cells: &[P]) {
        self.filter.clear();
        let objects = cells[..self.count.get()].iter().map(Place::object);
        objects.filter(|object| *object != 0).for_each(|object| self.filter.add(object));
    }
}
