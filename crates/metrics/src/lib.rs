//! A process's metrics for Prometheus: `--metrics ADDRESS:PORT` of the metadata server, the rack
//! daemon, the key-value service and the mount.
//!
//! A process implements [`Source`], binds with [`bind`] and runs [`serve`]; a process without a
//! runtime calls [`start`]. `GET /metrics` returns the metrics in Prometheus' text format, or in
//! OpenMetrics where `Accept` prefers that; `GET /healthz` answers 200, or 503 with the reason.
//! docs/operating.md lists all metrics.
//!
//! | bound | is |
//! |---|---|
//! | addresses | loopback only: docs/design/access.md |
//! | connections at the same time | 32; others wait to be accepted |
//! | a connection, from its first byte to its last | 5 s |
//! | a request's head | 8 KiB and 32 headers |
#![forbid(unsafe_code)]

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod histogram;
mod page;
mod process;
mod request;
mod server;
mod thread;

pub use histogram::Histogram;
pub use page::{Format, Page, Source, Unit, render};
pub use server::{BindError, bind, check, serve};
pub use thread::start;
