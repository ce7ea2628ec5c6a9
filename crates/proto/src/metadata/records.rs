use alloc::collections::BTreeMap;
use alloc::string::String;

use rackpool_model::{PageSize, RackId};
use rackpool_wire::bounds::check_name;

use super::lineage::Lineage;
use super::{Change, Roots};
use crate::directory::{Directory, DirectoryError};
use crate::membership::RackRecord;

/// A change that contradicts the records. In the content of the store it means that another program
/// has altered the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A run or a rack contradicts the page directory.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A rack that never registered has left.
    #[error("{0} left but never registered")]
    UnknownRack(RackId),
    /// A name of a root is empty or too long.
    #[error("\"{0}\" can't be a name")]
    Name(String),
}

/// The durable state: the sum of all changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    pub(super) boot: u32,
    pub(super) lineage: Lineage,
    pub(super) page_size: Option<PageSize>,
    pub(super) directory: Directory,
    pub(super) racks: BTreeMap<RackId, RackRecord>,
    pub(super) roots: Roots,
}

impl Records {
    /// Applies a change.
    ///
    /// # Errors
    /// When the change contradicts the records, which stay as they were.
    pub fn apply(&mut self, change: &Change) -> Result<(), RecordError> {
        match change {
            Change::Started { boot, server } => {
                self.boot = *boot;
                self.lineage.start(*boot, *server);
            }
            Change::Advanced { commit } => self.lineage.advance(*commit),
            Change::PoolFormatted { page_size } => self.page_size = Some(*page_size),
            Change::RunHandedOut(run) => self.directory.add(*run)?,
            Change::RackRegistered { rack, record } => {
                self.directory.serve(*rack, record.memory)?;
                self.racks.insert(*rack, record.clone());
            }
            Change::RackLeft { rack } => {
                let record = self.racks.get_mut(rack).ok_or(RecordError::UnknownRack(*rack))?;
                record.left = true;
            }
            Change::PageMoved(moved) => self.directory.place(*moved)?,
            Change::RootPut { name, addr } => {
                check_name(name).map_err(|_| RecordError::Name(name.clone()))?;
                self.roots.set(name, Some(*addr));
            }
            Change::RootRemoved { name } => self.roots.set(name, None),
        }
        Ok(())
    }

    /// Returns the next boot number.
    pub(super) const fn next_boot(&self) -> u32 {
        self.boot.saturating_add(1)
    }
}
