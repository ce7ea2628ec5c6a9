//! What threads and processes need to wait for and wake each other: atomics, fences, sleep words,
//! futexes, eventfds and adaptive spinning. All of rackpool uses atomics through this crate, and
//! draws its random bytes and its pseudo-random numbers here.
//!
//! With `--cfg loom` the atomics are loom's. The lock-free parts of `rackpool-shm` and
//! `rackpool-ring` then run unchanged under its model checker.
#![forbid(unsafe_code)]

pub mod atomic {
    //! The atomic types and fences.
    #[cfg(not(loom))]
    pub use core::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(loom)]
    pub use loom::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

mod adaptive_spin;
pub mod barrier;
mod event_count;
#[cfg(not(loom))]
pub mod eventfd;
#[cfg(not(loom))]
pub mod futex;
mod kernel_copy;
#[cfg(not(loom))]
mod random;
mod sleep_flag;
mod split_mix;

pub use adaptive_spin::{AdaptiveSpin, Turn};
pub use event_count::{Awaited, Doorbell, EventCount, SleepWord};
pub use kernel_copy::KernelCopy;
#[cfg(not(loom))]
pub use random::random_bytes;
pub use sleep_flag::SleepFlag;
pub use split_mix::SplitMix64;
