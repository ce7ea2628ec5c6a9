//! Axes: positions of values, and the values to label.

use rackpool_output::numbers::rounded;

/// A range of values along one side of a plot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Axis {
    /// Equal steps, from zero.
    Linear { to: f64 },
    /// Equal ratios, between powers of ten or their doubles and halves.
    Log { from: f64, to: f64 },
}

impl Axis {
    /// Returns an axis from zero to a round number not below `most`.
    pub(super) fn linear(most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let step = round_step(most);
        Self::Linear { to: (most / step).ceil() * step }
    }

    /// Returns an axis from a round number not above `least` to one not below `most`; both are
    /// above zero.
    pub(super) fn log(least: f64, most: f64) -> Self {
        let from = least.max(1e-9);
        let to = most.max(from * 1.5);
        Self::Log { from: round_below(from), to: round_above(to) }
    }

    /// Returns the position of `value`, from 0 at the beginning to 1 at the end. Values outside are
    /// clamped.
    pub(super) fn place(self, value: f64) -> f64 {
        let place = match self {
            Self::Linear { to } => value / to,
            Self::Log { from, to } => (value.max(from) / from).ln() / (to / from).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    /// The value at the end.
    pub(super) fn end(self) -> f64 {
        match self {
            Self::Linear { to } | Self::Log { to, .. } => to,
        }
    }

    /// The values to label.
    pub(super) fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear { to } => {
                let step = round_step(to);
                let steps = rounded(to / step);
                (0..=steps).map(|i| i as f64 * step).collect()
            }
            Self::Log { from, to } => {
                let mut ticks = Vec::new();
                let mut decade = 10_f64.powf(from.log10().floor());
                // Over few decades their doubles and halves are labelled, too.
                let multiples: &[f64] = if to / from < 2e3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                while decade <= to * 1.001 {
                    ticks.extend(multiples.iter().map(|multiple| decade * multiple));
                    decade *= 10.0;
                }
                ticks.retain(|tick| (from * 0.999..=to * 1.001).contains(tick));
                ticks
            }
        }
    }
}

/// Returns a round step that divides `most` into three to seven parts.
fn round_step(most: f64) -> f64 {
    let raw = most / 6.0;
    let decade = 10_f64.powf(raw.log10().floor());
    let multiple = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|m| decade * m >= raw * 0.999);
    decade * multiple.unwrap_or(10.0)
}

fn round_below(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let multiple = [5.0, 2.0, 1.0].into_iter().find(|m| decade * m <= value * 1.001);
    decade * multiple.unwrap_or(1.0)
}

fn round_above(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    let multiple = [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| decade * m >= value * 0.999);
    decade * multiple.unwrap_or(10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_end_and_step_round() {
        assert_eq!(Axis::linear(83.0), Axis::Linear { to: 100.0 });
        assert_eq!(Axis::linear(83.0).ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(Axis::linear(100.0).ticks().len(), 6);
        assert_eq!(Axis::linear(0.0).ticks().last(), Some(&1.0));
        for most in [0.3, 7.0, 12.0, 950.0, 1001.0, 2.3e6] {
            let axis = Axis::linear(most);
            let Axis::Linear { to } = axis else { unreachable!() };
            assert!(to >= most && (4..=8).contains(&axis.ticks().len()), "{most}: {axis:?}");
        }
    }

    #[test]
    fn log_axes_span_the_values() {
        let axis = Axis::log(130.0, 4200.0);
        assert_eq!(axis, Axis::Log { from: 100.0, to: 5000.0 });
        let ticks: Vec<_> = axis.ticks().into_iter().map(f64::round).collect();
        assert_eq!(ticks, [100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0]);
        assert!((axis.place(100.0), axis.place(5000.0)) == (0.0, 1.0));
        assert!((axis.place(1.0), axis.place(1e9)) == (0.0, 1.0));
        let wide = Axis::log(150.0, 3e9).ticks();
        assert_eq!(wide.len(), 8, "{wide:?}");
    }
}
