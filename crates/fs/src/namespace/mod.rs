//! Operations on names.

pub(crate) mod directory;
pub(crate) mod names;
pub(crate) mod read_dir;
pub(crate) mod remove;
pub(crate) mod rename;
