//! A whole table: creating, opening, destroying, removing and walking it.

#[warn(clippy::missing_errors_doc)]
pub(crate) mod create;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod destroy;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod remove;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod walk;
