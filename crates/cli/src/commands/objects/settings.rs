//! `rackpool objects options`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rackpool_model::ByteSize;
use rackpool_objects::{EvictionPolicy, Store, StoreOptions};
use rackpool_output::outln;

use super::WhichStore;
use crate::commands::roots::printable;

/// Options that are to be changed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Settings {
    /// The most memory that objects and replicas of the store take in each rack, such as 64G.
    #[arg(long, value_name = "BYTES|none")]
    capacity: Option<OrNone<ByteSize>>,
    /// What happens when there is no room: `keep` refuses new objects, `lru` deletes those that
    /// were unused for longest, `spill` moves them to racks with an agent and free memory, then to
    /// files (`rackpool-daemon --spill-dir`).
    #[arg(long, value_name = "keep|lru|spill")]
    policy: Option<Policy>,
    /// The time after which an object ends, in seconds.
    #[arg(long, value_name = "SECONDS|none")]
    time_to_live: Option<OrNone<u64>>,
    #[command(flatten)]
    which: WhichStore,
}

/// A value, or the word `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OrNone<T>(Option<T>);

impl<T: FromStr> FromStr for OrNone<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|value| Self(Some(value))) }
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Policy {
    Keep,
    Lru,
    Spill,
}

/// Sets the options that are given, and shows all.
pub(super) fn run(settings: &Settings) -> anyhow::Result<()> {
    let Settings { capacity, policy, time_to_live, which } = settings;
    let changes = |before: StoreOptions| StoreOptions {
        capacity: capacity.map_or(before.capacity, |new| new.0.map(|bytes| bytes.0)),
        policy: match policy {
            Some(Policy::Keep) => EvictionPolicy::Keep,
            Some(Policy::Lru) => EvictionPolicy::Lru,
            Some(Policy::Spill) => EvictionPolicy::Spill,
            None => before.policy,
        },
        time_to_live: time_to_live
            .map_or(before.time_to_live, |new| new.0.map(Duration::from_secs)),
    };
    let is_changed = capacity.is_some() || policy.is_some() || time_to_live.is_some();
    let store = if is_changed {
        let new = changes(StoreOptions::default());
        let store = Store::open_or_create_with(which.pool()?, &which.store, &new)?;
        store.set_options(&changes(store.options()?))?;
        store
    } else {
        which.open()?
    };
    let StoreOptions { capacity, policy, time_to_live } = store.options()?;
    let policy = match policy {
        EvictionPolicy::Keep => "keep: new objects are refused when there is no room",
        EvictionPolicy::Lru => "lru: objects that were unused for longest make room",
        EvictionPolicy::Spill => {
            "spill: objects that were unused for longest move to other racks or to files"
        }
    };
    outln!("store         '{}'", printable(&which.store))?;
    outln!("capacity      {}", Shown(capacity.map(|bytes| format!("{} a rack", ByteSize(bytes)))))?;
    outln!("policy        {policy}")?;
    outln!(
        "time to live  {}",
        Shown(time_to_live.map(|live| format!("{} s", live.as_secs_f64())))
    )?;
    Ok(())
}

/// A text, or the word `none`.
struct Shown(Option<String>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("none"))
    }
}
