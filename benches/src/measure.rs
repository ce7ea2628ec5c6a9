//! Timing two things in turn.

use std::time::Instant;

/// Rounds of a comparison; their medians count.
const ROUNDS: usize = 15;

/// The median.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Nanoseconds that each of `count` operations takes.
pub fn time_each(count: usize, mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    work();
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let count = count as f64;
    start.elapsed().as_secs_f64() * 1e9 / count
}

/// Two times measured in turn: their medians, and the median of the ratios of the pairs.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The median of the measured side.
    pub ours: f64,
    /// The median of the reference.
    pub peer: f64,
    /// Median of `ours / peer` over the rounds.
    pub ratio: f64,
    /// Median of `ours - peer` over the rounds.
    pub difference: f64,
}

/// Measures both in turn, after one warm-up round.
pub fn in_turn(mut ours: impl FnMut() -> f64, mut peer: impl FnMut() -> f64) -> Pair {
    ours();
    peer();
    let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (ours(), peer())).collect();
    Pair {
        ours: median(rounds.iter().map(|round| round.0).collect()),
        peer: median(rounds.iter().map(|round| round.1).collect()),
        ratio: median(rounds.iter().map(|round| round.0 / round.1).collect()),
        difference: median(rounds.iter().map(|round| round.0 - round.1).collect()),
    }
}

/// Two times whose difference is smaller than the drift of either.
#[derive(Clone, Copy, Debug)]
pub struct Paired {
    /// The median of the measured side.
    pub ours: f64,
    /// The median of the reference.
    pub peer: f64,
    /// Median of `ours - peer` over all blocks.
    pub difference: f64,
    /// With a certainty of 95 % the difference is not further than this from that of infinitely
    /// many blocks.
    pub noise: f64,
}

/// Measures both repeatedly; in each block, each once before and once after the other. A drift or
/// growth over time thus affects both alike.
pub fn paired(
    blocks: usize,
    mut ours: impl FnMut() -> f64,
    mut peer: impl FnMut() -> f64,
) -> Paired {
    let mut all = (Vec::new(), Vec::new(), Vec::new());
    for block in 0..blocks {
        // The first of a block meets the state that the block before left; the order alternates
        // between blocks, so both meet it equally often.
        let (a, b) = if block % 2 == 0 {
            let (a, b) = (ours(), peer());
            let (last, first) = (peer(), ours());
            (f64::midpoint(a, first), f64::midpoint(b, last))
        } else {
            let (b, a) = (peer(), ours());
            let (first, last) = (ours(), peer());
            (f64::midpoint(a, first), f64::midpoint(b, last))
        };
        all.0.push(a);
        all.1.push(b);
        all.2.push(a - b);
    }
    let Centre { median: difference, noise } = centre(all.2);
    Paired { ours: median(all.0), peer: median(all.1), difference, noise }
}

/// The median of some measurements.
#[derive(Clone, Copy, Debug)]
pub struct Centre {
    /// The median.
    pub median: f64,
    /// How far the median of the distribution may be from it.
    pub noise: f64,
}

/// The median, and how far the median of the distribution may be from it. Of `n` sorted values,
/// those `sqrt(n)` places from the middle enclose it with a certainty of 95 %, whatever the
/// distribution.
#[must_use]
pub fn centre(mut figures: Vec<f64>) -> Centre {
    figures.sort_by(f64::total_cmp);
    let (middle, far) = (figures.len() / 2, figures.len().isqrt());
    let at = |place: usize| figures.get(place).copied().unwrap_or(f64::NAN);
    let (least, most) = (at(middle.saturating_sub(far)), at(middle + far));
    let noise = (at(middle) - least).max(most - at(middle));
    Centre { median: at(middle), noise }
}

/// The value that `thousandths` per mille of the sorted values do not exceed.
#[must_use]
pub fn percentile(sorted: &[f64], thousandths: usize) -> f64 {
    sorted.get(sorted.len() * thousandths / 1000).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_while_both_are_measured_is_in_neither() {
        // Each measurement takes longer than the one before.
        let time = std::cell::Cell::new(100.0);
        let next = |more: f64| {
            time.set(time.get() + 10.0);
            time.get() + more
        };
        let times = paired(50, || next(3.0), || next(0.0));
        assert!((times.difference - 3.0).abs() < 1e-9, "{times:?}");
        assert!(times.noise < 1e-9 && times.ours > times.peer);
    }

    #[test]
    fn the_centre_is_the_median_with_its_noise() {
        let Centre { median, noise } = centre((0..=100).rev().map(f64::from).collect());
        assert!((median - 50.0).abs() < 1e-9 && (noise - 10.0).abs() < 1e-9);
        assert!(centre(Vec::new()).median.is_nan());
    }
}
