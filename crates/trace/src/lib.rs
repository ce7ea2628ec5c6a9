//! Access traces of rackpool, and a replay of the swap rules over them.
//!
//! A trace says which rack read or wrote which page when. [`Recording`] writes one while a program
//! runs. [`Trace::parse`] checks and reads it. [`replay()`] runs the production machines
//! (`proto::heat`, `proto::swap`) over it and reports what would have moved under other thresholds,
//! and what the accesses would have cost. docs/design/seeing.md has the format and what a replay
//! leaves out.
#![forbid(unsafe_code)]

mod format;
mod recording;
mod replay;
mod trace;

pub use format::TraceError;
pub use recording::Recording;
pub use replay::{Costs, Outcome, Policy, Refused, ReplayError, replay};
pub use trace::{Accessed, RackFrames, Trace};
