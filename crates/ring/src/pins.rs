//! Pins: a client notes the address of a fixed object in its pin array, and the object's memory is
//! not reused while the note is there.
//!
//! ```text
//! reader                          remover                 daemon of the object's rack
//! pin: cell := object             link := other
//! barrier                         free the object ------> mark := retired
//! load the link again                                     heavy barrier
//!   unchanged: the pin counts                             scan the pin arrays
//!   changed: clear the cell                               not found: the memory is reused
//! ```
//!
//! The daemon retires an object after the link to it has changed. So a reader that finds the link
//! unchanged has loaded it before the heavy barrier, and the scan that follows the barrier finds
//! the reader's cell. `tests/loom_pins.rs` models reader, remover and daemon.

use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::Barrier;

use crate::sparse_array::SparseArray;

/// Pins an object in a free cell of the array. The pin counts if the link to the object, loaded
/// after this call, still leads to it. Returns false if there is no such cell.
#[inline]
#[must_use]
pub fn pin(array: &SparseArray<'_>, cell: usize, object: u64, barrier: Barrier) -> bool {
    let is_noted = array.note(cell, object);
    // SYNC: pairs with the `heavy` barrier that the daemon executes between retiring the object and
    // `pinned`; with the daemon's own fence where `barrier` is a full fence.
    barrier.stand();
    is_noted
}

/// The objects that the array pins. For a decision about retired objects the caller executes
/// [`heavy`](rackpool_sync::barrier::heavy) first, after it has retired them.
pub fn pinned<'a>(array: &SparseArray<'a>) -> impl Iterator<Item = u64> + use<'a> {
    // SYNC: pairs with the store in `SparseArray::clear`: the reader is done with the object.
    let objects = array.in_use().iter().map(|cell: &AtomicU64| cell.load(Ordering::Acquire));
    objects.filter(|object| *object != 0)
}
