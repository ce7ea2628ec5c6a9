//! The steps by which objects move between a program and the daemon through the arrays of a thread
//! slot.
//!
//! Client and daemon may each be killed between any two stores. Each step therefore keeps an object
//! noted in at least one place until it is certainly noted elsewhere. An object that is noted in
//! two places for an instant is freed once. See `docs/design/rack-memory.md`.

use rackpool_sync::atomic::{AtomicU64, Ordering};

/// A word that notes an object by its address; 0 for none.
pub trait NoteCell {
    /// The object noted here.
    fn object(&self) -> u64;
    /// Notes an object; 0 clears the note.
    fn set(&self, object: u64);

    /// Clears the note of `object`, unless another object is noted here now.
    fn strike(&self, object: u64);
}

impl NoteCell for AtomicU64 {
    fn object(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn set(&self, object: u64) {
        self.store(object, Ordering::Release);
    }

    fn strike(&self, object: u64) {
        // A failed exchange means that another object is noted: that is no error.
        let _ = self.compare_exchange(object, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Removes the noted object and returns it; the caller then owns it.
pub fn take(place: &impl NoteCell) -> u64 {
    let object = place.object();
    place.set(0);
    object
}

/// Returns the number of places up to the last noted object. Objects are not moved to close gaps: a
/// new daemon that scans for notes of free objects at the same time could miss one.
pub fn extent<P: NoteCell>(places: &[P]) -> usize {
    places.iter().rposition(|place| place.object() != 0).map_or(0, |last| last + 1)
}

/// Moves objects to the first places of another array, as many as fit. Returns their number.
pub fn carry<P: NoteCell>(from: &[P], to: &[P]) -> usize {
    let objects = from.iter().filter(|place| place.object() != 0);
    let mut carried = 0;
    for (from, to) in objects.zip(to) {
        to.set(from.object());
        from.set(0);
        carried += 1;
    }
    carried
}

/// Moves the objects of an array to its front. Returns their number.
pub fn close_ranks<P: NoteCell>(places: &[P]) -> usize {
    let mut count = 0;
    for (index, place) in places.iter().enumerate() {
        let object = place.object();
        if object != 0 {
            if count != index {
                places[count].set(object);
                place.set(0);
            }
            count += 1;
        }
    }
    count
}

/// Clears the notes of the objects for which `struck` returns true. The owner of the places may use
/// them at the same time.
pub fn strike<'a, P: NoteCell + 'a>(
    places: impl IntoIterator<Item = &'a P>,
    struck: impl Fn(u64) -> bool,
) {
    for place in places {
        let object = place.object();
        if object != 0 && struck(object) {
            place.strike(object);
        }
    }
}
