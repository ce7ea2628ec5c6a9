//! Process tests of rackpool: real daemons, real clients, real kills.
//!
//! | module | holds |
//! |---|---|
//! | [`pool`] | a small pool of real processes for one test |
//! | [`client`] | driving a client that is a process of its own, and killing it |
//! | [`hosts`] | network namespaces that stand for hosts |
//! | [`mount`] | a mount of the pool's file system |
//! | [`mounts`] | a tmpfs that only a test sees |
//! | [`program`] | what that process does: `rackpool-test-client` |
//! | [`census`] | every object in use, as the racks' metadata says |
//! | [`announced`] | what a churning client said it holds |
//! | [`execs`] | transactions of the service while instances are killed |
//! | [`files`] | what a file system must do, tried on any folder |
//! | [`gap`] | how long clients had no answer while a server was killed and started again |
//! | [`leaks`] | memory in use after load with kills, against the same load without |
//! | [`locks`] | locks of files, and who waits for one |
//! | [`contents`] | bytes that tell whose they are |
//! | [`service`] | the `rackpool-kv` service, and Redis beside it |
//! | [`skip`] | tests that can't be done where they run |
//! | [`steps`] | ending programs at any of their instructions, and what must hold afterwards |
//! | [`swaps`] | pages that swap while anyone is hit at chosen steps |
//! | [`wait`] | waiting for conditions, with deadlines |
#![forbid(unsafe_code)]

pub mod announced;
pub mod census;
pub mod client;
pub mod contents;
pub mod execs;
pub mod files;
pub mod gap;
pub mod hosts;
pub mod leaks;
pub mod locks;
pub mod mount;
pub mod mounts;
pub mod pool;
pub mod program;
pub mod service;
pub mod skip;
pub mod steps;
pub mod swaps;
pub mod wait;
