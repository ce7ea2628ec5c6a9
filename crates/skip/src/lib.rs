//! How a test reports that it can't run here: the tests of all crates use the same words.
#![forbid(unsafe_code)]

use std::io::Write;

/// Reports that a test tests nothing here, and why. Writes directly to standard error, because the
/// test harness captures the output of tests that pass.
///
/// ```
/// rackpool_skip::skipped("there is no RDMA port");
/// ```
pub fn skipped(reason: &str) {
    let line = format!("\nSKIPPED, nothing was tested: {reason}\n");
    // Standard error may be closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
