//! The rack daemon of rackpool.
