//! Metrics that every process has. The `process_` metrics have the names that are usual for all
//! programs.

use std::fmt;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;

use crate::{Page, Unit};

/// When this process first called [`started`], at the start of its metrics, in seconds since 1970.
static STARTED: OnceLock<f64> = OnceLock::new();

/// Records the start time at the first call, and returns it in seconds since 1970.
pub(crate) fn started() -> f64 {
    *STARTED.get_or_init(|| {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
    })
}

/// Adds the build and log metrics, which have the prefix `rackpool_`.
pub(crate) fn show_build(page: &mut Page<'_>) -> fmt::Result {
    let build = [("version", env!("CARGO_PKG_VERSION")), ("commit", env!("RACKPOOL_COMMIT"))];
    page.info("build_info", "The release, and the commit that it was built from.", &build)?;
    page.counter(
        "log_lines_lost",
        "Lines of the log that could not be written.",
        Unit::None,
        rackpool_output::lost_lines(),
    )
}

/// Adds the metrics of the operating system's view of the process. Values that the system does not
/// provide are omitted.
pub(crate) fn show(page: &mut Page<'_>) -> fmt::Result {
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let seconds = seconds(usage.user_time()) + seconds(usage.system_time());
        let help = "Processor time of the process.";
        page.counter_seconds("cpu", help, seconds)?;
    }
    if let Some(bytes) = resident() {
        page.gauge("resident_memory", "Memory that the process has.", Unit::Bytes, bytes)?;
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        page.gauge("open_fds", "Open files of the process.", Unit::None, files.count() as u64)?;
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        page.gauge("max_fds", "Files that the process may have open.", Unit::None, soft)?;
    }
    let help = "When the process started, in seconds since 1970.";
    page.gauge_seconds("start_time", help, started())
}

#[expect(clippy::cast_precision_loss, reason = "a number for people")]
fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

/// Returns the resident memory in bytes, from `/proc`.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}
