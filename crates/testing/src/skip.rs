//! How a test reports that it can't run here: the tests of all crates use the same words.

use std::fs::OpenOptions;
use std::io::Write;

/// The variable that names the file in which skipped tests are counted, a line for each.
pub const VARIABLE: &str = "RACKPOOL_SKIPPED";

/// Reports that a test tests nothing here, and why. Writes directly to standard error, because the
/// test harness captures the output of tests that pass, and to the file that [`VARIABLE`] names, so
/// that `cargo x ci` counts it.
///
/// ```no_run
/// rackpool_testing::skipped("there is no RDMA port");
/// ```
pub fn skipped(reason: &str) {
    let line = format!("\nSKIPPED, nothing was tested: {reason}\n");
    // Standard error may be closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(VARIABLE) {
        let line = format!("{}\n", reason.replace('\n', " "));
        let file = OpenOptions::new().create(true).append(true).open(path);
        // The line on standard error stands in any case.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
