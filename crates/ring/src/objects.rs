//! Where objects stand between a program and the daemon: the steps in the arrays of a thread slot.
//!
//! Client and daemon may each be killed between any two stores. So every step leaves each object
//! in at least one place until it is elsewhere for certain; one that stands in two places for an
//! instant is taken back once. See `docs/design/rack-memory.md`.

use rackpool_sync::atomic::{AtomicU64, Ordering};

/// A word that notes an object by its address; 0 for none.
pub trait Place {
    /// The object noted here.
    fn object(&self) -> u64;
    /// Notes an object, or with 0 strikes out whatever is noted.
    fn set(&self, object: u64);

    /// Strikes an object out, unless another one is noted here by now.
    fn strike(&self, object: u64);
}

impl Place for AtomicU64 {
    fn object(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn set(&self, object: u64) {
        self.store(object, Ordering::Release);
    }

    fn strike(&self, object: u64) {
        // Failed, another one is noted: that is no error.
        let _ = self.compare_exchange(object, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Takes what is noted in a place out of it: whoever asked has it then.
pub fn take(place: &impl Place) -> u64 {
    let object = place.object();
    place.set(0);
    object
}

/// Places up to the last object. Objects are not moved to fill gaps: a new daemon that looks for
/// notes of free objects just now could miss one.
pub fn extent<P: Place>(places: &[P]) -> usize {
    places.iter().rposition(|place| place.object() != 0).map_or(0, |last| last + 1)
}

/// Carries objects over to the first places of another array, as many as fit; returns how many.
pub fn carry<P: Place>(from: &[P], to: &[P]) -> usize {
    let objects = from.iter().filter(|place| place.object() != 0);
    let mut carried = 0;
    for (from, to) in objects.zip(to) {
        to.set(from.object());
        from.set(0);
        carried += 1;
    }
    carried
}

/// Moves the objects of an array to its front; returns how many there are.
pub fn close_ranks<P: Place>(places: &[P]) -> usize {
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

/// Strikes objects out. The owner of the places may use them meanwhile.
pub fn strike<'a, P: Place + 'a>(
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
