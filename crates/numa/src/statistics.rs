//! From pairs of measurements to a ratio, its confidence interval and a verdict.

use std::fmt;

/// The ratio of a measured value to its baseline, with a 95 % confidence interval.
///
/// Each pair of measurements gives one ratio. The logarithms of the ratios are treated as a sample
/// of a normal distribution (paired observations, R. Jain, "The Art of Computer Systems Performance
/// Analysis", Wiley 1991, section 13.4.1), so the ratio is the geometric mean of the pairs' ratios
/// and the interval is symmetric around it on a logarithmic scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioInterval {
    /// Geometric mean of the pairs' ratios.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// What a higher value of a metric means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Worse: the metric is a time.
    LowerIsBetter,
    /// Better: the metric is a rate.
    HigherIsBetter,
}

/// What an interval says about the effect of a placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The metric is worse by this percentage of the baseline.
    Slower(f64),
    /// The metric is better by this percentage of the baseline.
    Faster(f64),
    /// The interval includes 1, or differs from 1 by a negligible amount.
    NoEffect,
}

impl RatioInterval {
    /// The interval of pairs of (baseline, value). `None` for fewer than two pairs, or if a value
    /// is not a positive finite number.
    #[must_use]
    pub fn of_pairs(pairs: &[(f64, f64)]) -> Option<Self> {
        let is_usable = |value: f64| value.is_finite() && value > 0.0;
        let is_pair = |(baseline, value): &(f64, f64)| is_usable(*baseline) && is_usable(*value);
        if pairs.len() < 2 || !pairs.iter().all(is_pair) {
            return None;
        }
        let logs: Vec<f64> =
            pairs.iter().map(|(baseline, value)| (value / baseline).ln()).collect();
        let count = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt();
        let reach = student_quantile(logs.len() - 1) * error;
        let ratio = mean.exp();
        Some(Self { ratio, low: (mean - reach).exp(), high: (mean + reach).exp() })
    }

    /// The verdict. `negligible` is the share of the baseline up to which a difference counts as
    /// none: 0.01 is 1 %.
    #[must_use]
    pub fn verdict(&self, direction: Direction, negligible: f64) -> Verdict {
        let includes_one = (self.low..=self.high).contains(&1.0);
        let is_negligible = self.low >= 1.0 - negligible && self.high <= 1.0 + negligible;
        if includes_one || is_negligible {
            return Verdict::NoEffect;
        }
        let percent = (self.ratio - 1.0).abs() * 100.0;
        let is_worse = match direction {
            Direction::LowerIsBetter => self.ratio > 1.0,
            Direction::HigherIsBetter => self.ratio < 1.0,
        };
        if is_worse { Verdict::Slower(percent) } else { Verdict::Faster(percent) }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slower(percent) => f.pad(&format!("slower by {percent:.1} %")),
            Self::Faster(percent) => f.pad(&format!("faster by {percent:.1} %")),
            Self::NoEffect => f.pad("no effect"),
        }
    }
}

/// The 97.5 % quantiles of Student's t distribution with 1 to 30 degrees of freedom (NIST/SEMATECH
/// e-Handbook of Statistical Methods, section 1.3.6.7.2).
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
/// The same quantile of the normal distribution.
const NORMAL: f64 = 1.959_964;

/// The 97.5 % quantile of Student's t distribution. Above 30 degrees of freedom: the expansion by
/// the normal quantile (Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5), whose
/// error there is below 0.001.
fn student_quantile(freedom: usize) -> f64 {
    if let Some(quantile) = freedom.checked_sub(1).and_then(|at| STUDENT.get(at)) {
        return *quantile;
    }
    let (z, freedom) = (NORMAL, freedom as f64);
    let first = (z.powi(3) + z) / (4.0 * freedom);
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * freedom.powi(2));
    z + first + second
}

#[cfg(test)]
mod tests {
    use rackpool_sync::SplitMix64;

    use super::*;

    #[test]
    fn equal_pairs_have_no_effect_and_no_width() {
        let interval = RatioInterval::of_pairs(&[(2.0, 2.0); 5]).unwrap();
        assert_eq!((interval.ratio, interval.low, interval.high), (1.0, 1.0, 1.0));
        assert_eq!(interval.verdict(Direction::LowerIsBetter, 0.0), Verdict::NoEffect);
    }

    #[test]
    fn the_interval_is_that_of_a_calculation_by_hand() {
        // Logarithms 0.1, 0.2, 0.3: mean 0.2, deviation 0.1, error 0.1/sqrt(3), t = 4.303.
        let pairs = [0.1_f64, 0.2, 0.3].map(|log| (10.0, 10.0 * log.exp()));
        let interval = RatioInterval::of_pairs(&pairs).unwrap();
        let reach = 4.303 * 0.1 / 3.0_f64.sqrt();
        assert!((interval.ratio - 0.2_f64.exp()).abs() < 1e-12);
        assert!((interval.low - (0.2 - reach).exp()).abs() < 1e-12);
        assert!((interval.high - (0.2 + reach).exp()).abs() < 1e-12);
        assert_eq!(interval.verdict(Direction::LowerIsBetter, 0.01), Verdict::NoEffect);
    }

    #[test]
    fn a_difference_is_slower_or_faster_by_the_metrics_direction() {
        let pairs = [(100.0, 104.0), (101.0, 104.9), (99.0, 103.1), (100.0, 103.9)];
        let interval = RatioInterval::of_pairs(&pairs).unwrap();
        let verdict = interval.verdict(Direction::LowerIsBetter, 0.01);
        assert!(matches!(verdict, Verdict::Slower(p) if (3.5..4.5).contains(&p)), "{verdict}");
        let verdict = interval.verdict(Direction::HigherIsBetter, 0.01);
        assert!(matches!(verdict, Verdict::Faster(_)), "{verdict}");
        assert!(verdict.to_string().starts_with("faster by 4.0 %"), "{verdict}");
        assert_eq!(interval.verdict(Direction::LowerIsBetter, 0.05), Verdict::NoEffect);
    }

    #[test]
    fn noise_has_no_effect() {
        let mut random = SplitMix64::new(7);
        let mut noisy = || 100.0 + (random.draw() % 1000) as f64 / 100.0;
        let wrong = (0..200).filter(|_| {
            let pairs: Vec<(f64, f64)> = (0..8).map(|_| (noisy(), noisy())).collect();
            let interval = RatioInterval::of_pairs(&pairs).unwrap();
            interval.verdict(Direction::LowerIsBetter, 0.0) != Verdict::NoEffect
        });
        // 95 % confidence: 5 % of 200 are 10; 24 would be four deviations more.
        assert!(wrong.count() < 24);
    }

    #[test]
    fn what_is_no_pair_has_no_interval() {
        assert_eq!(RatioInterval::of_pairs(&[(1.0, 1.0)]), None);
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(RatioInterval::of_pairs(&[(1.0, 1.0), (1.0, wrong)]), None, "{wrong}");
        }
    }

    #[test]
    fn the_quantile_falls_towards_the_normal_one() {
        assert!(student_quantile(1) > student_quantile(2));
        assert!((student_quantile(30) - 2.042).abs() < 1e-9);
        assert!((student_quantile(40) - 2.021).abs() < 1e-3);
        assert!((student_quantile(1_000_000) - NORMAL).abs() < 1e-4);
    }
}
