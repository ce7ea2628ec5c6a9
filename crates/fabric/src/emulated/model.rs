use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::FabricStartError;

/// The longest latency. It keeps every due time within [`LATEST_DUE_NS`] of the present.
const MAX_LATENCY: Duration = Duration::from_secs(10);
/// The lowest bandwidth that can be emulated, in Gbit/s.
pub const MIN_BANDWIDTH_GBPS: f64 = 0.001;
/// Time of a byte on the wire at the lowest bandwidth.
pub(super) const MAX_PS_PER_BYTE: u64 = 8_000_000;

/// Upper bound of the time, in ns, until a message of an honest peer is due, and for which a card
/// is busy. Full rings of 255 peers take 36 minutes at the lowest bandwidth, plus the latency.
pub(super) const LATEST_DUE_NS: u64 = 3_600_000_000_000;

/// CLOCK_MONOTONIC in ns, which all processes of the host share.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let ns = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + ns
}

/// The time of one poll. Read at first use, because an idle poll does not need the time.
#[derive(Default)]
pub(super) struct Clock(Option<u64>);

impl Clock {
    pub(super) fn now_ns(&mut self) -> u64 {
        *self.0.get_or_insert_with(now_ns)
    }
}

/// Checks a latency and converts it to ns.
pub(super) fn latency_ns(latency: Duration) -> Result<u64, FabricStartError> {
    if latency > MAX_LATENCY {
        return Err(FabricStartError::Option {
            option: "latency",
            value: format!("{latency:?}"),
            expected: "at most 10 s",
        });
    }
    #[expect(clippy::cast_possible_truncation, reason = "at most 10 s in ns")]
    Ok(latency.as_nanos() as u64)
}

/// Checks a bandwidth and converts it to the time of a byte on the wire.
pub(super) fn ps_per_byte(bandwidth_gbps: f64) -> Result<u64, FabricStartError> {
    if bandwidth_gbps.is_nan() || bandwidth_gbps < MIN_BANDWIDTH_GBPS {
        return Err(FabricStartError::Option {
            option: "bandwidth_gbps",
            value: bandwidth_gbps.to_string(),
            expected: "0.001 or more",
        });
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to MAX_PS_PER_BYTE, checked above"
    )]
    Ok((8000.0 / bandwidth_gbps).round() as u64)
}

/// Time of bytes on a wire, in ns.
pub(super) const fn transfer_ns(bytes: u64, ps_per_byte: u64) -> u64 {
    bytes.saturating_mul(ps_per_byte).div_ceil(1000)
}

/// The time at which bytes that take `cost_ns` have passed a direction that earlier bytes occupy
/// until `busy_until_ns`. A peer may have written any time: one that no honest rack reaches counts
/// as none.
pub(super) fn passed_by(busy_until_ns: u64, now_ns: u64, cost_ns: u64) -> u64 {
    let is_possible = busy_until_ns <= now_ns.saturating_add(LATEST_DUE_NS);
    let start_ns = if is_possible { busy_until_ns.max(now_ns) } else { now_ns };
    start_ns.saturating_add(cost_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_cannot_be_does_not_stall_a_card() {
        assert_eq!(passed_by(0, 1000, 5), 1005);
        assert_eq!(passed_by(1200, 1000, 5), 1205);
        assert_eq!(passed_by(u64::MAX, 1000, 5), 1005);
        assert_eq!(passed_by(u64::MAX, u64::MAX, 5), u64::MAX);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        assert!(latency_ns(Duration::from_secs(11)).is_err());
        assert_eq!(latency_ns(MAX_LATENCY).unwrap(), 10_000_000_000);
        for gbps in [0.0, -1.0, f64::NAN, 0.0001] {
            assert!(ps_per_byte(gbps).is_err());
        }
        assert_eq!(ps_per_byte(MIN_BANDWIDTH_GBPS).unwrap(), MAX_PS_PER_BYTE);
        assert_eq!(transfer_ns(u64::MAX, ps_per_byte(f64::INFINITY).unwrap()), 0);
    }
}
