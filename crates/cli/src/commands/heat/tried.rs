//! A policy that was tried.

use rackpool_trace::{Outcome, Policy};

/// A policy and the outcome of its replay.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub(crate) policy: Policy,
    pub(crate) outcome: Outcome,
}
