//! The segments of a table: finding, freezing, splitting and reusing them.

pub(crate) mod directory;
pub(crate) mod reshape;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod spare;
pub(crate) mod split;
