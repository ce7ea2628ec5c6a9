//! Recommendations and warnings, one by one.

/// A choice and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The choice.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// A warning and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub fix: String,
}
