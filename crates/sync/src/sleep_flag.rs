use crate::atomic::{AtomicU32, Ordering, fence};

/// Says that its owner sleeps, to those who push something for it and otherwise need not wake it.
///
/// The owner sets the flag, then looks a last time whether there is anything to do, and only then
/// sleeps. The others push, then look at the flag. With a full fence on both sides at least one
/// sees the other: nothing that was pushed is slept through.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SleepFlag(AtomicU32);

impl SleepFlag {
    /// The owner is about to sleep, unless there turns out to be something to do after this.
    pub fn set(&self) {
        self.0.store(1, Ordering::Relaxed);
        // SYNC: pairs with the fence in `must_ring`.
        fence(Ordering::SeqCst);
    }

    /// The owner is awake. It looks at everything again afterwards.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// What the flag says.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 1
    }

    /// Whether the owner has to be woken, after something was pushed for it. `is_set` looks at the
    /// flag: others may have it in memory that they can only read.
    #[must_use]
    pub fn must_ring(is_set: impl FnOnce() -> bool) -> bool {
        // SYNC: pairs with the fence in `SleepFlag::set`.
        fence(Ordering::SeqCst);
        is_set()
    }
}
