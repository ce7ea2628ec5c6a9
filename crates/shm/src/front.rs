use std::cell::Cell;
use std::num::NonZeroU64;
use std::ptr::NonNull;

use crate::permit::Permit;

/// The number of no pool; not 0, which a permit has that was revoked. No permit has it.
pub(crate) const NONE: u64 = u64::MAX;

/// What a thread used last of its things of one kind, and the pool that belongs to. In a constant
/// `thread_local!` it is found with two instructions; nothing is dropped with it.
#[derive(Debug)]
pub struct Front<T> {
    /// [`NONE`]: there is none.
    pool: Cell<u64>,
    thing: Cell<NonNull<T>>,
}

impl<T> Front<T> {
    /// Nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self { pool: Cell::new(NONE), thing: Cell::new(NonNull::dangling()) }
    }

    /// Brings a thing of the pool numbered `pool` to the front. [`Self::remove`] has to follow
    /// before it is dropped.
    pub fn set(&self, pool: NonZeroU64, thing: NonNull<T>) {
        self.pool.set(pool.get());
        self.thing.set(thing);
    }

    /// Takes a thing away from the front, if it is there.
    pub fn remove(&self, thing: NonNull<T>) {
        if self.thing.get() == thing {
            self.pool.set(NONE);
            self.thing.set(NonNull::dangling());
        }
    }

    /// The thing at the front, if it is of the pool that may be used.
    ///
    /// # Safety
    /// Whatever [`Self::set`] has brought there was removed before it was dropped, and is neither
    /// borrowed mutably nor dropped while the reference is used.
    #[inline]
    pub unsafe fn get<'a>(&self, permit: &Permit) -> Option<&'a T>
    where
        T: 'a,
    {
        if self.pool.get() != permit.pool() {
            return None;
        }
        // SAFETY: the caller's promise: no permit names `NONE`, so another pool was set with a
        // thing that still exists.
        Some(unsafe { self.thing.get().as_ref() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_front_and_of_the_pool_is_found() {
        let (first, second) = (NonZeroU64::MIN, NonZeroU64::MIN.saturating_add(1));
        let (mut one, mut other) = (1, 2);
        let (one, other) = (NonNull::from(&mut one), NonNull::from(&mut other));
        let front = Front::none();
        // SAFETY: the numbers outlive the front, and nobody changes them.
        let found = |pool| unsafe { front.get(&Permit::new(pool).unwrap()) }.copied();
        assert_eq!(found(first), None);
        front.set(first, one);
        assert_eq!((found(first), found(second)), (Some(1), None));
        front.set(second, other);
        assert_eq!((found(first), found(second)), (None, Some(2)));
        front.remove(one);
        assert_eq!(found(second), Some(2), "another one was removed");
        front.remove(other);
        assert_eq!(found(second), None);
        front.set(first, one);
        let revoked = Permit::new(first).unwrap();
        revoked.revoke();
        // SAFETY: as above.
        assert_eq!(unsafe { front.get(&revoked) }, None);
    }
}
