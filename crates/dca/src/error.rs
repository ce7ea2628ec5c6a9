//! Errors: a rejected option, a rejected line of an access trace.

use std::fmt;

use thiserror::Error;

/// An option outside its valid range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{option} = {value} is not valid: {advice}")]
pub struct OptionsError {
    /// Name of the field.
    pub option: &'static str,
    /// The rejected value, as text.
    pub value: String,
    /// What the caller must change.
    pub advice: String,
}

impl OptionsError {
    /// Returns `Ok` if `valid` holds, else the error for `option`.
    pub(crate) fn check(
        valid: bool,
        option: &'static str,
        value: &dyn fmt::Display,
        advice: &dyn fmt::Display,
    ) -> Result<(), Self> {
        if valid {
            return Ok(());
        }
        Err(Self { option, value: value.to_string(), advice: advice.to_string() })
    }
}

/// A line of an access trace that cannot be read. Line numbers start at 1.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The line does not have exactly five fields.
    #[error(
        "line {line}: found {found} fields; write \
         nanoseconds,device-write|device-read|core-read|core-write,core,address,bytes"
    )]
    Fields {
        /// Number of the line.
        line: usize,
        /// Number of comma-separated fields in the line.
        found: usize,
    },
    /// The second field is not a known kind of access.
    #[error(
        "line {line}: unknown access {found:?}; write device-write, device-read, core-read or \
         core-write"
    )]
    Kind {
        /// Number of the line.
        line: usize,
        /// The field as written, at most 40 characters.
        found: String,
    },
    /// A field is not a number in its range.
    #[error("line {line}: {field} {found:?} is not valid; write {advice}")]
    Number {
        /// Number of the line.
        line: usize,
        /// Name of the field.
        field: &'static str,
        /// The field as written, at most 40 characters.
        found: String,
        /// The form and range that the field must have.
        advice: &'static str,
    },
    /// The time is earlier than the time of the access before it.
    #[error("line {line}: {found} ns is before the line above; sort the trace by time")]
    TimeGoesBack {
        /// Number of the line.
        line: usize,
        /// The time of this line (ns).
        found: u64,
    },
    /// The trace holds more accesses or touches more lines than the limit.
    #[error("line {line}: the trace exceeds {limit} {what}; split it into several traces")]
    TooLong {
        /// Number of the first line past the limit.
        line: usize,
        /// What is counted.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}
