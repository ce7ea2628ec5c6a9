use std::path::PathBuf;
use std::time::Duration;

use rackpool_model::HeatRules;
use rackpool_trace::{Costs, Policy};

use super::sweep::Sweep;

/// What is done with hotness.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(super) command: Command,
}

/// The ways.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Replay a trace of `rackpool ycsb --record`: which pages would move, and what the accesses
    /// would cost.
    Replay(ReplayOptions),
}

/// The trace, the rules and the costs. Rules are called as `rackpool-daemon` calls them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReplayOptions {
    /// File of the trace.
    pub(crate) file: PathBuf,
    /// Hotness above which a page is hot (Hp in the Rcmp paper), at least 1.
    #[arg(long, default_value_t = HeatRules::DEFAULT.hot)]
    pub(crate) hot: f64,
    /// Decay rate of hotness per second (lambda in the Rcmp paper).
    #[arg(long, alias = "lambda", default_value_t = HeatRules::DEFAULT.decay)]
    pub(crate) heat_decay: f64,
    /// Time without an access after which the hotness of a page restarts from zero, in milliseconds
    /// (Tl in the Rcmp paper).
    #[arg(long, default_value_t = millis(HeatRules::DEFAULT.lifetime), value_parser = any_millis)]
    pub(crate) heat_lifetime_ms: f64,
    /// Reads per write above which a hot page is read-hot (Rrw in the Rcmp paper).
    #[arg(long, default_value_t = HeatRules::DEFAULT.read_hot)]
    pub(crate) read_hot: f64,
    /// Time for which a page that has moved does not move again, in milliseconds. It doubles with
    /// each return of the page.
    #[arg(long, default_value_t = millis(HeatRules::DEFAULT.rest), value_parser = any_millis)]
    pub(crate) rest_ms: f64,
    /// Time for which a rack does not request a refused page again, in milliseconds.
    #[arg(long, default_value_t = millis(Policy::DEFAULT.swap.pause), value_parser = any_millis)]
    pub(crate) swap_pause_ms: f64,
    /// Cost of an access to the own rack, in nanoseconds.
    #[arg(long, default_value_t = 300)]
    pub(crate) local_ns: u64,
    /// Cost of an access to another rack, in nanoseconds.
    #[arg(long, default_value_t = 5000)]
    pub(crate) remote_ns: u64,
    /// Bandwidth of the fabric for page copies, in Gbit/s.
    #[arg(long, default_value_t = 25.0)]
    pub(crate) copy_gbps: f64,
    /// Replay with several values of one rule: NAME=FROM..TO for integers, or NAME=A,B,C. NAME is
    /// hot, read-hot, heat-decay, heat-lifetime-ms or rest-ms.
    #[arg(long, value_name = "NAME=VALUES")]
    pub(crate) sweep: Option<Sweep>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The longest time in milliseconds.
const LONGEST: f64 = 1e9;

const fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn any_millis(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=LONGEST).contains(&value) => Ok(value),
        _ => Err("give a number from 0 to 1000000000".into()),
    }
}

impl ReplayOptions {
    pub(super) fn policy(&self) -> Policy {
        let heat = HeatRules {
            lifetime: Duration::from_secs_f64(self.heat_lifetime_ms / 1e3),
            decay: self.heat_decay,
            hot: self.hot,
            read_hot: self.read_hot,
            rest: Duration::from_secs_f64(self.rest_ms / 1e3),
        };
        let mut policy = Policy { heat, ..Policy::DEFAULT };
        policy.swap.pause = Duration::from_secs_f64(self.swap_pause_ms / 1e3);
        policy
    }

    pub(super) fn costs(&self) -> Costs {
        Costs {
            local: Duration::from_nanos(self.local_ns),
            remote: Duration::from_nanos(self.remote_ns),
            copy_bytes_per_s: self.copy_gbps * 1e9 / 8.0,
        }
    }
}
