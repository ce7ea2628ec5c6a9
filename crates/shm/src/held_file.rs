use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::mapping::{Mapping, OutsideMapping, Shared};

/// A view of a `T` that keeps its mapping alive. The bounds are checked once; an access then costs
/// no more than through a reference.
///
/// ```
/// use std::sync::Arc;
/// use rackpool_shm::{HeldView, Mapping};
/// use rackpool_sync::atomic::{AtomicU64, Ordering};
///
/// # fn demo(memory: Mapping) -> Result<(), rackpool_shm::OutsideMapping> {
/// let counter: HeldView<AtomicU64> = HeldView::new(&Arc::new(memory), 64)?;
/// counter.fetch_add(1, Ordering::Relaxed);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct HeldView<T> {
    at: NonNull<T>,
    /// The mapping that `at` points into.
    _memory: Arc<Mapping>,
}

// SAFETY: it gives out only `&T`, into memory that stays mapped whichever thread owns it.
unsafe impl<T: Sync> Send for HeldView<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Sync> Sync for HeldView<T> {}

impl<T: Shared> HeldView<T> {
    /// A view of the `T` at `offset` (bytes).
    pub fn new(memory: &Arc<Mapping>, offset: u64) -> Result<Self, OutsideMapping> {
        let at = NonNull::from(memory.view::<T>(offset)?);
        Ok(Self { at, _memory: Arc::clone(memory) })
    }
}

impl<T> Deref for HeldView<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `at` was a `&T` into the mapping, which lives as long as `self`.
        unsafe { self.at.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use rackpool_sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn it_outlives_every_other_owner_of_its_mapping() {
        let folder = tempfile::tempdir().unwrap();
        let file = crate::file::create(&folder.path().join("memory"), 4096).unwrap();
        let memory = Arc::new(Mapping::new(&file, 4096).unwrap());
        memory.write(4088, &7_u64.to_le_bytes()).unwrap();
        let held: HeldView<AtomicU64> = HeldView::new(&memory, 4088).unwrap();
        assert!(HeldView::<AtomicU64>::new(&memory, 4089).is_err(), "not aligned");
        assert!(HeldView::<AtomicU64>::new(&memory, 4096).is_err(), "behind the end");
        drop(memory);
        let there = std::thread::spawn(move || held.fetch_add(1, Ordering::Relaxed));
        assert_eq!(there.join().unwrap(), 7);
    }
}
