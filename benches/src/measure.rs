//! Timing two things in turn.

use std::time::Instant;

/// Rounds of a comparison; the medians over them are what counts.
const ROUNDS: usize = 15;

/// The median of some figures.
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

/// Two figures measured in turn: each one's median, and the median of their ratios pair by pair.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// What is judged.
    pub ours: f64,
    /// What it is held against.
    pub peer: f64,
    /// Median of `ours / peer` over the rounds.
    pub ratio: f64,
    /// Median of `ours - peer` over the rounds.
    pub difference: f64,
}

/// Measures both in turn, one warm-up round first.
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
