//! The objects of a store of the pool, as the machine uses them.

use std::collections::HashMap;
use std::sync::Arc;

use rackpool_client::Pool;
use rackpool_objects::{CreateOptions, Store, StoreError, UnsealedObject, View};

use crate::machine::{CreateError, Listed, ObjectMemory, Removal, SealError};
use crate::protocol::ObjectId;
use crate::protocol::reply::{Place, Size};

/// The upper bits of the layout tag of objects that this service makes; the lower ones are the time
/// of their creation in seconds since 1970.
const TAG: u64 = 0x50_4c41 << TAG_SHIFT;
const TAG_SHIFT: u32 = 40;
/// What precedes an object's id in that of its copy.
const COPY: &[u8] = b"plasma-copy/";

/// The stores of a service.
#[derive(Clone, Debug)]
pub(super) struct Stores {
    /// The store that it serves.
    pub(super) objects: Store,
    /// The store that takes evicted objects.
    pub(super) external: Option<Store>,
}

/// A sealed object that clients use.
#[derive(Debug)]
enum Pinned {
    /// In place.
    View(View),
    /// A copy in consecutive pages of an object whose own pages are not. It is never sealed.
    Copy(Box<UnsealedObject>, Size),
}

impl Pinned {
    fn place(&self) -> Option<Place> {
        let (offset, size) = match self {
            Self::View(view) => (view.frames_offset()?, size_of(view)),
            Self::Copy(copy, size) => (copy.frames_offset()?, *size),
        };
        Some(Place { offset, size })
    }
}

/// The memory of objects in a pool.
#[derive(Debug)]
pub(super) struct StoreMemory {
    pool: Arc<Pool>,
    stores: Stores,
    unsealed: HashMap<ObjectId, UnsealedObject>,
    pinned: HashMap<ObjectId, Pinned>,
    /// An object that was looked up, and is used during this step of the machine.
    pub(super) arrived: Option<(ObjectId, View)>,
}

impl StoreMemory {
    pub(super) fn new(pool: Arc<Pool>, stores: Stores) -> Self {
        let (unsealed, pinned) = (HashMap::new(), HashMap::new());
        Self { pool, stores, unsealed, pinned, arrived: None }
    }

    /// The object that was looked up, if it has this id.
    fn take_arrived(&mut self, id: &ObjectId) -> Option<View> {
        self.arrived.take_if(|(arrived, _)| arrived == id).map(|(_, view)| view)
    }

    /// Copies an object into consecutive pages.
    fn copy(&self, id: &ObjectId, view: &View) -> Result<Pinned, StoreError> {
        let options =
            CreateOptions { metadata: view.metadata(), layout_tag: 0, is_contiguous: true };
        let mut copy =
            self.stores.objects.create(&[COPY, &id.0].concat(), view.len() as u64, &options)?;
        copy.copy_from_slice(view);
        Ok(Pinned::Copy(Box::new(copy), size_of(view)))
    }

    fn try_pin(&mut self, id: &ObjectId) -> Result<Option<Place>, StoreError> {
        let view = match self.take_arrived(id) {
            Some(view) => Some(view),
            None => self.stores.objects.get(&id.0)?,
        };
        let Some(view) = view else { return Ok(None) };
        let pinned = match view.frames_offset() {
            Some(_) => Pinned::View(view),
            None => self.copy(id, &view)?,
        };
        let place = pinned.place();
        self.pinned.insert(*id, pinned);
        Ok(place)
    }

    /// Copies an object to the store for evicted ones. Returns false if it is not there any more.
    fn demote(&self, id: &ObjectId, external: &Store) -> Result<bool, StoreError> {
        let Some(view) = self.stores.objects.get(&id.0)? else { return Ok(false) };
        let options = CreateOptions {
            metadata: view.metadata(),
            layout_tag: view.layout_tag(),
            is_contiguous: false,
        };
        match external.put(&id.0, &view, &options) {
            // An earlier eviction has left it there.
            Ok(()) | Err(StoreError::Exists) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn is_in_external(&self, id: &ObjectId) -> Result<bool, StoreError> {
        self.stores.external.as_ref().map_or(Ok(false), |external| external.contains(&id.0))
    }
}

fn size_of(view: &View) -> Size {
    Size { data: view.len() as u64, metadata: view.metadata().len() as u64 }
}

/// Logs an error of the store about an object.
fn log(what: &str, id: &ObjectId, error: &StoreError) {
    tracing::warn!("the object {id} can't be {what}: {error}");
}

impl ObjectMemory for StoreMemory {
    fn file_bytes(&self) -> u64 {
        self.pool.frames_bytes()
    }

    fn create(&mut self, id: &ObjectId, size: Size, created_s: u64) -> Result<u64, CreateError> {
        // The client writes them.
        let metadata = usize::try_from(size.metadata).map_err(|_| CreateError::Failed)?;
        let seconds = created_s & ((1 << TAG_SHIFT) - 1);
        let options = CreateOptions {
            metadata: &vec![0; metadata],
            layout_tag: TAG | seconds,
            is_contiguous: true,
        };
        let object = match self.stores.objects.create(&id.0, size.data, &options) {
            Ok(object) => object,
            Err(StoreError::Exists) => return Err(CreateError::Exists),
            Err(StoreError::Alloc(_) | StoreError::Fragmented { .. }) => {
                return Err(CreateError::Full);
            }
            Err(error) => {
                log("created", id, &error);
                return Err(CreateError::Failed);
            }
        };
        let offset = object.frames_offset().ok_or(CreateError::Failed)?;
        self.unsealed.insert(*id, object);
        Ok(offset)
    }

    fn fill(&mut self, id: &ObjectId, data: &[u8], metadata: &[u8]) {
        if let Some(object) = self.unsealed.get_mut(id) {
            object.copy_from_slice(data);
            object.metadata_mut().copy_from_slice(metadata);
        }
    }

    fn seal(&mut self, id: &ObjectId) -> Result<(), SealError> {
        let Some(object) = self.unsealed.remove(id) else { return Err(SealError::Failed) };
        match object.seal() {
            Ok(view) => {
                self.pinned.insert(*id, Pinned::View(view));
                Ok(())
            }
            Err(StoreError::Exists) => Err(SealError::Exists),
            Err(error) => {
                log("sealed", id, &error);
                Err(SealError::Failed)
            }
        }
    }

    fn abort(&mut self, id: &ObjectId) {
        self.unsealed.remove(id);
    }

    fn pin(&mut self, id: &ObjectId) -> Option<Place> {
        self.try_pin(id).unwrap_or_else(|error| {
            log("pinned", id, &error);
            None
        })
    }

    fn unpin(&mut self, id: &ObjectId) {
        self.pinned.remove(id);
    }

    fn contains(&mut self, id: &ObjectId) -> bool {
        let found = self.stores.objects.contains(&id.0);
        let found = found.and_then(|found| Ok(found || self.is_in_external(id)?));
        found.unwrap_or_else(|error| {
            log("looked up", id, &error);
            false
        })
    }

    fn delete(&mut self, id: &ObjectId) -> Removal {
        let Stores { objects, external } = &self.stores;
        let was_demoted = external.as_ref().map(|external| external.delete(&id.0)).transpose();
        let was_there = objects.delete(&id.0);
        match was_there.and_then(|there| Ok(there || was_demoted? == Some(true))) {
            Ok(true) => Removal::Removed,
            Ok(false) => Removal::Absent,
            Err(error) => {
                log("deleted", id, &error);
                Removal::Refused
            }
        }
    }

    fn evict(&mut self, id: &ObjectId) -> Removal {
        let external = self.stores.external.as_ref();
        let demoted = external.map_or(Ok(true), |external| self.demote(id, external));
        match demoted.and_then(|is_there| Ok(is_there && self.stores.objects.delete(&id.0)?)) {
            Ok(true) => Removal::Removed,
            Ok(false) => Removal::Absent,
            Err(error) => {
                log("evicted", id, &error);
                Removal::Refused
            }
        }
    }

    fn fill_demoted(&mut self, id: &ObjectId) -> bool {
        let Some(view) = self.take_arrived(id) else { return false };
        let Some(object) = self.unsealed.get_mut(id) else { return false };
        if object.len() != view.len() || object.metadata_mut().len() != view.metadata().len() {
            return false;
        }
        object.copy_from_slice(&view);
        object.metadata_mut().copy_from_slice(view.metadata());
        true
    }

    fn list(&mut self) -> Vec<Listed> {
        let listed = self.stores.objects.list(b"").unwrap_or_else(|error| {
            tracing::warn!("the store can't be listed: {error}");
            Vec::new()
        });
        let rack = self.pool.rack();
        let objects = listed.into_iter().filter_map(|object| {
            let is_ours = object.layout_tag >> TAG_SHIFT == TAG >> TAG_SHIFT;
            let seconds = object.layout_tag & ((1 << TAG_SHIFT) - 1);
            Some(Listed {
                // Other programs have ids of other lengths.
                id: ObjectId::parse(&object.id).ok()?,
                size: Size { data: object.bytes, metadata: object.metadata_bytes },
                created_s: if is_ours { seconds } else { object.created_ms / 1000 },
                is_here: object.rack == rack,
                is_ours,
            })
        });
        objects.collect()
    }

    fn used_ms(&mut self, id: &ObjectId) -> u64 {
        let stat = self.stores.objects.stat(&id.0).ok().flatten();
        stat.map_or(0, |stat| stat.last_use_ms)
    }
}
