//! How long idle processors of the host may take to wake. A daemon that sleeps is woken by each
//! request, and on hosts whose processors sleep deeply, or are virtual, that takes longer than all
//! the rest.

use std::fs::File;
use std::io::Write;

use anyhow::Context;

/// The kernel's quality of service for that: what is written to it holds as long as it is open.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// A bound that holds until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct WakeLatency {
    _held: File,
}

impl WakeLatency {
    /// Asks for a bound in microseconds, of all processors of the host; of all such wishes the
    /// lowest counts.
    pub(crate) fn hold(microseconds: u32) -> anyhow::Result<Self> {
        // Eight hexadecimal digits: four bytes would be a number in the kernel's own order.
        let bound = format!("{:08x}", microseconds.min(i32::MAX.unsigned_abs()));
        let open = || {
            let mut device = File::options().write(true).open(DEVICE)?;
            device.write_all(bound.as_bytes())?;
            Ok::<_, std::io::Error>(device)
        };
        let held = open().with_context(|| {
            format!(
                "--wake-latency-us {microseconds} can't be had from {DEVICE}: let the daemon's user write that (docs/operating.md, \"Processors that are slow to wake\"), or leave it out"
            )
        })?;
        Ok(Self { _held: held })
    }
}
