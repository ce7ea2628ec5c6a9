//! YCSB's property files (`-P`) and single properties (`-p`).

mod apply;
mod error;
mod given;
mod parse;

pub(super) use apply::Settings;
pub use error::PropertyError;
