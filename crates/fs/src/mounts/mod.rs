//! Creating and opening volumes, clearing up after mounts that are gone, walking a whole volume.

pub(crate) mod open;
pub(crate) mod sweep;
pub(crate) mod walk;
