//! Benchmarks of rackpool, each beside its limit.
//!
//! `limits` measures everything for which an issue or the design sets a limit, and prints
//! measurement and limit side by side. Both sides of a ratio are measured in turn in one run, and
//! medians are compared, because the available machines are shared and noisy. `primitives` times
//! the small parts with criterion.
//!
//! ```sh
//! cargo x bench                 # everything
//! cargo x bench local kv        # some sections of `limits`
//! ```
#![expect(
    unsafe_code,
    reason = "calls the allocator that the cache is compared with; handles page faults for one of \
              the baselines"
)]

pub mod alloc;
mod baselines;
pub mod blocks;
pub mod cast_hosts;
pub mod casts;
pub mod clients;
pub mod corun;
pub mod cosmos;
mod cpu;
mod fabric_memory;
pub mod figures;
pub mod fuse;
pub mod groups;
mod helper;
pub mod idle;
pub mod kills;
pub mod kv;
pub mod line_cache;
pub mod local;
pub mod locks;
pub mod measure;
pub mod mixture;
pub mod names;
pub mod object_count;
pub mod object_tcp;
pub mod objects;
mod outage;
pub mod page;
pub mod pauses;
pub mod peers;
pub mod plasma;
pub mod rack_daemons;
pub mod recovery;
pub mod remote;
pub mod rings;
pub mod rrpc;
pub mod service;
pub mod sharing;
pub mod steps;
pub mod swap;
pub mod table;
pub mod tcp;
