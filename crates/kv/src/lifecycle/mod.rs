//! A whole table: creating, opening, destroying and walking it.

#[warn(clippy::missing_errors_doc)]
pub(crate) mod create;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod destroy;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod walk;
