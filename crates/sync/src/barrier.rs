//! An asymmetric store-load barrier between processes.
//!
//! Two parties each store a word and then load the word that the other one stores. With a full
//! fence between store and load on both sides, at least one of them sees the other's store. If one
//! side does this millions of times a second and the other side a few times, the rare side can
//! execute the fence for both: it makes the kernel run a full fence on every core that runs a
//! registered process (`membarrier`, expedited), and the frequent side only needs to keep the
//! compiler from reordering. The gain is not the 2 ns of the fence itself: memory accesses before
//! and after it can overlap. See `docs/adr/0003-asymmetric-barrier.md`.

use crate::atomic::{Ordering, fence};

/// What the frequent side executes between its store and its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// A full fence. Correct with any partner.
    Full,
    /// A compiler fence. Correct only if this process is registered and the partner calls
    /// [`heavy`].
    Light,
}

impl Barrier {
    /// Executes the barrier. Call it between the store and the load.
    #[inline]
    pub fn stand(self) {
        match self {
            #[cfg(not(loom))]
            // SYNC: pairs with `heavy`.
            Self::Light => core::sync::atomic::compiler_fence(Ordering::SeqCst),
            // SYNC: pairs with `heavy`.
            _ => fence(Ordering::SeqCst),
        }
    }
}

/// Returns true if [`heavy`] reaches registered processes on this kernel.
#[cfg(not(loom))]
#[must_use]
pub fn is_supported() -> bool {
    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
    membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED)
        && membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Registers this process and returns the barrier that it may use towards a partner whose [`heavy`]
/// is supported.
#[cfg(not(loom))]
#[must_use]
pub fn register() -> Barrier {
    use rustix::thread::{MembarrierCommand, membarrier};
    match membarrier(MembarrierCommand::RegisterGlobalExpedited) {
        Ok(()) => Barrier::Light,
        Err(_) => Barrier::Full,
    }
}

/// The rare side's barrier: a full fence here and, where supported, on every core that runs a
/// registered process. Takes 1 to 3 us.
pub fn heavy() {
    // SYNC: pairs with `stand`.
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    {
        use rustix::thread::{MembarrierCommand, membarrier};
        // Where the call is not supported, no client was told to rely on it.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::Barrier as Gate;

    use super::*;
    use crate::atomic::AtomicU64;

    /// The store-buffer test: with the light barrier on one side and the heavy one on the other,
    /// the two never miss each other's store. Without the kernel call in `heavy` this test fails
    /// within a second.
    #[test]
    fn one_of_the_two_sees_the_other() {
        const ROUNDS: u64 = 20_000;
        let light = if is_supported() { register() } else { Barrier::Full };
        let cells: Arc<Vec<(AtomicU64, AtomicU64)>> =
            Arc::new((0..ROUNDS).map(|_| Default::default()).collect());
        let gate = Arc::new(Gate::new(2));
        let frequent = {
            let (cells, gate) = (Arc::clone(&cells), Arc::clone(&gate));
            std::thread::spawn(move || {
                gate.wait();
                let saw = |(mine, other): &(AtomicU64, AtomicU64)| {
                    mine.store(1, Ordering::Relaxed);
                    light.stand();
                    other.load(Ordering::Relaxed) == 1
                };
                cells.iter().map(saw).collect::<Vec<_>>()
            })
        };
        gate.wait();
        let rare: Vec<bool> = cells
            .iter()
            .map(|(other, mine)| {
                mine.store(1, Ordering::Relaxed);
                heavy();
                other.load(Ordering::Relaxed) == 1
            })
            .collect();
        let frequent = frequent.join().unwrap();
        assert!(frequent.iter().zip(&rare).all(|(a, b)| *a || *b), "both missed each other");
    }
}
