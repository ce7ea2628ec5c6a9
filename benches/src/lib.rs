//! Benchmarks of rackpool, each beside its limit.
