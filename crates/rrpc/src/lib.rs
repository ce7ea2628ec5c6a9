//! RRPC: requests between racks over a [`Fabric`](rackpool_fabric::Fabric), in the three modes of
//! the Rcmp paper (section 5.5). The mode depends on the size of the data and on what is known of
//! it.
//!
//! | module | holds |
//! |---|---|
//! | [`RpcMachine`] | requests, answers, buffers and deadlines, without clock, fabric or memory |
//! | [`Rrpc`] | the machine's shell, which runs beside a fabric |
//! | [`Call`], [`CallEvent`] | the owner's requests, and the events that the owner gets |
//! | [`Thresholds`] | the mode for each size, measured when a connection is made |
//! | [`Arena`] | exported memory in blocks |
//! | [`message`] | the message format between two racks |
//!
//! `docs/design/rrpc.md` describes the formats, the states and the crashes.
#![forbid(unsafe_code)]

mod arena;
mod budget;
mod calibration;
mod call;
mod call_events;
mod flow;
mod machine;
pub mod message;
mod metrics;
mod place;
mod rrpc;
mod slots;
mod thresholds;
mod windows;

pub use arena::{Arena, Block};
pub use budget::{BytesInFlight, InFlight, InFlightLimits};
pub use call::{Call, CallError, Failure, Mode, Overdue, Wants};
pub use call_events::{Bytes, CallEvent, CallId, Data, RequestId};
pub use machine::{MOST_OPEN, Outcome, Route, RpcAction, RpcEvent, RpcMachine};
pub use message::{MAX_BODY, MAX_INLINE, MessageError};
pub use metrics::RpcMetrics;
pub use place::{Place, RemotePlace};
pub use rrpc::Rrpc;
pub use thresholds::Thresholds;
