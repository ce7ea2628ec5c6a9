//! Atomics facade, fences and futex of rackpool.
