//! What the rules of the swap would have done with a trace.
//!
//! The machines are the production ones; messages take no time, copies take what the bandwidth
//! says, nothing fails.

mod memory;
mod outcome;
mod pool;

use std::time::Duration;

use rackpool_model::{HeatRules, HeatRulesError};
use rackpool_proto::swap::SwapRules;

use crate::Trace;
use pool::Pool;

pub use outcome::{Outcome, Refused};

/// The rules to try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// When a page is hot, and how long it rests.
    pub heat: HeatRules,
    /// Times and bounds of swaps.
    pub swap: SwapRules,
    /// Whether pages move at all.
    pub swaps: bool,
}

/// What accesses and copies are taken to cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// An access to a page of the own rack.
    pub local: Duration,
    /// An access to a page of another rack.
    pub remote: Duration,
    /// Copying, in bytes a second.
    pub copy_bytes_per_s: f64,
}

impl Policy {
    /// The defaults of the daemon.
    pub const DEFAULT: Self =
        Self { heat: HeatRules::DEFAULT, swap: SwapRules::DEFAULT, swaps: true };
}

impl Costs {
    /// An emulated fabric of 2 us and 100 Gbit/s, of which swaps may use a quarter.
    pub const DEFAULT: Self = Self {
        local: Duration::from_nanos(300),
        remote: Duration::from_nanos(5_000),
        copy_bytes_per_s: 100e9 / 8.0 / 4.0,
    };
}

/// Why nothing is replayed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The rules can't be meant.
    #[error(transparent)]
    Rules(#[from] HeatRulesError),
    /// The bandwidth is none.
    #[error("copying {0} bytes a second is none: give a number above 0")]
    Bandwidth(f64),
}

/// Runs a policy over a trace. Takes memory for each page that was used, about as much as the
/// trace for large ones, and a second for some million accesses.
///
/// # Errors
/// When the rules or costs can't be meant.
pub fn replay(trace: &Trace, policy: &Policy, costs: &Costs) -> Result<Outcome, ReplayError> {
    policy.heat.check()?;
    if !(costs.copy_bytes_per_s.is_finite() && costs.copy_bytes_per_s > 0.0) {
        return Err(ReplayError::Bandwidth(costs.copy_bytes_per_s));
    }
    let mut pool = Pool::new(trace, policy, costs)?;
    for access in &trace.accesses {
        pool.accessed(access);
    }
    Ok(pool.finish(costs))
}
