use std::fmt;

/// The most pairs of measurements: the quantiles below end there.
pub const MAX_PAIRS: usize = 31;

/// Two-sided 95 % quantiles of Student's t distribution for 1 to 30 degrees of freedom
/// (NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2).
const T_95: [f64; MAX_PAIRS - 1] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// A ratio of paired measurements with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The geometric mean of the pairs' ratios.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// What a ratio says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The interval includes 1, or the ratio differs from 1 by a negligible amount.
    NoEffect,
    /// The ratio is larger than 1, by this many percent.
    More(f64),
    /// The ratio is smaller than 1, by this many percent.
    Less(f64),
}

impl Ratio {
    /// The ratio of each pair's second value to its first one. The logarithms of the ratios are
    /// averaged, with a t interval, since ratios of times are skewed. `None` unless there are 2 to
    /// [`MAX_PAIRS`] pairs of positive numbers.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Option<Self> {
        let logs: Vec<f64> = pairs.iter().map(|(first, second)| (second / first).ln()).collect();
        if pairs.len() < 2 || logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let quantile = T_95.get(pairs.len() - 2)?;
        #[expect(clippy::cast_precision_loss, reason = "at most MAX_PAIRS")]
        let count = pairs.len() as f64;
        let mean = logs.iter().sum::<f64>() / count;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt() * quantile;
        Some(Self { mean: mean.exp(), low: (mean - error).exp(), high: (mean + error).exp() })
    }

    /// What the ratio says, if a difference of up to `negligible` (0.01 is 1 %) does not count.
    #[must_use]
    pub fn verdict(&self, negligible: f64) -> Verdict {
        let difference = self.mean - 1.0;
        if (self.low..=self.high).contains(&1.0) || difference.abs() <= negligible {
            Verdict::NoEffect
        } else if difference > 0.0 {
            Verdict::More(difference * 100.0)
        } else {
            Verdict::Less(-difference * 100.0)
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEffect => f.write_str("no effect"),
            Self::More(percent) => write!(f, "{percent:.1} % more"),
            Self::Less(percent) => write!(f, "{percent:.1} % less"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_ratio_has_no_width() {
        let ratio = Ratio::of(&[(1.0, 1.1), (2.0, 2.2), (4.0, 4.4)]).unwrap();
        assert!((ratio.mean - 1.1).abs() < 1e-12 && ratio.high - ratio.low < 1e-12);
        assert_eq!(ratio.verdict(0.01).to_string(), "10.0 % more");
        assert_eq!(ratio.verdict(0.2), Verdict::NoEffect, "negligible");
    }

    #[test]
    fn noise_is_no_effect_and_a_clear_difference_is_one() {
        let noise = Ratio::of(&[(1.0, 1.2), (1.0, 0.85), (1.0, 1.05), (1.0, 0.9)]).unwrap();
        assert!(noise.low < 1.0 && noise.high > 1.0);
        assert_eq!(noise.verdict(0.0), Verdict::NoEffect);
        let clear = Ratio::of(&[(1.0, 0.5), (1.0, 0.51), (1.0, 0.49)]).unwrap();
        assert!(matches!(clear.verdict(0.01), Verdict::Less(percent) if percent > 49.0));
    }

    /// Worked by hand: logarithms 0 and ln 4, mean ln 2, standard error ln 2, times 12.706.
    #[test]
    fn the_interval_is_that_of_students_t() {
        let ratio = Ratio::of(&[(1.0, 1.0), (1.0, 4.0)]).unwrap();
        assert!((ratio.mean - 2.0).abs() < 1e-12);
        let factor = (2_f64.ln() * 12.706).exp();
        assert!((ratio.high / (2.0 * factor) - 1.0).abs() < 1e-9);
        assert!((ratio.low * factor / 2.0 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn too_few_or_impossible_pairs_have_no_ratio() {
        assert_eq!(Ratio::of(&[(1.0, 1.0)]), None);
        assert_eq!(Ratio::of(&[(1.0, 1.0), (0.0, 1.0)]), None);
        assert_eq!(Ratio::of(&[(1.0, 1.0); MAX_PAIRS + 1]), None);
        assert!(Ratio::of(&[(1.0, 1.0); MAX_PAIRS]).is_some());
    }
}
