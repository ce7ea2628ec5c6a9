//! Pages that swap as fast as they go, used by processes that check every value, while anyone is
//! killed or stopped at chosen steps of a swap.
//!
//! | module | holds |
//! |---|---|
//! | [`ledger`] | what each worker has begun and what was acknowledged; it outlives the worker |
//! | [`worker`] | what a worker does: `rackpool-test-client DIR RACK swaps ...` |
//! | [`trouble`] | how an operation may fail, and when it may |
//! | [`atlas`] | which page lies in which frame, and how far swaps are, as the racks' metadata says |
//! | [`frames`] | what must hold of all frames |
//! | [`object`] | what must hold of an object's bytes |
//! | [`round`] | who is hit, how, and when |
//! | `blows` | waiting for the moment, and hitting |
//! | [`coverage`] | in which phases of swaps blows fell |
//! | `absence` | who may have been missed in a round |
//! | [`campaign`] | rounds, and what must hold after each |
//! | [`report`] | what a campaign has seen |

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
