//! What the machine needs of the memory of objects.

use crate::protocol::ObjectId;
use crate::protocol::reply::{Place, Size};

/// Why an object can't be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// There is an object of this id.
    Exists,
    /// There is no room. Memory that was freed may become usable later.
    Full,
    /// The memory can't be used, as its log says.
    Failed,
}

/// Why an object can't be sealed. It is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealError {
    /// Another program has sealed an object of this id first.
    Exists,
    /// The memory can't be used, as its log says.
    Failed,
}

/// The outcome of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The object was here.
    Removed,
    /// There was no such object.
    Absent,
    /// It can't be removed at present.
    Refused,
}

/// A sealed object of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: ObjectId,
    /// Its bytes.
    pub size: Size,
    /// When it was created, in seconds since 1970; 0 if that is not known.
    pub created_s: u64,
    /// Its home is this rack.
    pub is_here: bool,
    /// A service of this protocol made it.
    pub is_ours: bool,
}

/// The memory of objects. An object that was begun is held until it is sealed or aborted; a sealed
/// object that is pinned keeps its place until it is unpinned.
pub trait ObjectMemory {
    /// The bytes of the file that clients map.
    fn file_bytes(&self) -> u64;

    /// Begins an object; the offset of its data in the file.
    ///
    /// # Errors
    /// If there is no room, or such an object.
    fn create(&mut self, id: &ObjectId, size: Size, created_s: u64) -> Result<u64, CreateError>;

    /// Writes the bytes of an object that was begun. They are as many as it was begun for.
    fn fill(&mut self, id: &ObjectId, data: &[u8], metadata: &[u8]);

    /// Seals an object that was begun. It is pinned then.
    ///
    /// # Errors
    /// If it is not sealed. It is freed then.
    fn seal(&mut self, id: &ObjectId) -> Result<(), SealError>;

    /// Frees an object that was begun.
    fn abort(&mut self, id: &ObjectId);

    /// Pins a sealed object; `None` if there is none that clients can map.
    fn pin(&mut self, id: &ObjectId) -> Option<Place>;

    /// Ends a pin.
    fn unpin(&mut self, id: &ObjectId);

    /// Returns true if there is a sealed object of this id, demoted or not.
    fn contains(&mut self, id: &ObjectId) -> bool;

    /// Deletes a sealed object, demoted or not.
    fn delete(&mut self, id: &ObjectId) -> Removal;

    /// Takes a sealed object out of the store: demotes it if there is another store for that, else
    /// deletes it.
    fn evict(&mut self, id: &ObjectId) -> Removal;

    /// Writes the bytes of a demoted object into the object of the same id that was begun. Returns
    /// false if it is no longer there, or has another size.
    fn fill_demoted(&mut self, id: &ObjectId) -> bool;

    /// All sealed objects that are not demoted.
    fn list(&mut self) -> Vec<Listed>;

    /// When a listed object was used last, about, in a time that only grows.
    fn used_ms(&mut self, id: &ObjectId) -> u64;
}
