//! Process tests of rackpool: real daemons and clients, killed with real signals.
//!
//! | module | holds |
//! |---|---|
//! | [`pool`] | a small pool of real processes for one test |
//! | [`client`] | starts, drives and kills a client in a process of its own |
//! | [`hosts`] | network namespaces that stand for hosts |
//! | [`host_pool`] | a pool whose racks are on such hosts |
//! | [`mount`] | a mount of the pool's file system |
//! | [`mounts`] | a tmpfs that only a test sees |
//! | [`program`] | `rackpool-test-client`, the program that [`client`] starts |
//! | [`census`] | all objects in use, read from the racks' metadata |
//! | [`announced`] | the objects that a churning client has announced on its output |
//! | [`execs`] | transactions of the key-value service while its instances are killed |
//! | [`files`] | the rules of a file system, tested in any folder |
//! | [`gap`] | the longest time without an answer while a server is killed and restarted |
//! | [`leaks`] | memory in use after load with kills, compared with the same load without |
//! | [`lock_rounds`] | programs that are killed while they hold locks of the pool |
//! | [`locks`] | file locks, and detection of threads that wait for one |
//! | [`contents`] | byte patterns that identify their object |
//! | [`service`] | the `rackpool-kv` service, and Redis beside it |
//! | [`steps`] | kills programs at any of their instructions and checks what they leave |
//! | [`swaps`] | pages that swap while processes are killed or stopped at chosen steps |
#![forbid(unsafe_code)]

pub mod announced;
pub mod census;
pub mod client;
pub mod contents;
pub mod execs;
pub mod files;
pub mod gap;
pub mod host_pool;
pub mod hosts;
pub mod leaks;
pub mod lock_rounds;
pub mod locks;
pub mod mount;
pub mod mounts;
pub mod plasma;
pub mod pool;
pub mod program;
mod server_process;
pub mod service;
pub mod steps;
pub mod swaps;
