//! Pages that swap as fast as they go, used by processes that check every value, while anyone is
//! killed or stopped at chosen steps of a swap.
//!
//! | module | holds |
//! |---|---|
//! | [`ledger`] | what each worker has begun and what was acknowledged; it outlives the worker |
//! | [`worker`] | what a worker does: `rackpool-test-client DIR RACK swaps ...` |
//! | [`atlas`] | which page lies in which frame, and how far swaps are, as the racks' metadata says |
//! | [`round`] | who is hit, how, and when |
//! | [`campaign`] | rounds, and what must hold after each |

pub mod atlas;
pub mod campaign;
pub mod ledger;
pub mod round;
pub mod worker;
