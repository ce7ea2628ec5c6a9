//! Values that several commands write with `--json`: docs/design/seeing.md.

use rackpool_output::clock::utc_millis;

#[expect(clippy::cast_precision_loss, reason = "a number for people")]
pub(super) fn degrees(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

pub(super) fn hex(number: u64) -> String {
    format!("{number:x}")
}

/// `2026-11-27T22:03:04.120Z`
pub(super) fn iso(unix_ms: u64) -> String {
    utc_millis(unix_ms).replace(' ', "T") + "Z"
}
