//! The operations on entries, through a [`Handle`](crate::Handle).

pub(crate) mod compare;
pub(crate) mod find;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod get_many;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod lock;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod look_through;
pub(crate) mod lookahead;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod lost;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod modify;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod operations;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod placed;
pub(crate) mod round;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod scan;
pub(crate) mod store;
pub(crate) mod verify;
#[warn(clippy::missing_errors_doc)]
pub(crate) mod view;
