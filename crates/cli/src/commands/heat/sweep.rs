use std::str::FromStr;
use std::time::Duration;

use rackpool_trace::Policy;

/// The most policies of one sweep.
const MAX_VALUES: usize = 100;

/// A rule of which several values are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweepOver {
    /// Hp, the hotness above which a page is hot.
    Hot,
    /// lambda, the decay of hotness.
    Lambda,
    /// Tl, the lifetime without access, in milliseconds.
    Lifetime,
    /// Rrw, the ratio of reads to writes of a read-hot page.
    ReadHot,
    /// The rest of a moved page, in milliseconds.
    Rest,
}

/// Values of one rule: `hot=1..10` or `lambda=0,0.04,0.4`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sweep {
    /// The rule.
    pub(crate) rule: SweepOver,
    /// Its values.
    pub(crate) values: Vec<f64>,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let help = "write it like hot=1..10 or heat-decay=0,0.04,0.4";
        let (name, values) = text.split_once('=').ok_or(help)?;
        let rule = match name {
            "hot" => SweepOver::Hot,
            "heat-decay" | "lambda" => SweepOver::Lambda,
            "heat-lifetime-ms" => SweepOver::Lifetime,
            "read-hot" => SweepOver::ReadHot,
            "rest-ms" => SweepOver::Rest,
            _ => {
                return Err(format!(
                    "there is no rule '{name}': take hot, read-hot, heat-decay, heat-lifetime-ms or rest-ms"
                ));
            }
        };
        let values = if let Some((from, to)) = values.split_once("..") {
            let (from, to) = (from.parse::<u32>(), to.trim_start_matches('=').parse::<u32>());
            let (Ok(from), Ok(to)) = (from, to) else { return Err(help.into()) };
            (from..=to).take(MAX_VALUES + 1).map(f64::from).collect::<Vec<_>>()
        } else {
            let number = |value: &str| value.trim().parse::<f64>().map_err(|_| help.to_owned());
            values.split(',').map(number).collect::<Result<_, _>>()?
        };
        let fits = |value: &f64| (0.0..=1e9).contains(value);
        if values.is_empty() || values.len() > MAX_VALUES || !values.iter().all(fits) {
            return Err(format!("give 1 to {MAX_VALUES} values from 0 to 1000000000; {help}"));
        }
        Ok(Self { rule, values })
    }
}

impl Sweep {
    /// Returns the given policy with each of the values.
    pub(super) fn over(&self, given: &Policy) -> Vec<Policy> {
        let with = |value: &f64| {
            let (mut policy, value) = (*given, *value);
            match self.rule {
                SweepOver::Hot => policy.heat.hot = value,
                SweepOver::Lambda => policy.heat.decay = value,
                SweepOver::Lifetime => policy.heat.lifetime = Duration::from_secs_f64(value / 1e3),
                SweepOver::ReadHot => policy.heat.read_hot = value,
                SweepOver::Rest => policy.heat.rest = Duration::from_secs_f64(value / 1e3),
            }
            policy
        };
        self.values.iter().map(with).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_both_ends_and_lists_keep_their_order() {
        let sweep: Sweep = "hot=1..10".parse().unwrap();
        assert_eq!((sweep.rule, sweep.values.len()), (SweepOver::Hot, 10));
        assert_eq!("hot=3..=4".parse::<Sweep>().unwrap().values, [3.0, 4.0]);
        let sweep: Sweep = "lambda=0.4, 0,0.04".parse().unwrap();
        assert_eq!(sweep.values, [0.4, 0.0, 0.04]);
        let policies = sweep.over(&Policy::DEFAULT);
        assert_eq!(policies[0].heat.decay, 0.4);
        assert_eq!(policies[0].heat.hot, Policy::DEFAULT.heat.hot);
    }

    #[test]
    fn what_is_no_sweep_says_how_to_write_one() {
        for wrong in ["", "hot", "hot=", "hot=a..b", "hot=9..1", "cold=1", "hot=-1", "lambda=nan"] {
            let error = wrong.parse::<Sweep>().unwrap_err();
            assert!(error.contains("hot"), "{wrong}: {error}");
        }
        assert!("hot=0..100000".parse::<Sweep>().is_err());
    }
}
