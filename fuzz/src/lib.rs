//! Fuzz targets: one function for each parser of bytes that another process wrote.
//!
//! A target takes arbitrary bytes, interprets them as a scenario (arriving bytes, words written
//! into shared memory, requests in between), and panics when a property is violated. The same
//! functions are run
//! - by `cargo test`, over the corpus in `corpus/<target>` and over mutations of it with a fixed
//!   seed;
//! - by `cargo x fuzz --builtin <target> <seconds>`, which keeps mutating;
//! - by `cargo x fuzz <target> <seconds>` under libFuzzer (`libfuzzer/`), guided by coverage.
//!
//! | module | the bytes come from |
//! |---|---|
//! | [`messages`] | sockets and the fabric: control, metadata and peer messages, their frames |
//! | [`words`] | ring entries, call cells, page words, slab headers |
//! | [`geometry`] | superblocks of metadata and client files |
//! | [`slab`] | the metadata a daemon finds when it starts |
//! | [`plane`] | a data plane's clients, other racks and metadata server |
//! | [`fabric`] | handshakes and message rings of the emulated fabric |
//! | [`tcp`] | handshakes and channels of the fabric over TCP |
//! | [`rrpc`] | requests between racks, as their caller and their server see them |
//! | [`verbs`] | handshakes and message numbers of the verbs fabric |
//! | [`table`] | the pool, as the hash table in it sees it |
//! | [`ordered`] | the pool, as ordered maps and sorted sets in it see it |
//! | [`volume`] | the pool, as the file system in it sees it |
//! | [`objects`] | the pool, as object stores, casts and groups in it see it |
//! | [`trace`] | access traces |
//! | [`resp`] | clients of the service that speaks Redis' protocol |
//! | [`plasma`] | clients of the service that speaks Plasma's protocol |
//! | [`reply`] | servers that `rackpool ycsb` measures |
//! | [`scrape`] | clients of the metrics port |
#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "a panic is what a target has to say, and what this machine lacks is no finding"
)]

pub mod campaign;
pub mod fabric;
pub mod geometry;
pub mod handshake;
mod input;
mod memory;
pub mod messages;
pub mod objects;
pub mod ordered;
pub mod plane;
pub mod plasma;
pub mod reply;
pub mod resp;
pub mod rrpc;
pub mod scrape;
pub mod slab;
pub mod table;
pub mod tcp;
pub mod trace;
pub mod verbs;
pub mod volume;
pub mod words;

pub use input::Input;

/// A target and its name, which is also that of its corpus.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The folder below `corpus`, and the name on the command line.
    pub name: &'static str,
    /// Panics when the bytes violate a property.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "messages", run: messages::messages },
    Target { name: "frames", run: messages::frames },
    Target { name: "words", run: words::words },
    Target { name: "geometry", run: geometry::geometry },
    Target { name: "slab", run: slab::slab },
    Target { name: "plane", run: plane::plane },
    Target { name: "hello", run: handshake::hello },
    Target { name: "verbs", run: verbs::verbs },
    Target { name: "link", run: fabric::link },
    Target { name: "offer", run: handshake::offer },
    Target { name: "channel", run: tcp::channel },
    Target { name: "answers", run: tcp::answers },
    Target { name: "rrpc", run: rrpc::rrpc },
    Target { name: "table", run: table::table },
    Target { name: "ordered", run: ordered::ordered },
    Target { name: "volume", run: volume::volume },
    Target { name: "objects", run: objects::objects },
    Target { name: "trace", run: trace::trace },
    Target { name: "resp", run: resp::resp },
    Target { name: "plasma", run: plasma::plasma },
    Target { name: "replies", run: reply::replies },
    Target { name: "scrape", run: scrape::scrape },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}
