//! The objects that this service knows: unsealed ones, those that clients use, and those that it
//! may evict.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::memory::{Listed, ObjectMemory, Removal};
use super::{ClientId, Now};
use crate::eviction::{EvictionOrder, bytes_to_evict};
use crate::protocol::reply::{Place, Size};
use crate::protocol::{Digest, ObjectId, ObjectInfo, info};

/// An object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    /// Where it lies. The offset holds while the object is unsealed or used.
    pub(super) place: Place,
    /// The client that may seal it; `None` once it is sealed.
    pub(super) creator: Option<ClientId>,
    /// It counts against the capacity, and is evicted. Other objects are guests.
    pub(super) is_ours: bool,
    /// How many clients use it.
    pub(super) users: u32,
    /// It is deleted with the last release.
    pub(super) is_deleted: bool,
    created_s: u64,
    sealed_s: u64,
    digest: Option<Digest>,
}

impl Object {
    /// Returns true if clients can get it.
    pub(super) const fn is_sealed(&self) -> bool {
        self.creator.is_none()
    }

    fn bytes(&self) -> u64 {
        self.place.size.total().unwrap_or(u64::MAX)
    }

    pub(super) fn info(&self, id: ObjectId) -> ObjectInfo {
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        ObjectInfo {
            id,
            data: signed(self.place.size.data),
            metadata: signed(self.place.size.metadata),
            users: i32::try_from(self.users).unwrap_or(i32::MAX),
            created_s: signed(self.created_s),
            construction_s: if self.is_sealed() {
                signed(self.sealed_s.saturating_sub(self.created_s))
            } else {
                info::NOT_SEALED
            },
            digest: self.digest,
            is_deletion: false,
        }
    }
}

/// The objects.
#[derive(Debug)]
pub(super) struct ObjectTable {
    objects: HashMap<ObjectId, Object>,
    /// The sealed objects of this service that no client uses.
    unused: EvictionOrder,
    capacity: u64,
    used: u64,
    evicted: u64,
    /// Notifications that were not sent yet.
    changes: Vec<ObjectInfo>,
}

impl ObjectTable {
    /// A table of the objects that an earlier service of this rack has left.
    pub(super) fn new(capacity: u64, memory: &mut impl ObjectMemory) -> Self {
        let mut table = Self {
            objects: HashMap::new(),
            unused: EvictionOrder::default(),
            capacity,
            used: 0,
            evicted: 0,
            changes: Vec::new(),
        };
        let mut listed = memory.list();
        listed.retain(|object| object.is_here && object.is_ours);
        listed.sort_by_cached_key(|object| memory.used_ms(&object.id));
        for Listed { id, size, created_s, .. } in listed {
            let object = Object {
                place: Place { offset: 0, size },
                creator: None,
                is_ours: true,
                users: 0,
                is_deleted: false,
                created_s,
                sealed_s: created_s,
                digest: None,
            };
            table.used = table.used.saturating_add(object.bytes());
            table.unused.add(id, object.bytes());
            table.objects.insert(id, object);
        }
        table
    }

    pub(super) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What the service says of itself.
    pub(super) fn debug_text(&self, clients: usize) -> String {
        format!(
            "clients: {clients}\ncapacity: {}\nused bytes: {}\nobjects: {}\nunused objects: {}\n\
             evicted bytes: {}",
            self.capacity,
            self.used,
            self.objects.len(),
            self.unused.len(),
            self.evicted
        )
    }

    pub(super) fn get(&self, id: &ObjectId) -> Option<&Object> {
        self.objects.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Object)> {
        self.objects.iter()
    }

    /// The notifications since the last call, in order.
    pub(super) fn take_changes(&mut self) -> Vec<ObjectInfo> {
        std::mem::take(&mut self.changes)
    }

    /// Evicts what an object of this size needs, if that is allowed. Returns false if there is no
    /// room then.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        evicts: bool,
        memory: &mut impl ObjectMemory,
    ) -> bool {
        if bytes > self.capacity {
            return false;
        }
        let needed = bytes_to_evict(self.used, bytes, self.capacity);
        if needed > 0 && evicts {
            self.evict(needed, memory);
        }
        self.used.saturating_add(bytes) <= self.capacity
    }

    /// Evicts unused objects of at least as many bytes, if there are; the bytes.
    pub(super) fn evict(&mut self, wanted: u64, memory: &mut impl ObjectMemory) -> u64 {
        let mut bytes = 0_u64;
        while bytes < wanted {
            let Some(id) = self.unused.first() else { break };
            if memory.evict(&id) == Removal::Refused {
                // Another rack that is away may have a replica; so may it of the next ones.
                self.unused.refresh(&id);
                break;
            }
            bytes = bytes.saturating_add(self.forget(&id));
        }
        self.evicted = self.evicted.saturating_add(bytes);
        bytes
    }

    /// Adds an object that a client has begun and uses.
    pub(super) fn begin(&mut self, id: ObjectId, place: Place, creator: ClientId, now: Now) {
        let object = Object {
            place,
            creator: Some(creator),
            is_ours: true,
            users: 1,
            is_deleted: false,
            created_s: now.unix_s,
            sealed_s: now.unix_s,
            digest: None,
        };
        self.used = self.used.saturating_add(object.bytes());
        self.objects.insert(id, object);
    }

    /// Notes that an unsealed object was sealed.
    pub(super) fn sealed(&mut self, id: &ObjectId, digest: Option<Digest>, now: Now) {
        if let Some(object) = self.objects.get_mut(id) {
            object.creator = None;
            object.digest = digest;
            object.sealed_s = now.unix_s;
            self.changes.push(object.info(*id));
        }
    }

    /// Removes an unsealed object that was freed.
    pub(super) fn aborted(&mut self, id: &ObjectId) {
        if let Some(object) = self.objects.remove(id) {
            self.used = self.used.saturating_sub(object.bytes());
        }
    }

    /// Lets one more client use a sealed object. Returns false if there is none that is known here,
    /// or if it is no longer in the store.
    pub(super) fn acquire(&mut self, id: &ObjectId, memory: &mut impl ObjectMemory) -> bool {
        let Some(object) = self.objects.get_mut(id).filter(|object| object.is_sealed()) else {
            return false;
        };
        if object.users == 0 {
            // An object of another size has replaced the one that is known.
            let place = memory.pin(id).filter(|place| place.size == object.place.size);
            let Some(place) = place else {
                memory.unpin(id);
                self.forget(id);
                return false;
            };
            object.place = place;
            self.unused.remove(id);
        }
        object.users = object.users.saturating_add(1);
        true
    }

    /// Lets a client use an object that was made elsewhere. Returns false if it is not there.
    pub(super) fn acquire_guest(&mut self, id: &ObjectId, memory: &mut impl ObjectMemory) -> bool {
        let Entry::Vacant(vacant) = self.objects.entry(*id) else {
            return self.acquire(id, memory);
        };
        let Some(place) = memory.pin(id) else { return false };
        vacant.insert(Object {
            place,
            creator: None,
            is_ours: false,
            users: 1,
            is_deleted: false,
            created_s: 0,
            sealed_s: 0,
            digest: None,
        });
        true
    }

    /// Ends a client's use of a sealed object.
    pub(super) fn release(&mut self, id: &ObjectId, memory: &mut impl ObjectMemory) {
        let Some(object) = self.objects.get_mut(id) else { return };
        object.users = object.users.saturating_sub(1);
        if object.users > 0 {
            return;
        }
        let object = *object;
        memory.unpin(id);
        if object.is_deleted && memory.delete(id) != Removal::Refused {
            self.forget(id);
        } else if object.is_ours {
            self.unused.add(*id, object.bytes());
        } else {
            self.objects.remove(id);
        }
    }

    /// Marks an object that is unsealed or used: it is deleted with the last release.
    pub(super) fn delete_later(&mut self, id: &ObjectId) {
        if let Some(object) = self.objects.get_mut(id) {
            object.is_deleted = true;
        }
    }

    pub(super) fn refresh(&mut self, id: &ObjectId) {
        self.unused.refresh(id);
    }

    /// Removes a sealed object that is not in the store any more; its bytes.
    pub(super) fn forget(&mut self, id: &ObjectId) -> u64 {
        self.changes.push(ObjectInfo::deletion(*id));
        self.unused.remove(id);
        let Some(object) = self.objects.remove(id) else { return 0 };
        if object.is_ours {
            self.used = self.used.saturating_sub(object.bytes());
        }
        object.bytes()
    }
}

/// A size that no memory has room for counts as larger than any capacity.
pub(super) fn bytes_of(size: Size) -> u64 {
    size.total().unwrap_or(u64::MAX)
}
