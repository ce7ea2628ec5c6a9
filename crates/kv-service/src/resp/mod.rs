//! RESP, the Redis protocol, versions 2 and 3: parsing requests and writing answers.

mod inline;
mod length;
mod lookahead;
mod reply;
mod request;
mod views;

pub use lookahead::first_key;
pub use reply::Reply;
pub use request::{
    Args, LargeArgument, LongArgument, Parsed, ProtocolError, RequestLimits, RequestParser,
    UNAUTHENTICATED_REQUEST,
};
pub use views::Views;
