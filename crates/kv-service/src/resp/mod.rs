//! RESP, the protocol of Redis, in its versions 2 and 3: requests as they come, answers as they go.

mod inline;
mod lookahead;
mod reply;
mod request;

pub use lookahead::first_key;
pub use reply::Reply;
pub use request::{Args, Limits, Parsed, ProtocolError, RequestParser, STRANGERS_REQUEST};
