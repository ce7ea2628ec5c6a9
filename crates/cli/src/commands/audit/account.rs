//! The result of an audit.

use std::collections::BTreeMap;

use rackpool_model::{GlobalAddr, RackId};

use crate::commands::roots::Content;

/// A number of objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

impl Share {
    pub(super) fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// The objects reachable from a root.
#[derive(Clone, Debug)]
pub(super) struct RootShare {
    pub(super) name: String,
    /// The content, or why it is unknown.
    pub(super) content: Result<Content, String>,
    pub(super) share: Share,
    /// Parts that could not be read; objects behind them are missing in the share.
    pub(super) unread: u64,
}

/// The result of an audit.
#[derive(Debug, Default)]
pub(super) struct Audit {
    /// The racks whose objects were counted.
    pub(super) racks: Vec<RackId>,
    /// The racks whose objects were not counted, and why.
    pub(super) missing: Vec<(RackId, String)>,
    pub(super) total: Share,
    pub(super) roots: Vec<RootShare>,
    /// Number of clients.
    pub(super) clients: u64,
    /// Objects in clients' caches and reservations, and in exchanges between racks.
    pub(super) held: Share,
    /// Objects allocated or freed during the audit.
    pub(super) changing: Share,
    /// Objects that no root leads to.
    pub(super) unreached: Share,
    /// The unreached objects by object size in bytes.
    pub(super) sizes: BTreeMap<u64, Share>,
    /// The unreached objects, with the size of each in bytes.
    pub(super) list: Vec<(GlobalAddr, u64)>,
}
