//! A delay of some nanoseconds: the extra latency of emulated CXL memory.
//!
//! CXL memory is slower than a processor's own memory. Machines without CXL emulate it, as the Rcmp
//! paper does, by memory that is about 50 ns slower (a remote NUMA node); on a machine without a
//! second node this delay takes its place. Each access waits once, however long it is: only the
//! first line of a real access pays the distance, the following lines overlap. An access of up to
//! 64 B therefore pays one latency, and bandwidth is unchanged.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

use crate::superblock::Superblock;
use crate::{OutsideMapping, ReadOnlyMapping};

/// Longest extra latency, in nanoseconds; slower memory does not exist.
pub const MAX_NS: u32 = 10_000;

/// A delay by a fixed number of turns of a loop whose turns depend on each other. A turn takes one
/// or two nanoseconds, which is its accuracy; reading a clock would take 20 ns by itself.
///
/// ```
/// use rackpool_shm::delay::ExtraLatency;
/// assert_eq!(ExtraLatency::from_ns(0), ExtraLatency::NONE);
/// ExtraLatency::from_ns(50).wait(); // about 50 ns
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraLatency {
    turns: u32,
}

impl ExtraLatency {
    /// No delay: costs one comparison.
    pub const NONE: Self = Self { turns: 0 };

    /// A delay of about `ns` nanoseconds on this computer, at most [`MAX_NS`]. The first call with
    /// more than 0 calibrates the loop, which takes about 2 ms.
    #[must_use]
    pub fn from_ns(ns: u32) -> Self {
        static TURNS_PER_NS: OnceLock<f64> = OnceLock::new();
        if ns == 0 {
            return Self::NONE;
        }
        let turns = f64::from(ns.min(MAX_NS)) * TURNS_PER_NS.get_or_init(calibrate);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and casts from float saturate"
        )]
        Self { turns: (turns.round() as u32).max(1) }
    }

    /// The latency that the daemon has noted in the rack's metadata.
    ///
    /// ```
    /// use rackpool_shm::delay::ExtraLatency;
    /// use rackpool_shm::{OutsideMapping, ReadOnlyMapping};
    /// fn extra_latency(metadata: &ReadOnlyMapping) -> Result<ExtraLatency, OutsideMapping> {
    ///     ExtraLatency::noted_in(metadata)
    /// }
    /// ```
    pub fn noted_in(metadata: &ReadOnlyMapping) -> Result<Self, OutsideMapping> {
        let ns = metadata.load(Superblock::EXTRA_LATENCY_OFFSET)?;
        Ok(Self::from_ns(u32::try_from(ns).unwrap_or(MAX_NS)))
    }

    /// Returns true if there is no delay.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.turns == 0
    }

    /// Waits.
    #[inline]
    pub fn wait(self) {
        if !self.is_none() {
            #[cfg(test)]
            WAITS.with(|waits| waits.set(waits.get() + 1));
            turn(self.turns);
        }
    }
}

#[cfg(test)]
thread_local! {
    static WAITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Number of delays of the calling thread, for tests.
#[cfg(test)]
pub(crate) fn waits() -> u64 {
    WAITS.with(std::cell::Cell::get)
}

/// Never inlined, so that the calibrated loop is the one that waits. A turn is six dependent
/// operations in registers (Marsaglia's xorshift); memory operations would make its time depend on
/// the processor's predictions.
#[inline(never)]
fn turn(count: u32) {
    // Without this fence the processor would execute the loop while it waits for the access before:
    // the longer of the two times would count, not their sum.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2; a fence touches no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    let mut value = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..count {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    black_box(value);
}

/// Turns per nanosecond: the most of eleven measurements of about 0.2 ms each, because any
/// disturbance only slows a measurement down.
fn calibrate() -> f64 {
    const TURNS: u32 = 100_000;
    let measure = |_| {
        let start = Instant::now();
        turn(TURNS);
        f64::from(TURNS) / (start.elapsed().as_secs_f64() * 1e9).max(1.0)
    };
    (0..11).map(measure).fold(f64::MIN_POSITIVE, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;

    /// The shortest of many measurements in ns, because any disturbance only lengthens one.
    fn measured_ns(latency: ExtraLatency) -> f64 {
        const WAITS: u32 = 1000;
        let measure = |_| {
            let start = Instant::now();
            for _ in 0..WAITS {
                black_box(latency).wait();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(WAITS)
        };
        (0..100).map(measure).fold(f64::MAX, f64::min)
    }

    #[test]
    fn it_waits_about_as_long_as_asked() {
        for ns in [50, 200, 1000] {
            let found = measured_ns(ExtraLatency::from_ns(ns));
            println!("{ns} ns asked, {found:.1} ns waited");
            let asked = f64::from(ns);
            // The clock rate of a core changes under load: wide bounds.
            assert!(
                found > asked * 0.6 - 10.0 && found < asked * 1.6 + 15.0,
                "{ns}: {found:.1} ns"
            );
        }
    }

    #[test]
    fn what_the_daemon_noted_is_found() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let (daemon, client) =
            (Mapping::new(&file, 4096).unwrap(), ReadOnlyMapping::new(&file, 4096).unwrap());
        assert_eq!(ExtraLatency::noted_in(&client), Ok(ExtraLatency::NONE));
        daemon.view::<Superblock>(0).unwrap().set_extra_latency_ns(50);
        assert_eq!(ExtraLatency::noted_in(&client), Ok(ExtraLatency::from_ns(50)));
        daemon.write(Superblock::EXTRA_LATENCY_OFFSET, &[0xff; 8]).unwrap();
        assert_eq!(ExtraLatency::noted_in(&client), Ok(ExtraLatency::from_ns(MAX_NS)));
    }

    #[test]
    fn off_costs_next_to_nothing_and_too_much_is_cut() {
        assert!(ExtraLatency::from_ns(0).is_none() && ExtraLatency::default().is_none());
        assert!(measured_ns(ExtraLatency::NONE) < 10.0);
        assert_eq!(ExtraLatency::from_ns(u32::MAX), ExtraLatency::from_ns(MAX_NS));
        assert!(!ExtraLatency::from_ns(1).is_none());
    }
}
