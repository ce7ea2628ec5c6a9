use std::time::{Duration, Instant};

use crate::message::MAX_INLINE;
use crate::{Mode, Thresholds};

/// Sizes to be measured, in bytes; the largest two in the one-sided modes only. Larger sizes are
/// extrapolated from these two. They are far apart, and the last is not far below 4 MiB, so an
/// error in either hardly changes the slope.
const SIZES: [u32; 7] = [8, 512, 4 << 10, 16 << 10, 48 << 10, 256 << 10, 2 << 20];
/// The largest answer to a probe, in bytes.
pub(crate) const LARGEST_PROBE: u32 = SIZES[SIZES.len() - 1];
const REPETITIONS: usize = 16;
/// The number of repetitions that also measure long data.
const LONG_REPETITIONS: usize = 5;
/// The number of times that each probe is sent in a row: a mode is fastest when it was just used.
/// Over TCP, two in a row made writes appear twice as slow as they are in the long run.
const IN_A_ROW: usize = 6;
const LONG: u32 = 256 << 10;
/// Time for which measuring continues after the first repetition, which does not count. Over TCP,
/// all repetitions take 100 ms, and several times that if other work competes for the cores. In
/// such a case a limit of 100 ms allowed two repetitions, and the mode found to be the best was up
/// to 17 % slower than another.
const TIME: Duration = Duration::from_millis(250);
/// Time after which even the first repetition is abandoned; requests continue with the current
/// thresholds.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);
/// Factor by which the loss may exceed the minimum in favour of the mode with fewer messages and
/// operations. The measurements are not more precise than this.
const WORTH_IT: f64 = 1.02;
/// The number of sizes for which the thresholds are optimised: 8 B to 4 MiB, two for each doubling.
const GRID: usize = 39;

/// One attempt to measure the modes over one endpoint.
#[derive(Debug)]
pub(crate) struct Calibration {
    /// When the attempt ends, whatever has been measured.
    until: Instant,
    /// The largest answer to request, in bytes.
    most: u32,
    /// When every probe had been sent once.
    once: Option<Instant>,
    position: usize,
    probe: Option<(Probe, Instant)>,
    /// Durations of the probes in seconds, by mode and size.
    times: [[Vec<f64>; SIZES.len()]; Mode::ALL.len()],
}

/// One request of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) mode: Mode,
    pub(crate) len: u32,
    mode_index: usize,
    size_index: usize,
}

impl Calibration {
    /// A calibration that ends at `until` at the latest, with answers of at most `most` bytes.
    pub(crate) fn new(until: Instant, most: u32) -> Self {
        let times = Default::default();
        Self { until, most, once: None, position: 0, probe: None, times }
    }

    pub(crate) fn until(&self) -> Instant {
        self.until
    }

    /// The next probe, which the caller sends now. `None` if enough was measured or the time is
    /// over.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Probe> {
        loop {
            let each = SIZES.len() * Mode::ALL.len() * IN_A_ROW;
            if self.position >= each {
                let once = *self.once.get_or_insert(now);
                if now > once + TIME {
                    return None;
                }
            }
            if self.position >= each * REPETITIONS || now >= self.until {
                return None;
            }
            let (repetition, in_row) = (self.position / each, self.position % IN_A_ROW);
            // Largest first: a probe right after much data takes longer than usual.
            let size_index =
                SIZES.len() - 1 - self.position / (IN_A_ROW * Mode::ALL.len()) % SIZES.len();
            let mode_index = self.position / IN_A_ROW % Mode::ALL.len();
            self.position += 1;
            let (mode, len) = (Mode::ALL[mode_index], SIZES[size_index]);
            let is_too_long = mode == Mode::Pure && len as usize > MAX_INLINE;
            if is_too_long || len > self.most || (len >= LONG && repetition >= LONG_REPETITIONS) {
                continue;
            }
            if (repetition, in_row) == (1, 0) {
                // The first repetition faults in pages and wakes threads for the first time: it is
                // discarded.
                self.times[mode_index][size_index].clear();
            }
            let probe = Probe { mode, len, mode_index, size_index };
            self.probe = Some((probe, now));
            return Some(probe);
        }
    }

    /// Records the answer to the current probe.
    pub(crate) fn measured(&mut self, now: Instant) {
        if let Some((probe, sent)) = self.probe.take() {
            // A positive minimum, whatever the clock's resolution.
            let time = now.saturating_duration_since(sent).as_secs_f64().max(1e-9);
            self.times[probe.mode_index][probe.size_index].push(time);
        }
    }

    /// The peer has no room for an answer of the probe's size: only smaller ones are requested from
    /// now on.
    pub(crate) fn refused(&mut self) {
        if let Some((probe, _)) = self.probe.take() {
            self.most = self.most.min(probe.len - 1);
        }
    }

    /// The thresholds with the least loss. `None` if too little was measured.
    pub(crate) fn thresholds(&self) -> Option<Thresholds> {
        let costs = |mode: usize| self.costs(mode);
        let (pure, read, write) = (costs(0)?, costs(1)?, costs(2)?);
        let one_sided: Vec<f64> = read.iter().zip(&write).map(|(a, b)| a.min(*b)).collect();
        let pure_until = boundary(&pure, &one_sided, 0);
        Some(Thresholds {
            pure: inline(pure_until),
            zero_copy: size_before(boundary(&write, &read, pure_until)).unwrap_or(0),
            pure_unknown: inline(boundary(&pure, &read, 0)),
        })
    }

    /// The cost of each size of the grid in a mode, interpolated between the measured sizes. `None`
    /// with fewer than two measured sizes.
    fn costs(&self, mode: usize) -> Option<Vec<f64>> {
        let measured: Vec<(f64, f64)> = SIZES
            .iter()
            .zip(&self.times[mode])
            .filter_map(|(size, times)| Some((f64::from(*size), quartile(times)?)))
            .collect();
        if measured.len() < 2 {
            return None;
        }
        let is_pure = Mode::ALL[mode] == Mode::Pure;
        let cost = |step: usize| {
            let size = grid(step);
            if is_pure && size as usize > MAX_INLINE {
                return f64::INFINITY;
            }
            let size = f64::from(size);
            let above = measured.iter().position(|(at, _)| *at >= size);
            let right = above.unwrap_or(measured.len() - 1).max(1);
            let ((x0, y0), (x1, y1)) = (measured[right - 1], measured[right]);
            y0 + ((y1 - y0) / (x1 - x0)).max(0.0) * (size - x0)
        };
        Some((0..GRID).map(cost).collect())
    }
}

/// The lower quartile of the durations: the cost of an undisturbed request.
fn quartile(times: &[f64]) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 4).copied()
}

/// A size of the grid, in bytes.
fn grid(step: usize) -> u32 {
    let doubled = 8_u32 << (step / 2).min(20);
    if step.is_multiple_of(2) { doubled } else { doubled + doubled / 2 }
}

/// The largest size before a step of the grid; `u32::MAX` at the end of the grid.
fn size_before(step: usize) -> Option<u32> {
    if step >= GRID { Some(u32::MAX) } else { step.checked_sub(1).map(grid) }
}

#[expect(clippy::cast_possible_truncation, reason = "a message has 64 KiB")]
fn inline(step: usize) -> u32 {
    let next_is_too_long = step < GRID && grid(step) as usize > MAX_INLINE;
    if next_is_too_long { MAX_INLINE as u32 } else { size_before(step).unwrap_or(0) }
}

/// The step from which the second mode is chosen, at least `from`. It is the last step whose
/// largest loss exceeds the minimum by at most `WORTH_IT`.
fn boundary(first: &[f64], second: &[f64], from: usize) -> usize {
    let least =
        (from..=GRID).map(|at| worst(first, second, from, at)).fold(f64::INFINITY, f64::min);
    let is_good = |at: &usize| worst(first, second, from, *at) <= least * WORTH_IT;
    (from..=GRID).rev().find(is_good).unwrap_or(from)
}

/// The factor by which each size costs more than in the better mode, if the second mode begins at
/// step `at`.
fn losses<'a>(
    first: &'a [f64],
    second: &'a [f64],
    from: usize,
    at: usize,
) -> impl Iterator<Item = f64> + 'a {
    first.iter().zip(second).enumerate().skip(from).map(move |(step, (first, second))| {
        if step < at { first / first.min(*second) } else { second / first.min(*second) }
    })
}

fn worst(first: &[f64], second: &[f64], from: usize, at: usize) -> f64 {
    losses(first, second, from, at).fold(1.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures modes of known cost, in ns for a mode and a size.
    fn measure(cost: impl Fn(Mode, u32) -> u64) -> (Option<Thresholds>, Duration, usize) {
        let start = Instant::now();
        let (mut now, mut count) = (start, 0);
        let mut calibration = Calibration::new(now + LONGEST, u32::MAX);
        while let Some(probe) = calibration.next(now) {
            // Every third request is delayed by a disturbance.
            let disturbed = if count % 3 == 1 { 10_000 } else { 0 };
            now += Duration::from_nanos(cost(probe.mode, probe.len) + disturbed);
            calibration.measured(now);
            count += 1;
        }
        (calibration.thresholds(), now - start, count)
    }

    fn by_lines(
        pure: (u64, u64),
        read: (u64, u64),
        write: (u64, u64),
    ) -> impl Fn(Mode, u32) -> u64 {
        move |mode, len| {
            let (fixed, each_kib) = match mode {
                Mode::Pure => pure,
                Mode::ThenOneSided => read,
                Mode::ZeroCopy => write,
            };
            fixed + each_kib * u64::from(len) / 1024
        }
    }

    fn assert_close(cost: impl Fn(Mode, u32) -> u64 + Copy) -> Thresholds {
        let thresholds = measure(cost).0.expect("enough is measured");
        for len in (0..GRID).map(grid) {
            let modes =
                Mode::ALL.iter().filter(|m| **m != Mode::Pure || len as usize <= MAX_INLINE);
            let best = modes.map(|mode| cost(*mode, len)).min().unwrap();
            let chosen = cost(thresholds.mode(len), len);
            assert!(chosen * 100 <= best * 105, "{len} B: {chosen} ns, best {best}: {thresholds}");
        }
        thresholds
    }

    #[test]
    fn the_grid_goes_from_8_bytes_to_4_mebibytes() {
        assert_eq!((grid(0), grid(1), grid(2), grid(GRID - 1)), (8, 12, 16, 4 << 20));
    }

    #[test]
    fn the_choice_is_never_far_from_the_best() {
        // Pure RPC copies more: zero-copy becomes faster at 4 KiB, RPC then one-sided at 10 KiB.
        let thresholds = assert_close(&by_lines((4000, 300), (6000, 100), (4800, 100)));
        assert!((2 << 10..=6 << 10).contains(&thresholds.pure), "{thresholds}");
        assert_eq!(thresholds.zero_copy, u32::MAX);
        assert!((4 << 10..=14 << 10).contains(&thresholds.pure_unknown), "{thresholds}");
        // Pure RPC is never best, and zero-copy is slow for large data.
        let thresholds = assert_close(&by_lines((9000, 300), (6000, 100), (4000, 200)));
        assert_eq!(thresholds.pure, 0);
        assert!((12 << 10..=32 << 10).contains(&thresholds.zero_copy), "{thresholds}");
        // Pure RPC is never slower than the others.
        let thresholds = assert_close(&by_lines((4000, 100), (6000, 100), (4000, 100)));
        assert_eq!(thresholds.pure_unknown as usize, MAX_INLINE, "all that a message holds");
    }

    #[test]
    fn what_the_first_requests_took_does_not_count() {
        let calls = std::cell::Cell::new(0);
        let slow_at_first = |mode, len| {
            calls.set(calls.get() + 1);
            let first = calls.get() <= IN_A_ROW * 19;
            let held_up = if first && mode == Mode::Pure { 50_000 } else { 0 };
            held_up + by_lines((4000, 300), (6000, 100), (4800, 100))(mode, len)
        };
        let thresholds = measure(slow_at_first).0.expect("enough is measured");
        assert!((2 << 10..=6 << 10).contains(&thresholds.pure), "{thresholds}");
    }

    #[test]
    fn what_there_is_no_room_for_is_not_measured() {
        let now = Instant::now();
        let mut calibration = Calibration::new(now + LONGEST, 256 << 10);
        let mut lens = Vec::new();
        while let Some(probe) = calibration.next(now) {
            lens.push(probe.len);
            match probe.len {
                0x4000.. => calibration.refused(),
                _ => calibration.measured(now),
            }
        }
        lens.dedup();
        assert_eq!(lens[..4], [256 << 10, 48 << 10, 16 << 10, 4 << 10]);
        assert!(lens[4..].iter().all(|len| *len <= 4 << 10), "{lens:?}");
        assert!(calibration.thresholds().is_some());
    }

    #[test]
    fn time_is_bounded_and_little_is_enough() {
        let (_, time, count) = measure(|_, _| 1000);
        assert_eq!(count, IN_A_ROW * (15 * REPETITIONS + 4 * LONG_REPETITIONS));
        assert!(time < TIME, "{time:?}");
        // Over a slow connection, every probe is sent once, then as many as fit into the time.
        let (thresholds, time, count) = measure(|_, _| 900_000);
        let once = IN_A_ROW * 19;
        let after = usize::try_from(TIME.as_micros() / 900).unwrap() + 2;
        assert!(thresholds.is_some() && (once..once + after).contains(&count), "{count}");
        assert!(time < Duration::from_millis(once as u64) + 2 * TIME, "{time:?}");
        let (thresholds, time, _) = measure(|_, _| 900_000_000);
        assert!(thresholds.is_none() && time < 2 * LONGEST, "{time:?}");
    }
}
