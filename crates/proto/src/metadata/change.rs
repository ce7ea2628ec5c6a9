use alloc::string::String;

use rackpool_model::{GlobalAddr, PageSize, RackId};

use crate::directory::{Moved, Run};
use crate::membership::RackRecord;

/// A change of the durable records. The store keeps their sum; all changes of its content, given
/// in the order of these variants and of ids, restore it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The server has started for the `boot`th time. Versions of this boot are above all others.
    Started {
        /// Counts from 1.
        boot: u32,
        /// Drawn at random; 0 when a release without positions wrote it.
        server: u64,
    },
    /// The server that started last has made its `commit`th commit: this one. Its start is the
    /// first.
    Advanced {
        /// Counts from 1 in each life of the server.
        commit: u64,
    },
    /// The first rack has decided the pool's page size.
    PoolFormatted {
        /// The page size.
        page_size: PageSize,
    },
    /// A memory has got its page ids.
    RunHandedOut(Run),
    /// A daemon serves the rack; the record replaces an earlier one.
    RackRegistered {
        /// The rack.
        rack: RackId,
        /// What it told, and whether it has left since.
        record: RackRecord,
    },
    /// The rack's daemon has stopped on purpose. [`RackRecord::left`] of its record becomes true.
    RackLeft {
        /// The rack.
        rack: RackId,
    },
    /// A page has moved, together with the one it changed places with: both stand in one batch.
    PageMoved(Moved),
    /// An address has been given a name.
    RootPut {
        /// The name.
        name: String,
        /// The address, in place of any earlier one.
        addr: GlobalAddr,
    },
    /// A name has been taken away.
    RootRemoved {
        /// The name.
        name: String,
    },
}
