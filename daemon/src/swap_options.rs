use std::time::Duration;

use clap::{Args, ValueEnum};
use rackpool_model::{ByteSize, HeatRules, HeatRulesError};
use rackpool_proto::swap::SwapRules;

use crate::data_plane::SwapSettings;

/// The rules for swaps of hot pages. All racks of a pool use the same numbers.
#[derive(Clone, Debug, Args)]
pub struct SwapOptions {
    /// Request hot pages of other racks, and give own pages to racks that use them more.
    #[arg(long, value_name = "ON|OFF", default_value = "on")]
    pub swap: Switch,
    /// Keep read-only copies of hot pages that racks mostly read and that do not move.
    #[arg(long, value_name = "ON|OFF", default_value = "on")]
    pub share: Switch,
    /// Hotness above which a page is hot (Hp in the Rcmp paper), at least 1.
    #[arg(long, value_name = "HOTNESS", default_value_t = HeatRules::DEFAULT.hot)]
    pub hot: f64,
    /// Reads per write above which a hot page is read-hot (Rrw in the Rcmp paper).
    #[arg(long, value_name = "RATIO", default_value_t = HeatRules::DEFAULT.read_hot)]
    pub read_hot: f64,
    /// Decay rate of hotness per second (lambda in the Rcmp paper).
    #[arg(long, value_name = "RATE", default_value_t = HeatRules::DEFAULT.decay)]
    pub heat_decay: f64,
    /// Time without an access after which the hotness of a page restarts from zero, in milliseconds
    /// (Tl in the Rcmp paper).
    #[arg(long, value_name = "MS", default_value_t = millis(HeatRules::DEFAULT.lifetime))]
    pub heat_lifetime_ms: u64,
    /// Time for which a page that has moved does not move again, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = millis(HeatRules::DEFAULT.rest))]
    pub rest_ms: u64,
    /// Time for which a rack does not request a refused page again, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = millis(SwapRules::DEFAULT.pause))]
    pub swap_pause_ms: u64,
    /// Bandwidth limit of page copies in bytes per second. 0 means no limit [default: a quarter of
    /// --bandwidth-gbps].
    #[arg(long, value_name = "BYTES")]
    pub swap_bandwidth: Option<ByteSize>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

const fn millis(time: Duration) -> u64 {
    // The defaults are a few seconds at most.
    time.as_secs() * 1000 + time.subsec_millis() as u64
}

impl Default for SwapOptions {
    fn default() -> Self {
        let HeatRules { lifetime, decay, hot, read_hot, rest } = HeatRules::DEFAULT;
        Self {
            swap: Switch::On,
            share: Switch::On,
            hot,
            read_hot,
            heat_decay: decay,
            heat_lifetime_ms: millis(lifetime),
            rest_ms: millis(rest),
            swap_pause_ms: millis(SwapRules::DEFAULT.pause),
            swap_bandwidth: None,
        }
    }
}

impl SwapOptions {
    /// Returns the data plane's settings for a fabric of this bandwidth and this page size. Swaps
    /// are disabled if copying a page takes more than half of a swap's grace period: each swap
    /// would be aborted, after its page could not be written for that time.
    pub(crate) fn settings(
        &self,
        bandwidth_gbps: f64,
        page_bytes: u64,
    ) -> anyhow::Result<SwapSettings> {
        let heat = HeatRules {
            lifetime: Duration::from_millis(self.heat_lifetime_ms),
            decay: self.heat_decay,
            hot: self.hot,
            read_hot: self.read_hot,
            rest: Duration::from_millis(self.rest_ms),
        };
        heat.check().map_err(|error| anyhow::Error::from(error).context(option_of(error)))?;
        let pause = Duration::from_millis(self.swap_pause_ms);
        let bytes_per_second = match self.swap_bandwidth {
            Some(bytes) => bytes.0,
            None => quarter(bandwidth_gbps),
        };
        let rules = SwapRules { pause, ..SwapRules::DEFAULT };
        let copy = seconds(page_bytes, bandwidth_gbps);
        let is_in_time = copy <= rules.grace.as_secs_f64() / 2.0;
        if self.swap == Switch::On && !is_in_time {
            tracing::warn!(
                "no page moves between racks: copying a page of {} takes {:.0} ms at {bandwidth_gbps} Gbit/s \
                 (--bandwidth-gbps), and a swap may take {:?}: choose a smaller --page-size",
                ByteSize(page_bytes),
                copy * 1e3,
                rules.grace
            );
        }
        Ok(SwapSettings {
            enabled: self.swap == Switch::On && is_in_time,
            share: self.share == Switch::On,
            heat,
            rules,
            bytes_per_second,
        })
    }
}

/// Returns the option that gave a rule.
const fn option_of(error: HeatRulesError) -> &'static str {
    match error {
        HeatRulesError::NoLifetime | HeatRulesError::Lifetime(_) => "--heat-lifetime-ms",
        HeatRulesError::Rest(_) => "--rest-ms",
        HeatRulesError::Decay(_) => "--heat-decay",
        HeatRulesError::Hot(_) => "--hot",
        HeatRulesError::ReadHot(_) => "--read-hot",
        _ => "the rules of hotness",
    }
}

/// Returns a quarter of `gbps` in bytes a second, at least 1.
#[expect(clippy::cast_possible_truncation, reason = "no fabric has 2^64 bytes a second")]
#[expect(clippy::cast_sign_loss, reason = "at least 1")]
fn quarter(gbps: f64) -> u64 {
    (gbps * 1e9 / 8.0 / 4.0).max(1.0) as u64
}

/// Returns the seconds that `bytes` take at `gbps`.
#[expect(clippy::cast_precision_loss, reason = "pages are powers of two")]
fn seconds(bytes: u64, gbps: f64) -> f64 {
    bytes as f64 * 8.0 / (gbps * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_paper_and_a_quarter_of_the_fabric() {
        let settings = SwapOptions::default().settings(100.0, 2 << 20).unwrap();
        assert_eq!(settings.heat, HeatRules::DEFAULT);
        assert_eq!(settings.rules, SwapRules::DEFAULT);
        assert_eq!((settings.enabled, settings.bytes_per_second), (true, 3_125_000_000));
    }

    #[test]
    fn thresholds_that_can_t_be_meant_are_refused() {
        let options = SwapOptions { hot: 0.5, ..SwapOptions::default() };
        assert!(options.settings(1.0, 2 << 20).is_err());
    }

    #[test]
    fn pages_that_are_not_copied_in_time_stay_where_they_are() {
        let is_enabled = |gbps, bytes| {
            SwapOptions::default().settings(gbps, bytes).map(|settings| settings.enabled).unwrap()
        };
        for (gbps, bytes, moves) in [
            (100.0, 2 << 20, true),
            (100.0, 512 << 20, true),
            (100.0, 1 << 30, false),
            (1.0, 4 << 20, true),
            (1.0, 8 << 20, false),
            (0.1, 2 << 20, false),
            (0.001, 4096, true),
        ] {
            assert_eq!(is_enabled(gbps, bytes), moves, "{bytes} B at {gbps} Gbit/s");
        }
    }
}
