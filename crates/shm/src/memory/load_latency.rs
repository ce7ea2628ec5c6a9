use std::time::{Duration, Instant};

use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::{Mapping, OutsideMapping};

const LINE: u64 = 64;
const LOADS: u32 = 200_000;
const RUNS: usize = 4;
/// No further run is started after this time: on a busy computer one run has to do.
const ENOUGH: Duration = Duration::from_millis(300);

/// The latency in ns of a load at a random address of the memory that depends on the load before,
/// from the calling thread's processor; the best of several runs. Overwrites the memory and touches
/// all its pages. Covers the largest power of two of lines that fits.
pub fn load_latency_ns(memory: &Mapping) -> Result<f64, OutsideMapping> {
    link(memory)?;
    let mut line = 0;
    let mut best = f64::INFINITY;
    let began = Instant::now();
    for _ in 0..RUNS {
        if began.elapsed() > ENOUGH {
            break;
        }
        let start = Instant::now();
        for _ in 0..LOADS {
            line = memory.view::<AtomicU64>(line * LINE)?.load(Ordering::Relaxed);
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(LOADS));
    }
    std::hint::black_box(line);
    Ok(best)
}

/// Links all lines into one cycle: each holds the number of the next, in an order that no
/// prefetcher predicts. A linear congruential sequence with a power of two as modulus visits each
/// number once if its increment is odd and its factor is 1 modulo 4 (Hull and Dobell); the factor
/// is that of Knuth's MMIX.
fn link(memory: &Mapping) -> Result<(), OutsideMapping> {
    let lines = 1 << (memory.len() / LINE).max(1).ilog2();
    for line in 0..lines {
        let cell = memory.view::<AtomicU64>(line * LINE)?;
        cell.store(next(line, lines), Ordering::Relaxed);
    }
    Ok(())
}

const fn next(line: u64, lines: u64) -> u64 {
    line.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
        & (lines - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_circle_visits_every_line_once() {
        for lines in [2_u64, 64, 1 << 12] {
            let mut seen = vec![false; usize::try_from(lines).unwrap()];
            let mut line = 0;
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[usize::try_from(line).unwrap()], true));
                line = next(line, lines);
            }
            assert_eq!(line, 0);
        }
    }

    #[test]
    fn a_little_memory_has_a_plausible_latency() {
        let memory = crate::memory::scratch(4 << 20, None, None).unwrap();
        let ns = load_latency_ns(&memory).unwrap();
        assert!(ns > 0.1 && ns < 1e5, "{ns} ns for a load");
    }
}
