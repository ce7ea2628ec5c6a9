//! The emulated fabric against the suite for all providers.

mod common;

rackpool_fabric::conformance_tests!(crate::common::Emulated::new());
