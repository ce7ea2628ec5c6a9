//! Plasma's protocol as pyarrow 11 speaks it: frames, flatbuffers, requests, replies and
//! notifications. Pure.
//!
//! | module | is |
//! |---|---|
//! | [`frame`] | frames, cut out of arriving bytes |
//! | [`reader`] | a reader of flatbuffers that checks every offset |
//! | [`writer`] | a writer of flatbuffers |
//! | [`request`] | what clients send |
//! | [`reply`] | what the service answers |
//! | [`info`] | descriptions of objects, in lists and notifications |

pub mod frame;
pub mod info;
pub mod reader;
pub mod reply;
pub mod request;
pub mod writer;

mod kind;
mod object_id;

pub use frame::{Frame, FrameBuffer, FrameLimits};
pub use info::ObjectInfo;
pub use kind::MessageKind;
pub use object_id::ObjectId;
pub use reader::Malformed;
pub use reply::{PlasmaError, Reply};
pub use request::{NewObject, Request};

use writer::Value;

/// Bytes of a digest, which is an XXH64.
pub const DIGEST_BYTES: usize = 8;

/// The digest that a client has computed of an object.
pub type Digest = [u8; DIGEST_BYTES];

/// Bytes that the announced size of a file exceeds the length of its mapping by.
pub const MAP_GAP_BYTES: u64 = 8;

/// The name of the only file of a service in its replies.
pub const SEGMENT: i32 = 1;

/// A message that is sent through a connection; `None` if it would exceed 2 GiB.
fn framed(kind: MessageKind, fields: &[Value<'_>]) -> Option<Vec<u8>> {
    Some(frame::encode(kind.code(), &writer::root(fields)?))
}
