//! Atomics, fences, futex and adaptive spinning. All of rackpool uses atomics through this crate.
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
#[cfg(not(loom))]
pub mod futex;
mod sleep_flag;

pub use adaptive_spin::{AdaptiveSpin, Turn};
pub use sleep_flag::SleepFlag;
