//! The free objects that a thread keeps for its next allocations: its magazines in the client file,
//! resolved once. There is one for each size class, named by the class's index; a class that is
//! not cached has an empty one without room.
//!
//! The file has the truth: a cell that is in use here may have been emptied by the daemon, and is
//! then not handed out. What is kept here beside it only makes it quick to use.

use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_shm::permit::Permit;
use rackpool_shm::{Front, Mapping, OutOfBounds};
use rackpool_sync::atomic::AtomicU64;

use crate::client_file::{ClientFile, MAGAZINE, MAGAZINE_CLASSES, ThreadSlot};
use crate::magazine::Magazine;
use crate::reservation::ReservationRecord;

/// log2 of the bytes that a magazine may hold: of large objects it holds fewer.
const MAGAZINE_BITS: usize = 20;
/// log2 of the size of the objects in magazine 0; each next one's are twice as large.
const SMALLEST_BITS: usize = 4;

/// How many objects the magazine of a size class (its index) holds; 0 for classes that are not
/// cached.
#[must_use]
pub const fn capacity(class: usize) -> usize {
    if class >= MAGAZINE_CLASSES {
        return 0;
    }
    let by_bytes = 1 << (MAGAZINE_BITS - SMALLEST_BITS - class);
    if by_bytes < MAGAZINE { by_bytes } else { MAGAZINE }
}

const _: () = assert!(SMALLEST_BITS + MAGAZINE_CLASSES <= MAGAZINE_BITS + 1);

/// The magazines of one thread.
#[derive(Debug)]
pub struct Magazines {
    /// Owned. A raw pointer because [`FRONT`] may point there too.
    core: NonNull<Core>,
    /// `FRONT` belongs to a thread, so what it points to does too.
    _thread: PhantomData<*const ()>,
}

#[derive(Debug)]
struct Core {
    /// Invariant: inside `memory`.
    slot: NonNull<ThreadSlot>,
    classes: [Magazine; MAGAZINE_CLASSES],
    _memory: Arc<Mapping>,
}

thread_local! {
    /// The magazines that this thread used last.
    static FRONT: Front<Core> = const { Front::none() };
}

/// The core of the calling thread's front magazines, if those are of `pool`. It must not be kept.
#[inline]
fn front<'a>(permit: &Permit) -> Option<&'a Core> {
    // SAFETY: `drop` removes a core, which is never borrowed mutably; the callers call nobody who
    // drops magazines.
    FRONT.with(|front| unsafe { front.get(permit) })
}

/// Takes an object of a class out of the magazines that this thread used last, if they are of the
/// pool numbered `pool`, have one, and `prepare` has prepared it for the program, which then says
/// so.
#[inline]
#[must_use]
pub fn take(permit: &Permit, class: usize, prepare: impl FnOnce(u64) -> bool) -> Option<u64> {
    let (cells, class) = front(permit)?.class(class)?;
    class.take(cells, prepare)
}

/// Takes an object out that [`keep`] has just put in; whether it still stood there.
#[cold]
pub fn withdraw(permit: &Permit, class: usize, object: u64) -> bool {
    front(permit).is_some_and(|core| core.withdraw(class, object))
}

/// Puts an object into the magazines that this thread used last; whether that was done. If not
/// they are of another pool, or have no room.
#[inline]
#[must_use]
pub fn keep(permit: &Permit, class: usize, object: u64) -> bool {
    front(permit).is_some_and(|core| core.keep(class, object))
}

impl Core {
    #[inline]
    fn slot(&self) -> &ThreadSlot {
        // SAFETY: the invariant of `slot`; `ThreadSlot` is `Shared`.
        unsafe { self.slot.as_ref() }
    }

    /// A magazine, and what is known of it.
    #[inline]
    fn class(&self, index: usize) -> Option<(&[AtomicU64; MAGAZINE], &Magazine)> {
        Some((self.slot().magazines.get(index)?, self.classes.get(index)?))
    }

    #[inline]
    fn take(&self, index: usize, reservation: Option<&ReservationRecord>) -> Option<u64> {
        let (cells, class) = self.class(index)?;
        class.take(cells, |object| {
            if let Some(record) = reservation {
                record.hold(object);
            }
            true
        })
    }

    fn withdraw(&self, index: usize, object: u64) -> bool {
        let last = self.class(index).map_or(0, |(cells, class)| class.last(cells));
        last == object && self.take(index, None).is_some()
    }

    #[inline]
    fn keep(&self, class: usize, object: u64) -> bool {
        self.class(class).is_some_and(|(cells, class)| class.keep(cells, object))
    }
}

impl Magazines {
    /// Those of a thread of the client. What stands in them is used: an earlier thread may have
    /// left it there when the daemon was away.
    pub fn new(file: &ClientFile, thread: u16) -> Result<Self, OutOfBounds> {
        let slot = file.thread(thread)?;
        let classes =
            std::array::from_fn(|class| Magazine::new(capacity(class), &slot.magazines[class]));
        let slot = NonNull::from(slot);
        let core = Box::new(Core { slot, classes, _memory: Arc::clone(file.memory()) });
        Ok(Self { core: NonNull::from(Box::leak(core)), _thread: PhantomData })
    }

    #[inline]
    fn core(&self) -> &Core {
        // SAFETY: owned by `self`, and never borrowed mutably.
        unsafe { self.core.as_ref() }
    }

    /// Makes these the magazines that [`take`] and [`keep`] of the calling thread use for the pool
    /// numbered `pool`.
    pub fn bring_to_front(&self, pool: NonZeroU64) {
        FRONT.with(|front| front.set(pool, self.core));
    }

    /// The thread's part of the client file.
    #[inline]
    #[must_use]
    pub fn slot(&self) -> &ThreadSlot {
        self.core().slot()
    }

    /// Cells of a class that are in use.
    #[inline]
    #[must_use]
    pub fn count(&self, class: usize) -> usize {
        self.core().class(class).map_or(0, |(_, class)| class.count())
    }

    /// Whether no cell is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.core().classes.iter().all(|class| class.count() == 0)
    }

    /// What [`Self::take`] would take; 0 when the daemon has emptied that cell, or there is none.
    #[must_use]
    pub fn last(&self, class: usize) -> u64 {
        self.core().class(class).map_or(0, |(cells, class)| class.last(cells))
    }

    /// Takes an object out, which stands in the reservation record before if there is one. `None`
    /// when no cell is in use, or the daemon had emptied the last one, which is not in use any
    /// more.
    #[inline]
    #[must_use]
    pub fn take(&self, class: usize, reservation: Option<&ReservationRecord>) -> Option<u64> {
        self.core().take(class, reservation)
    }

    /// Puts a free object in; `false` when there is no room.
    #[inline]
    #[must_use]
    pub fn keep(&self, class: usize, object: u64) -> bool {
        self.core().keep(class, object)
    }

    /// Takes an object out that [`Self::keep`] has just put in; whether it still stood there.
    pub fn withdraw(&self, class: usize, object: u64) -> bool {
        self.core().withdraw(class, object)
    }

    /// Carries what stands in the inbox over into an empty magazine; returns how much that is.
    #[must_use]
    pub fn fill(&self, class: usize) -> usize {
        self.core().class(class).map_or(0, |(cells, class)| class.fill(&self.slot().inbox, cells))
    }
}

impl Drop for Magazines {
    fn drop(&mut self) {
        FRONT.with(|front| front.remove(self.core));
        // SAFETY: leaked by `new`, and pointed to by nobody else now.
        drop(unsafe { Box::from_raw(self.core.as_ptr()) });
    }
}

#[cfg(test)]
mod tests;
