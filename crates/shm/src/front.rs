use std::cell::Cell;
use std::num::NonZeroU64;
use std::ptr::NonNull;

use crate::permit::Permit;

/// A number that no pool and no permit has. It is not 0, the value of a revoked permit.
pub(crate) const NONE: u64 = u64::MAX;

/// The object of one kind that a thread used last, and the number of its pool. In a constant
/// `thread_local!` it is found with two instructions. It does not own the object.
#[derive(Debug)]
pub struct Front<T> {
    /// [`NONE`] if there is no object.
    pool: Cell<u64>,
    thing: Cell<NonNull<T>>,
}

impl<T> Front<T> {
    /// An empty front.
    #[must_use]
    pub const fn none() -> Self {
        Self { pool: Cell::new(NONE), thing: Cell::new(NonNull::dangling()) }
    }

    /// Puts an object of the pool with the number `pool` to the front. The caller must call
    /// [`Self::remove`] before the object is dropped.
    pub fn set(&self, pool: NonZeroU64, thing: NonNull<T>) {
        self.pool.set(pool.get());
        self.thing.set(thing);
    }

    /// Removes an object from the front, if it is there.
    pub fn remove(&self, thing: NonNull<T>) {
        if self.thing.get() == thing {
            self.pool.set(NONE);
            self.thing.set(NonNull::dangling());
        }
    }

    /// Returns the object at the front if its pool is the one that `permit` allows.
    ///
    /// # Safety
    /// Every object passed to [`Self::set`] must be removed before it is dropped, and must be
    /// neither borrowed mutably nor dropped while the reference is used.
    #[inline]
    pub unsafe fn get<'a>(&self, permit: &Permit) -> Option<&'a T>
    where
        T: 'a,
    {
        if self.pool.get() != permit.pool() {
            return None;
        }
        // SAFETY: no permit has the number `NONE`, so a pool was set with an object; by the
        // caller's promise the object still exists.
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
        // SAFETY: the numbers outlive the front and do not change.
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
