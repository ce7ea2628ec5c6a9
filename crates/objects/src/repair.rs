//! What a store does after a rack has lost its memory: docs/design/objects.md, "Lost memory".

use std::sync::Arc;

use rackpool_client::{Pool, RackId};
use rackpool_kv::Handle;

use crate::error::{StoreError, but_lost};
use crate::layout::header::StoreHeader;
use crate::layout::keys::Keys;
use crate::protocol::{self, Source, Steps as _};
use crate::steps::Entries;
use crate::store::Store;

/// About the number of entries that are looked at between two steps of a scan.
const STEP: usize = 256;

/// The ids of one step of a scan, whose cursor is 0 at its end.
fn next_ids(table: &mut Handle<Arc<Pool>>, cursor: &mut u64) -> Result<Vec<Keys>, StoreError> {
    let mut found = Vec::new();
    *cursor = table.scan(*cursor, STEP, |key, _| {
        found.extend(Keys::id_in(key).and_then(|id| Keys::of(id).ok()));
    })?;
    Ok(found)
}

impl Store {
    /// Removes what is left of objects whose memory is lost with that of its rack; their ids are
    /// free afterwards. Returns the number of entries that were lost. Until then a get of such an
    /// object fails with the error of the lost page, except in racks that have a replica.
    ///
    /// A create or a delete that meets a lost entry repairs the store by itself.
    ///
    /// ```no_run
    /// # use rackpool_objects::{Store, StoreError};
    /// fn forget_lost(store: &Store) -> Result<(), StoreError> {
    ///     println!("{} entries were lost", store.repair()?);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// That of the pool: a rack with replicas does not answer, for example. Then nothing is lost by
    /// the call; call again.
    pub fn repair(&self) -> Result<u64, StoreError> {
        self.check_in_use()?;
        // What is lost later is left to the next repair.
        let lost = self.with(|handles| Ok(handles.objects.lost_entries()?))?;
        if lost.is_empty() {
            return Ok(0);
        }
        for rack in self.racks_with_replicas()? {
            // They may be lost with their table.
            but_lost(self.remove_replicas_of_lost(rack))?;
        }
        self.with(|handles| {
            let mut cursor = 0;
            loop {
                for keys in next_ids(&mut handles.objects, &mut cursor)? {
                    protocol::restore_registration(&mut Entries::new(self, handles, &keys))?;
                }
                if cursor == 0 {
                    break;
                }
            }
            handles.objects.remove_lost(&lost)?;
            Ok(lost.len() as u64)
        })
    }

    /// Runs `work`, and again after a repair if it meets a lost entry.
    pub(crate) fn repairing<R>(
        &self,
        mut work: impl FnMut() -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        loop {
            match work() {
                Err(error) if error.is_lost() && self.repair()? > 0 => {}
                result => return result,
            }
        }
    }

    /// The racks that have, or had, replicas.
    pub(crate) fn racks_with_replicas(&self) -> Result<Vec<RackId>, StoreError> {
        let mut header = vec![0; StoreHeader::BYTES];
        self.pool().read(self.header().0, &mut header)?;
        Ok(StoreHeader::racks(&header).collect())
    }

    /// Removes the replicas of a rack whose objects are lost.
    fn remove_replicas_of_lost(&self, rack: RackId) -> Result<(), StoreError> {
        let Some(mut table) = self.replica_table_if_any(rack)? else { return Ok(()) };
        let mut cursor = 0;
        loop {
            let ids = next_ids(&mut table, &mut cursor)?;
            self.check_in_use()?;
            for keys in ids {
                self.remove_if_lost(&mut table, &keys)?;
            }
            if cursor == 0 {
                break;
            }
        }
        let lost = table.lost_entries()?;
        table.remove_lost(&lost)?;
        Ok(())
    }

    fn remove_if_lost(
        &self,
        replicas: &mut Handle<Arc<Pool>>,
        keys: &Keys,
    ) -> Result<(), StoreError> {
        let found = self.with(|handles| Entries::new(self, handles, keys).find(Source::Objects));
        match found {
            Ok(Some(_)) => return Ok(()),
            Err(error) if !error.is_lost() => return Err(error),
            Ok(None) | Err(_) => {}
        }
        replicas.delete(keys.object())?;
        Ok(())
    }
}
