//! Requests between racks over a [`Fabric`](rackpool_fabric::Fabric), in the three modes of the
//! system's paper (section 5.5), chosen by size and by what is known.
//!
//! | module | holds |
//! |---|---|
//! | [`RpcMachine`] | requests, answers, buffers and deadlines, without clock, fabric or memory |
//! | [`Rrpc`] | the machine beside a fabric |
//! | [`Call`], [`CallEvent`] | what its owner asks for, and what it is told |
//! | [`Thresholds`] | which mode for which size, measured when a connection is made |
//! | [`Arena`] | exported memory in blocks |
//! | [`message`] | the bytes between two racks |
//!
//! `docs/design/rrpc.md` has the byte diagrams, the states and what happens at each crash.
#![forbid(unsafe_code)]

mod arena;
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

pub use arena::{Arena, Block};
pub use call::{Call, CallError, Failure, Mode, Overdue, Wants};
pub use call_events::{Bytes, CallEvent, CallId, Data, RequestId};
pub use machine::{Action, Event, MOST_OPEN, Outcome, Route, RpcMachine};
pub use message::{MAX_BODY, MAX_INLINE, MessageError};
pub use metrics::RpcMetrics;
pub use place::{Place, RemotePlace};
pub use rrpc::Rrpc;
pub use thresholds::Thresholds;
