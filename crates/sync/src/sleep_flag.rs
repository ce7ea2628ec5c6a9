use crate::atomic::{AtomicU32, Ordering, fence};

/// Tells producers whether the owner sleeps, so that they wake it only then.
///
/// The owner sets the flag, checks a last time for work, and only then sleeps. A producer pushes
/// work and then loads the flag. Both sides execute a full fence in between, so at least one of
/// them sees the other's store: no pushed work is missed by a sleeping owner.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SleepFlag(AtomicU32);

impl SleepFlag {
    /// Announces that the owner will sleep. The owner must check for work once more after this call
    /// and before it sleeps.
    pub fn set(&self) {
        self.0.store(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `must_ring`.
        fence(Ordering::SeqCst);
    }

    /// Announces that the owner is awake. The owner must check all its sources of work after this
    /// call.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns true if the flag is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }

    /// Returns true if the owner must be woken. Call it after pushing work. `is_set` loads the
    /// flag; it is a parameter because a producer may see the flag in memory that it can only read.
    #[must_use]
    pub fn must_ring(is_set: impl FnOnce() -> bool) -> bool {
        // SYNC: pairs with the fence in `SleepFlag::set`.
        fence(Ordering::SeqCst);
        is_set()
    }
}
