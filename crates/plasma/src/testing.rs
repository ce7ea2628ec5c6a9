//! A memory of objects for tests: the bytes of the file are one array, and nothing outlives it.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::{CreateError, Listed, ObjectMemory, Removal, SealError};
use crate::protocol::ObjectId;
use crate::protocol::reply::{Place, Size};

/// An object of the memory.
#[derive(Clone, Copy, Debug)]
pub struct TestObject {
    /// Where it lies.
    pub place: Place,
    /// When it was created.
    pub created_s: u64,
    used_ms: u64,
}

/// A memory of objects that a test can look into.
#[derive(Debug, Default)]
pub struct TestMemory {
    /// The bytes of the file.
    pub bytes: Vec<u8>,
    /// Objects that were begun.
    pub unsealed: BTreeMap<ObjectId, TestObject>,
    /// Sealed objects.
    pub sealed: BTreeMap<ObjectId, TestObject>,
    /// Objects that are pinned, sealed or removed.
    pub pinned: BTreeMap<ObjectId, TestObject>,
    /// Bytes of demoted objects, if this memory demotes: data, then metadata.
    pub demoted: Option<BTreeMap<ObjectId, (Size, Vec<u8>)>>,
    /// Objects whose removal is refused.
    pub stuck: BTreeSet<ObjectId>,
    /// Sealed objects that no service of this protocol made.
    pub foreign: BTreeSet<ObjectId>,
    uses: u64,
}

impl TestMemory {
    /// A memory with a file of this many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes], ..Self::default() }
    }

    /// What the file has of an object: data, then metadata.
    #[must_use]
    pub fn contents(&self, place: Place) -> &[u8] {
        &self.bytes[range(place)]
    }

    /// Seals an object of another program.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn seal_elsewhere(&mut self, id: ObjectId, size: Size) {
        assert!(self.create(&id, size, 0).is_ok() && self.seal(&id).is_ok(), "room for {id}");
        self.unpin(&id);
        self.foreign.insert(id);
    }

    /// The first gap of this many bytes between the objects.
    fn gap(&self, bytes: u64) -> Option<u64> {
        let all = self.unsealed.values().chain(self.sealed.values()).chain(self.pinned.values());
        let mut taken: Vec<_> = all.map(|object| object.place).collect();
        taken.sort_by_key(|place| place.offset);
        let mut at = 0;
        for place in taken {
            if place.offset.saturating_sub(at) >= bytes && place.offset >= at {
                break;
            }
            // Pinned objects are also sealed ones.
            at = at.max(place.offset + place.size.total()?);
        }
        (at.checked_add(bytes)? <= self.file_bytes()).then_some(at)
    }
}

fn range(place: Place) -> std::ops::Range<usize> {
    let end = place.offset + place.size.data + place.size.metadata;
    let narrow = |offset| usize::try_from(offset).unwrap_or(usize::MAX);
    narrow(place.offset)..narrow(end)
}

impl ObjectMemory for TestMemory {
    fn file_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn create(&mut self, id: &ObjectId, size: Size, created_s: u64) -> Result<u64, CreateError> {
        assert!(!self.unsealed.contains_key(id), "{id} is begun twice");
        if self.sealed.contains_key(id) {
            return Err(CreateError::Exists);
        }
        let offset = size.total().and_then(|bytes| self.gap(bytes)).ok_or(CreateError::Full)?;
        let place = Place { offset, size };
        self.unsealed.insert(*id, TestObject { place, created_s, used_ms: 0 });
        Ok(offset)
    }

    fn fill(&mut self, id: &ObjectId, data: &[u8], metadata: &[u8]) {
        let place = self.unsealed[id].place;
        self.bytes[range(place)].copy_from_slice(&[data, metadata].concat());
    }

    fn seal(&mut self, id: &ObjectId) -> Result<(), SealError> {
        let object = self.unsealed.remove(id);
        let object = object.unwrap_or_else(|| panic!("{id} is sealed but was not begun"));
        if self.sealed.contains_key(id) {
            return Err(SealError::Exists);
        }
        self.sealed.insert(*id, object);
        assert!(self.pinned.insert(*id, object).is_none(), "{id} was pinned before its seal");
        Ok(())
    }

    fn abort(&mut self, id: &ObjectId) {
        assert!(self.unsealed.remove(id).is_some(), "{id} is aborted but was not begun");
    }

    fn pin(&mut self, id: &ObjectId) -> Option<Place> {
        self.uses += 1;
        let object = self.sealed.get_mut(id)?;
        object.used_ms = self.uses;
        assert!(self.pinned.insert(*id, *object).is_none(), "{id} is pinned twice");
        Some(object.place)
    }

    fn unpin(&mut self, id: &ObjectId) {
        self.pinned.remove(id);
    }

    fn contains(&mut self, id: &ObjectId) -> bool {
        let is_demoted = self.demoted.as_ref().is_some_and(|demoted| demoted.contains_key(id));
        is_demoted || self.sealed.contains_key(id)
    }

    fn delete(&mut self, id: &ObjectId) -> Removal {
        if self.stuck.contains(id) {
            return Removal::Refused;
        }
        let was_demoted = self.demoted.as_mut().is_some_and(|all| all.remove(id).is_some());
        let was_sealed = self.sealed.remove(id).is_some();
        if was_demoted || was_sealed { Removal::Removed } else { Removal::Absent }
    }

    fn evict(&mut self, id: &ObjectId) -> Removal {
        assert!(!self.pinned.contains_key(id), "{id} is evicted while it is used");
        if self.stuck.contains(id) {
            return Removal::Refused;
        }
        let Some(object) = self.sealed.remove(id) else { return Removal::Absent };
        let bytes = self.contents(object.place).to_vec();
        if let Some(demoted) = &mut self.demoted {
            demoted.insert(*id, (object.place.size, bytes));
        }
        Removal::Removed
    }

    fn fill_demoted(&mut self, id: &ObjectId) -> bool {
        let place = self.unsealed[id].place;
        let Some((size, bytes)) = self.demoted.as_ref().and_then(|all| all.get(id)) else {
            return false;
        };
        let fits = *size == place.size;
        if fits {
            self.bytes[range(place)].copy_from_slice(bytes);
        }
        fits
    }

    fn list(&mut self) -> Vec<Listed> {
        let sealed = self.sealed.iter().map(|(id, object)| Listed {
            id: *id,
            size: object.place.size,
            created_s: object.created_s,
            is_here: true,
            is_ours: !self.foreign.contains(id),
        });
        sealed.collect()
    }

    fn used_ms(&mut self, id: &ObjectId) -> u64 {
        self.sealed.get(id).map_or(0, |object| object.used_ms)
    }
}
