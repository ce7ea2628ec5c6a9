//! The wake-up latency of the host's idle processors. Each request wakes a sleeping daemon. On
//! hosts whose processors enter deep sleep states, or are virtual, the wake-up takes longer than
//! the rest of the request.

use std::fs::File;
use std::io::Write;

use anyhow::Context;

/// The kernel's PM QoS device. A value written to it holds while the file is open.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// A latency bound that holds until this value is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct WakeLatency {
    _held: File,
}

impl WakeLatency {
    /// Requests a bound in microseconds for all processors of the host. The kernel applies the
    /// lowest of all requested bounds.
    pub(crate) fn hold(microseconds: u32) -> anyhow::Result<Self> {
        // Eight hexadecimal digits. Four bytes would be read as a binary number in native byte
        // order.
        let bound = format!("{:08x}", microseconds.min(i32::MAX.unsigned_abs()));
        let open = || {
            let mut device = File::options().write(true).open(DEVICE)?;
            device.write_all(bound.as_bytes())?;
            Ok::<_, std::io::Error>(device)
        };
        let held = open().with_context(|| {
            format!(
                "--wake-latency-us {microseconds} can't be requested from {DEVICE}: allow the daemon's user to write to it (docs/operating.md, \"Processors that are slow to wake\"), or omit the option"
            )
        })?;
        Ok(Self { _held: held })
    }
}
