//! The client library of rackpool.
