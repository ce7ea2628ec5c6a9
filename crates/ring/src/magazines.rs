//! A thread's magazines in the client file, which hold free objects for its next allocations. There
//! is one for each size class, named by the class's index; a class without a magazine has an empty
//! one of capacity 0.
//!
//! The file is authoritative: the daemon may have cleared a cell that counts as in use here; such a
//! cell is not handed out. The state beside it only makes access fast.

use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_shm::permit::Permit;
use rackpool_shm::window::{self, Note};
use rackpool_shm::{Front, Mapping, OutsideMapping};
use rackpool_sync::atomic::AtomicU64;

use crate::client_file::{ClientFile, MAGAZINE, MAGAZINE_CLASSES, ThreadSlot};
use crate::magazine::Magazine;
use crate::reservation::ReservationRecord;

/// log2 of the bytes that a magazine may hold; it limits the number of large objects.
const MAGAZINE_BITS: usize = 20;
/// log2 of the object size of magazine 0; each further magazine's size is twice the one before.
const SMALLEST_BITS: usize = 4;

/// Number of objects that the magazine of a size class (its index) can hold; 0 for a class without
/// a magazine.
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
    /// Owned. A raw pointer, because [`FRONT`] may hold it too.
    core: NonNull<MagazinesCore>,
    /// `FRONT` is thread-local, so this value must not leave its thread.
    _thread: PhantomData<*const ()>,
}

#[derive(Debug)]
struct MagazinesCore {
    /// Invariant: points into `_memory`.
    slot: NonNull<ThreadSlot>,
    classes: [Magazine; MAGAZINE_CLASSES],
    _memory: Arc<Mapping>,
}

thread_local! {
    /// The magazines that this thread used last.
    static FRONT: Front<MagazinesCore> = const { Front::none() };
}

/// Returns the core in `FRONT` if it belongs to the pool of `permit`.
///
/// # Safety
/// While the reference is used, no magazines of the calling thread may be dropped.
#[inline]
unsafe fn front<'a>(permit: &Permit) -> Option<&'a MagazinesCore> {
    // SAFETY: a core is never borrowed mutably, and `drop` removes it from `FRONT` first; the rest
    // is the caller's promise.
    FRONT.with(|front| unsafe { front.get(permit) })
}

/// Pops an object of `class` from the calling thread's front magazines, and marks it as the
/// program's. Returns `None` if the thread's front window can't mark it, if the front magazines are
/// of another pool than `permit`'s, or if they have no such object.
#[inline]
#[must_use]
pub fn take(permit: &Permit, class: usize) -> Option<u64> {
    take_marked(permit, class, |object| window::hand_out(permit, object))
}

/// [`take`], with `mark` in place of the front window. `mark` must not drop magazines.
#[inline]
fn take_marked(permit: &Permit, class: usize, mark: impl FnOnce(u64) -> bool) -> Option<u64> {
    // SAFETY: the callers in this module pass no `mark` that drops magazines.
    let (cells, class) = unsafe { front(permit) }?.class(class)?;
    class.take(cells, mark)
}

/// Removes an object that [`keep`] has just pushed. Returns true if it was still there.
#[cold]
pub fn withdraw(permit: &Permit, class: usize, object: u64) -> bool {
    // SAFETY: nothing here drops magazines.
    unsafe { front(permit) }.is_some_and(|core| core.withdraw(class, object))
}

/// Pushes a free object to the calling thread's front magazines. Returns false if they are of
/// another pool or full.
#[inline]
#[must_use]
pub fn keep(permit: &Permit, class: usize, object: u64) -> bool {
    // SAFETY: nothing here drops magazines.
    unsafe { front(permit) }.is_some_and(|core| core.keep(class, object))
}

/// Notes a free object in the calling thread's front magazines: [`keep`].
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a>(pub &'a Permit);

// SAFETY: `keep` knows no window.
unsafe impl Note for Keep<'_> {
    #[inline]
    fn note(self, class: usize, object: u64) -> bool {
        keep(self.0, class, object)
    }
}

impl MagazinesCore {
    #[inline]
    fn slot(&self) -> &ThreadSlot {
        // SAFETY: the invariant of `slot`; `ThreadSlot` is `Shared`.
        unsafe { self.slot.as_ref() }
    }

    /// The cells of a magazine and its state.
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
    /// The magazines of a thread slot. Objects that an earlier thread left in them while the daemon
    /// was down are used.
    pub fn new(file: &ClientFile, thread: u16) -> Result<Self, OutsideMapping> {
        let slot = file.thread(thread)?;
        let classes =
            std::array::from_fn(|class| Magazine::new(capacity(class), &slot.magazines[class]));
        let slot = NonNull::from(slot);
        let core = Box::new(MagazinesCore { slot, classes, _memory: Arc::clone(file.memory()) });
        Ok(Self { core: NonNull::from(Box::leak(core)), _thread: PhantomData })
    }

    #[inline]
    fn core(&self) -> &MagazinesCore {
        // SAFETY: `self` owns the core, which is never borrowed mutably.
        unsafe { self.core.as_ref() }
    }

    /// Makes these the magazines that the functions [`take`] and [`keep`] use in the calling
    /// thread, for the pool with the number `pool`.
    pub fn bring_to_front(&self, pool: NonZeroU64) {
        FRONT.with(|front| front.set(pool, self.core));
    }

    /// The thread's slot in the client file.
    #[inline]
    #[must_use]
    pub fn slot(&self) -> &ThreadSlot {
        self.core().slot()
    }

    /// Number of cells in use in a magazine.
    #[inline]
    #[must_use]
    pub fn count(&self, class: usize) -> usize {
        self.core().class(class).map_or(0, |(_, class)| class.count())
    }

    /// Returns true if no cell is in use in any magazine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.core().classes.iter().all(|class| class.count() == 0)
    }

    /// Returns the object that [`Self::take`] would pop; 0 if there is none or the daemon has
    /// cleared that cell.
    #[must_use]
    pub fn last(&self, class: usize) -> u64 {
        self.core().class(class).map_or(0, |(cells, class)| class.last(cells))
    }

    /// Pops an object. If `reservation` is given, notes the object there first. Returns `None` if
    /// no cell is in use, or if the daemon has cleared the last one; a cleared cell is then no
    /// longer in use.
    #[inline]
    #[must_use]
    pub fn take(&self, class: usize, reservation: Option<&ReservationRecord>) -> Option<u64> {
        self.core().take(class, reservation)
    }

    /// Pushes a free object. Returns false if the magazine is full.
    #[inline]
    #[must_use]
    pub fn keep(&self, class: usize, object: u64) -> bool {
        self.core().keep(class, object)
    }

    /// Removes an object that [`Self::keep`] has just pushed. Returns true if it was still there.
    pub fn withdraw(&self, class: usize, object: u64) -> bool {
        self.core().withdraw(class, object)
    }

    /// Moves the objects of the inbox into an empty magazine. Returns their number.
    #[must_use]
    pub fn fill(&self, class: usize) -> usize {
        self.core().class(class).map_or(0, |(cells, class)| class.fill(&self.slot().inbox, cells))
    }
}

impl Drop for Magazines {
    fn drop(&mut self) {
        FRONT.with(|front| front.remove(self.core));
        // SAFETY: leaked by `new`; removed from `FRONT` above, so no other pointer to it exists.
        drop(unsafe { Box::from_raw(self.core.as_ptr()) });
    }
}

#[cfg(test)]
mod tests;
