//! Every message between rackpool processes, with bounded encoding and decoding.
//!
//! | module | between |
//! |---|---|
//! | [`metadata`] | a rack daemon (or the `rackpool` command) and the metadata server, over TCP |
//! | [`control`] | a client and its rack daemon, over the daemon's Unix socket |
//! | [`history`] | the `rackpool` command and a rack daemon: hotness of pages; part of `control` |
//! | [`peer`] | two rack daemons, as requests over their fabric |
//! | [`rack`] | a client's threads and their rack daemon, in ring entries and call cells |
//! | [`swap`] | a rack daemon and the metadata server, and two rack daemons, about swaps |
//!
//! [`bounds`] has the limits of their fields.
#![forbid(unsafe_code)]

pub mod bounds;
mod codec;
pub mod control;
pub mod history;
pub mod lock;
pub mod metadata;
pub mod peer;
pub mod rack;
pub mod swap;

pub use codec::{
    CodecError, FRAME_HEADER_BYTES, FrameReader, MAX_FRAME_BYTES, Unreadable, decode, encode,
};
