//! Replays a trace with other swap rules.
//!
//! The machines are the production ones. Messages take no time, copies take the time that the
//! bandwidth gives, and nothing fails.

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
    /// The hotness rules, and how long a page rests.
    pub heat: HeatRules,
    /// The parameters of swaps.
    pub swap: SwapRules,
    /// Whether pages move at all.
    pub swaps: bool,
}

/// The assumed costs of accesses and copies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// An access to a page of the same rack.
    pub local: Duration,
    /// An access to a page of another rack.
    pub remote: Duration,
    /// The bandwidth of copies, in bytes a second.
    pub copy_bytes_per_s: f64,
}

impl Policy {
    /// The daemon's defaults.
    pub const DEFAULT: Self =
        Self { heat: HeatRules::DEFAULT, swap: SwapRules::DEFAULT, swaps: true };
}

impl Costs {
    /// An emulated fabric of 2 us and 100 Gbit/s, a quarter of which swaps may use.
    pub const DEFAULT: Self = Self {
        local: Duration::from_nanos(300),
        remote: Duration::from_nanos(5_000),
        copy_bytes_per_s: 100e9 / 8.0 / 4.0,
    };
}

/// Why a trace was not replayed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A hotness rule is outside its valid range.
    #[error(transparent)]
    Rules(#[from] HeatRulesError),
    /// The bandwidth is not a positive number.
    #[error("copying {0} bytes a second is none: give a number above 0")]
    Bandwidth(f64),
}

/// Replays a trace under a policy. Takes memory for each page accessed, for large traces about as
/// much as the trace; processes some million accesses a second.
///
/// # Errors
/// When the rules or costs are outside their valid range.
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
