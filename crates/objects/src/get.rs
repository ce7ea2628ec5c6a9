//! Get: from this rack's memory, or after a transfer from another rack.

use std::sync::Arc;

use rackpool_client::{Extent, GlobalAddr, Pin, PinnedBytes, Pool};

use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout, at};
use crate::layout::keys::Keys;
use crate::protocol::{self, Pinned};
use crate::steps::{Entries, Fill};
use crate::store::{PlacedHead, Store};
use crate::view::View;

impl Store {
    /// The object of this id as a slice of this rack's memory; `None` if there is no sealed object
    /// of this id. An object that is in this rack is not copied. An object of another rack is
    /// brought into this one, where later gets of all programs find it. An object that was moved to
    /// a file comes back into memory.
    ///
    /// ```no_run
    /// # use rackpool_objects::{Store, StoreError};
    /// fn sum(store: &Store) -> Result<Option<u64>, StoreError> {
    ///     let view = store.get(b"samples")?;
    ///     Ok(view.map(|samples| samples.iter().map(|sample| u64::from(*sample)).sum()))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::IdLength`], [`StoreError::Damaged`] if bytes that came from another rack have
    /// the wrong checksum, or that of the pool: the own rack has no room for the object, the
    /// program has too many pins, or the object's rack does not answer. For an object in a file
    /// also [`StoreError::SpillFile`], [`StoreError::DamagedFile`], [`StoreError::NoSpillFolder`],
    /// and in another rack [`StoreError::NotRestored`].
    pub fn get(&self, id: &[u8]) -> Result<Option<View>, StoreError> {
        self.get_filled(&Keys::of(id)?, None)
    }

    /// The same, with another way to bring bytes from other racks.
    pub(crate) fn get_filled(
        &self,
        keys: &Keys,
        filler: Option<&mut dyn Fill>,
    ) -> Result<Option<View>, StoreError> {
        let oldest = self.oldest_alive()?;
        // An object that has expired is not brought from another rack.
        if oldest > 0 && !self.contains_by(keys)? {
            self.shared.counters.absent_gets.add(1);
            return Ok(None);
        }
        let got = self.with(|handles| {
            let mut entries = Entries::new(self, handles, keys).with_filler(filler);
            let got = protocol::get(&mut entries)?.filter(|got| got.head.created_ms >= oldest);
            entries.count_get(got.is_some());
            Ok(got)
        })?;
        let layout = HeadLayout::of(keys.id_len());
        let view = |Pinned { pin, head }| Ok(View::new(self.map(pin, &head, layout)?, head));
        got.map(view).transpose()
    }

    /// As [`get`](Self::get), of an object whose bytes have a known layout.
    ///
    /// # Errors
    /// [`StoreError::LayoutTag`] if the object was created with another tag; else as
    /// [`get`](Self::get).
    pub fn get_as(&self, id: &[u8], layout_tag: u64) -> Result<Option<View>, StoreError> {
        match self.get(id)? {
            Some(view) if view.layout_tag() != layout_tag => {
                Err(StoreError::LayoutTag { expected: layout_tag, found: view.layout_tag() })
            }
            got => Ok(got),
        }
    }

    /// Whether there is a sealed object of this id.
    ///
    /// # Errors
    /// [`StoreError::IdLength`], or that of the pool.
    pub fn contains(&self, id: &[u8]) -> Result<bool, StoreError> {
        self.contains_by(&Keys::of(id)?)
    }

    fn contains_by(&self, keys: &Keys) -> Result<bool, StoreError> {
        let oldest = self.oldest_alive()?;
        let found = self.with(|handles| handles.find(keys.object()))?;
        Ok(found.is_some_and(|found| found.head.created_ms >= oldest))
    }

    /// Whether this head in the own rack is what other programs of the rack find under the id.
    pub(crate) fn is_shared(&self, keys: &Keys, head: GlobalAddr) -> Result<bool, StoreError> {
        self.with(|handles| {
            let is_it = |found: Option<PlacedHead>| found.is_some_and(|it| it.place.addr == head);
            let key = keys.object();
            Ok(is_it(handles.find_replica(key)?) || is_it(handles.find(key)?))
        })
    }

    /// Maps a pinned object for reading.
    pub(crate) fn map(
        &self,
        pin: Pin<Arc<Pool>>,
        head: &Head,
        layout: HeadLayout,
    ) -> Result<PinnedBytes<Arc<Pool>>, StoreError> {
        if head.extents == 0 {
            let end = layout.body().saturating_add(head.len());
            return Ok(pin.map_head(layout.body()..end)?);
        }
        let extents = self.read_extents(pin.addr(), head, layout)?;
        Ok(pin.map_extents(&extents, head.len())?)
    }

    /// Reads the list of extents of a head.
    pub(crate) fn read_extents(
        &self,
        addr: GlobalAddr,
        head: &Head,
        layout: HeadLayout,
    ) -> Result<Vec<Extent>, StoreError> {
        let page_bytes = self.pool().page_bytes();
        if u64::from(head.extents) * 8 > page_bytes {
            return Err(StoreError::Damaged { addr });
        }
        let mut list = vec![0; head.extents as usize * 8];
        self.pool().read(at(addr, layout.body()), &mut list)?;
        let words = list.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let extents = words.map(|word| HeadLayout::decode_extent(word, page_bytes));
        extents.collect::<Option<_>>().ok_or(StoreError::Damaged { addr })
    }
}
