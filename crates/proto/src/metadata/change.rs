use alloc::string::String;

use rackpool_model::{GlobalAddr, PageSize, RackId};

use crate::directory::{Moved, Run};
use crate::membership::RackRecord;

/// A change of the durable records. The store keeps the sum of all changes. A restart restores it
/// from changes in the order of these variants, and of ids within a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The server has started for the `boot`th time. Membership versions and swap numbers of this
    /// boot are above all earlier ones.
    Started {
        /// Counts from 1.
        boot: u32,
        /// The random id of this start; 0 if a release without positions wrote it.
        server: u64,
    },
    /// The server of the last start has made its `commit`th commit, which contains this change. Its
    /// start is the first.
    Advanced {
        /// Counts from 1 at each start of the server.
        commit: u64,
    },
    /// The first rack has set the pool's page size.
    PoolFormatted {
        /// The page size.
        page_size: PageSize,
    },
    /// A memory has been assigned its page ids.
    RunHandedOut(Run),
    /// A daemon serves the rack; the record replaces the previous one.
    RackRegistered {
        /// The rack.
        rack: RackId,
        /// The daemon's announcement, and whether it has stopped since.
        record: RackRecord,
    },
    /// The rack's daemon has stopped regularly: [`RackRecord::left`] becomes true.
    RackLeft {
        /// The rack.
        rack: RackId,
    },
    /// A page has moved. The move of the page exchanged for it is in the same batch.
    PageMoved(Moved),
    /// An address has been given a name.
    RootPut {
        /// The name.
        name: String,
        /// The address; it replaces an earlier one.
        addr: GlobalAddr,
    },
    /// A name has been removed.
    RootRemoved {
        /// The name.
        name: String,
    },
}
