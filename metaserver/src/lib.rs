//! The metadata server of rackpool.
