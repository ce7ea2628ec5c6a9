//! Pages that swap as fast as possible, used by processes that check every value, while processes
//! are killed or stopped at chosen steps of a swap.
//!
//! | module | holds |
//! |---|---|
//! | [`ledger`] | each worker's operations, begun and acknowledged; it outlives the worker |
//! | [`worker`] | the worker: `rackpool-test-client DIR RACK swaps ...` |
//! | [`trouble`] | kinds of failures, and when each is allowed |
//! | [`atlas`] | the page in each frame and the progress of swaps, from the racks' metadata |
//! | [`frames`] | invariants of all frames |
//! | [`object`] | invariants of an object's bytes |
//! | [`round`] | the victim of a round, the way it is hit, and the time |
//! | `blows` | waiting for that time, and hitting |
//! | [`coverage`] | the phases of swaps in which processes were hit |
//! | `absence` | the processes whose absence may be noticed in a round |
//! | [`campaign`] | rounds, and the checks after each |
//! | [`report`] | results of a campaign |

mod absence;
pub mod atlas;
mod blows;
pub mod campaign;
pub mod coverage;
pub mod frames;
pub mod ledger;
pub mod object;
pub mod report;
pub mod round;
pub mod trouble;
pub mod worker;
