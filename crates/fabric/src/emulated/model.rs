use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::FabricStartError;

/// The longest latency. It keeps every due time within [`LATEST_DUE_NS`] of the present.
const MAX_LATENCY: Duration = Duration::from_secs(10);
/// The lowest bandwidth that can be emulated, in Gbit/s.
pub const MIN_BANDWIDTH_GBPS: f64 = 0.001;

/// Upper bound of the time, in ns, until a message of an honest peer is due. A full ring takes 8.4
/// s at the lowest bandwidth, plus the latency.
pub(super) const LATEST_DUE_NS: u64 = 60_000_000_000;

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

/// Latency and bandwidth of the emulated hardware.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    latency_ns: u64,
    ps_per_byte: u64,
}

/// The direction of a poster's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the peer: writes and messages.
    Out,
    /// From the peer: reads.
    In,
}

/// The modelled wire of one end of a link, with the times until which it is busy.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    speed: Speed,
    out_busy_until_ns: u64,
    in_busy_until_ns: u64,
    last_due_ns: u64,
}

impl Speed {
    pub(super) fn new(latency: Duration, bandwidth_gbps: f64) -> Result<Self, FabricStartError> {
        if latency > MAX_LATENCY {
            return Err(FabricStartError::Option {
                option: "latency",
                value: format!("{latency:?}"),
                expected: "at most 10 s",
            });
        }
        if bandwidth_gbps.is_nan() || bandwidth_gbps < MIN_BANDWIDTH_GBPS {
            return Err(FabricStartError::Option {
                option: "bandwidth_gbps",
                value: bandwidth_gbps.to_string(),
                expected: "0.001 or more",
            });
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 10 s in ns")]
        let latency_ns = latency.as_nanos() as u64;
        #[expect(clippy::cast_possible_truncation, reason = "from 0 to 8,000,000, checked above")]
        let ps_per_byte = (8000.0 / bandwidth_gbps).round() as u64;
        Ok(Self { latency_ns, ps_per_byte })
    }

    fn transfer_ns(self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.ps_per_byte).div_ceil(1000)
    }
}

impl Wire {
    pub(super) fn new(speed: Speed) -> Self {
        Self { speed, out_busy_until_ns: 0, in_busy_until_ns: 0, last_due_ns: 0 }
    }

    /// Puts bytes on the wire. Returns the due time, in ns, at which their message arrives or their
    /// operation completes. Due times never decrease, across both directions.
    pub(super) fn schedule(&mut self, now_ns: u64, direction: Direction, bytes: u64) -> u64 {
        let busy_until_ns = match direction {
            Direction::Out => &mut self.out_busy_until_ns,
            Direction::In => &mut self.in_busy_until_ns,
        };
        *busy_until_ns = now_ns.max(*busy_until_ns).saturating_add(self.speed.transfer_ns(bytes));
        let due_ns = busy_until_ns.saturating_add(self.speed.latency_ns).max(self.last_due_ns);
        self.last_due_ns = due_ns;
        due_ns
    }

    /// The time, in ns, at which all but the last `left` bytes of an operation with this due time
    /// are moved. A card moves the bytes as they pass the wire and reports them later; here the
    /// bytes move half of the latency before they are reported.
    pub(super) fn moves_at(&self, due_ns: u64, left: u64) -> u64 {
        due_ns
            .saturating_sub(self.speed.latency_ns / 2)
            .saturating_sub(self.speed.transfer_ns(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(latency_us: u64, gbps: f64) -> Wire {
        Wire::new(Speed::new(Duration::from_micros(latency_us), gbps).unwrap())
    }

    #[test]
    fn bytes_of_one_direction_wait_for_each_other() {
        let mut wire = wire(2, 100.0);
        // 1250 B at 100 Gbit/s take 100 ns.
        assert_eq!(wire.schedule(1000, Direction::Out, 1250), 1000 + 100 + 2000);
        assert_eq!(wire.schedule(1000, Direction::Out, 1250), 1000 + 200 + 2000);
        assert_eq!(wire.schedule(1000, Direction::In, 2500), 1000 + 200 + 2000);
        assert_eq!(wire.schedule(9000, Direction::In, 1250), 9000 + 100 + 2000);
    }

    #[test]
    fn a_small_read_does_not_overtake_a_large_write() {
        let mut wire = wire(0, 8.0);
        let write = wire.schedule(0, Direction::Out, 1 << 20);
        assert_eq!(wire.schedule(0, Direction::In, 1), write);
    }

    #[test]
    fn bytes_move_while_the_others_pass_the_wire_and_before_it_is_told() {
        let mut wire = wire(2, 100.0);
        let due = wire.schedule(1000, Direction::In, 2500);
        assert_eq!(due, 1000 + 200 + 2000);
        assert_eq!(wire.moves_at(due, 1250), 1000 + 100 + 1000, "half of it has passed");
        assert_eq!(wire.moves_at(due, 0), 1000 + 200 + 1000);
        assert_eq!(wire.moves_at(due, u64::MAX), 0);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let speed = |seconds, gbps| Speed::new(Duration::from_secs(seconds), gbps);
        assert!(speed(11, 1.0).is_err());
        for gbps in [0.0, -1.0, f64::NAN, 0.0001] {
            assert!(speed(0, gbps).is_err());
        }
        assert_eq!(speed(0, f64::INFINITY).unwrap().transfer_ns(u64::MAX), 0);
    }
}
