//! The rules for swaps of hot pages, as options that `rackpool up` passes on to the daemons.

use std::time::Duration;

use clap::ValueEnum;
use rackpool_model::{ByteSize, HeatRules};

/// What is not given is what `rackpool-daemon` takes by default.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct HotPages {
    /// Move hot pages to the rack that uses them [default: on].
    #[arg(long, value_name = "ON|OFF")]
    pub(crate) swap: Option<Switch>,
    /// Hotness above which a page is hot (Hp in the Rcmp paper), at least 1 [default: 4].
    #[arg(long, value_name = "HOTNESS")]
    pub(crate) hot: Option<f64>,
    /// Reads per write above which a hot page is read-hot (Rrw in the Rcmp paper) [default: 0.9].
    #[arg(long, value_name = "RATIO")]
    pub(crate) read_hot: Option<f64>,
    /// Decay rate of hotness per second (lambda in the Rcmp paper) [default: 0.04].
    #[arg(long, value_name = "RATE")]
    pub(crate) heat_decay: Option<f64>,
    /// Time without an access after which the hotness of a page restarts from zero, in milliseconds
    /// (Tl in the Rcmp paper) [default: 100000].
    #[arg(long, value_name = "MS")]
    pub(crate) heat_lifetime_ms: Option<u64>,
    /// Time for which a page that has moved does not move again, in milliseconds [default: 1000].
    #[arg(long, value_name = "MS")]
    pub(crate) rest_ms: Option<u64>,
    /// Time for which a rack does not request a refused page again, in milliseconds [default: 200].
    #[arg(long, value_name = "MS")]
    pub(crate) swap_pause_ms: Option<u64>,
    /// Bandwidth limit of page copies in bytes per second. 0 means no limit [default: a quarter of
    /// --bandwidth-gbps].
    #[arg(long, value_name = "BYTES")]
    pub(crate) swap_bandwidth: Option<ByteSize>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

impl HotPages {
    /// Returns the options as arguments of `rackpool-daemon`.
    ///
    /// # Errors
    /// If a hotness rule is outside its valid range.
    pub(crate) fn arguments(&self) -> anyhow::Result<Vec<(&'static str, String)>> {
        let rules = HeatRules::DEFAULT;
        HeatRules {
            lifetime: self.heat_lifetime_ms.map_or(rules.lifetime, Duration::from_millis),
            decay: self.heat_decay.unwrap_or(rules.decay),
            hot: self.hot.unwrap_or(rules.hot),
            read_hot: self.read_hot.unwrap_or(rules.read_hot),
            rest: self.rest_ms.map_or(rules.rest, Duration::from_millis),
        }
        .check()?;
        let switch = |switch| if switch == Switch::On { "on" } else { "off" };
        let arguments = [
            ("--swap", self.swap.map(|on| switch(on).to_owned())),
            ("--hot", self.hot.map(|hot| hot.to_string())),
            ("--read-hot", self.read_hot.map(|ratio| ratio.to_string())),
            ("--heat-decay", self.heat_decay.map(|rate| rate.to_string())),
            ("--heat-lifetime-ms", self.heat_lifetime_ms.map(|ms| ms.to_string())),
            ("--rest-ms", self.rest_ms.map(|ms| ms.to_string())),
            ("--swap-pause-ms", self.swap_pause_ms.map(|ms| ms.to_string())),
            ("--swap-bandwidth", self.swap_bandwidth.map(|bytes| bytes.0.to_string())),
        ];
        Ok(arguments.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_passed_on_and_nothing_else() {
        assert_eq!(HotPages::default().arguments().unwrap(), []);
        let given = HotPages {
            swap: Some(Switch::Off),
            hot: Some(3.5),
            swap_bandwidth: Some(ByteSize(1 << 20)),
            ..HotPages::default()
        };
        let arguments = given.arguments().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|(name, value)| (*name, &**value)).collect();
        let expected = [("--swap", "off"), ("--hot", "3.5"), ("--swap-bandwidth", "1048576")];
        assert_eq!(arguments, expected);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_before_anything_is_started() {
        let refused = HotPages { hot: Some(0.5), ..HotPages::default() }.arguments();
        assert!(refused.unwrap_err().to_string().contains("threshold"));
        let refused = HotPages { heat_lifetime_ms: Some(0), ..HotPages::default() }.arguments();
        assert!(refused.unwrap_err().to_string().contains("lifetime"));
    }
}
