//! What the protocol does its work with.

use rackpool_client::{GlobalAddr, RackId};
use rackpool_kv::{EntryPlace, Version};

use crate::layout::head::{FileNumber, Head};
use crate::layout::registration::Registration;
use crate::store::PlacedHead;

/// After this time without progress, in milliseconds, a replica that is not ready is what a killed
/// program left.
const ABANDONED_MS: u64 = 1000;

/// A table that leads to heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The object table.
    Objects,
    /// The replica table of this rack.
    Replicas,
}

/// The words of a head that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    /// The time of the last use, in milliseconds since 1970.
    pub(crate) last_use_ms: u64,
    /// The time since then; of a replica that is not ready, since it has grown.
    pub(crate) idle_ms: u64,
    /// The number of extents of a replica that is ready.
    pub(crate) ready: Option<u32>,
}

impl Words {
    /// Of a replica: whether a program is filling it.
    pub(crate) const fn is_brought(&self) -> bool {
        self.ready.is_none() && self.idle_ms <= ABANDONED_MS
    }
}

/// A pinned object.
#[derive(Debug)]
pub(crate) struct Pinned<P> {
    pub(crate) pin: P,
    pub(crate) head: Head,
}

/// A copy of an object that is being made. Only this program writes it.
#[derive(Debug)]
pub(crate) struct Replica<M> {
    /// Owns the memory until it is published, and frees it when it is dropped before.
    pub(crate) memory: M,
    pub(crate) addr: GlobalAddr,
    /// Its extents are known when it is filled.
    pub(crate) head: Head,
}

/// An object that was read from a file, not published yet, and its pin.
pub(crate) struct Loaded<S: Steps + ?Sized> {
    pub(crate) object: Replica<S::Memory>,
    pub(crate) pin: S::Pin,
    /// Held until the object is published: programs that want it too wait for that.
    pub(crate) file: S::File,
}

/// A file with the bytes of an object.
#[derive(Debug)]
pub(crate) struct Saved<F> {
    pub(crate) number: FileNumber,
    /// `None` if there was one: the object had been restored from it.
    pub(crate) new_file: Option<F>,
}

/// What the protocol does with the tables, registration and heads of one id. Except for `fill` and
/// `wait` each step takes effect at one point in time, before or after any step of another program.
pub(crate) trait Steps {
    type Error;
    /// Keeps the memory of a head from being reused, until it is dropped.
    type Pin;
    type Memory;
    /// A file that this program has locked, until it is dropped.
    type File;

    /// The rack of this program.
    fn rack(&self) -> RackId;

    /// Whether a head is in this rack.
    fn is_local(&self, head: &PlacedHead) -> Result<bool, Self::Error>;

    /// Searches a table. There are no replicas until this program has opened the replica table.
    fn find(&mut self, source: Source) -> Result<Option<PlacedHead>, Self::Error>;

    /// Removes exactly this entry from a table, and frees its memory. Returns whether it did.
    fn remove(&mut self, source: Source, place: &EntryPlace) -> Result<bool, Self::Error>;

    /// Opens this rack's replica table. Returns false if it was open already.
    fn open_replicas(&mut self) -> Result<bool, Self::Error>;

    /// Allocates a head in this rack for a copy of an object, not ready.
    fn allocate(&mut self, object: &PlacedHead) -> Result<Replica<Self::Memory>, Self::Error>;

    /// Publishes a replica in this rack's replica table, if there is none. Returns whether it did;
    /// frees the memory if not.
    fn insert_replica(&mut self, replica: &mut Replica<Self::Memory>) -> Result<bool, Self::Error>;

    /// Removes the replica of a rack, whichever it is, and frees its memory.
    fn remove_replica_of(&mut self, rack: RackId) -> Result<(), Self::Error>;

    /// The bytes of the registration.
    fn registration(&mut self) -> Result<Option<Vec<u8>>, Self::Error>;

    /// Replaces the registration if it is `found`. Returns whether it did.
    fn replace_registration(
        &mut self,
        found: Option<&[u8]>,
        new: &Registration,
    ) -> Result<bool, Self::Error>;

    /// Whether the step has failed because the memory of an entry is lost with that of its rack.
    fn is_lost(error: &Self::Error) -> bool;

    /// Stores a closed registration of this version in the place of one whose memory is lost, with
    /// all racks that have a replica table. Does nothing if there is none.
    fn replace_lost_registration(&mut self, version: Version) -> Result<(), Self::Error>;

    /// Removes the registration if it is this one.
    fn remove_registration(&mut self, found: &Registration) -> Result<(), Self::Error>;

    /// Pins a head. Memory that was freed before may be reused all the same.
    fn pin(&mut self, addr: GlobalAddr) -> Result<Self::Pin, Self::Error>;

    /// Reads the words of a head.
    fn words(&mut self, addr: GlobalAddr) -> Result<Words, Self::Error>;

    /// Stores that a pinned head is used now.
    fn set_used(&mut self, addr: GlobalAddr) -> Result<(), Self::Error>;

    /// Makes a pinned replica ready.
    fn set_ready(&mut self, replica: &Replica<Self::Memory>) -> Result<(), Self::Error>;

    /// Allocates the extents of a pinned replica and copies an object of another rack into it,
    /// piece by piece, from the replica of the rack `source` as far as that goes. The result, an
    /// error too, says something of the object only if it is linked afterwards.
    fn fill(
        &mut self,
        replica: &mut Replica<Self::Memory>,
        object: &PlacedHead,
        source: Option<RackId>,
    ) -> Result<(), Self::Error>;

    /// Copies a pinned object of this rack to a file, if there is none with its bytes. A new file
    /// is locked from its creation on. `None` if a program has used the object meanwhile. The
    /// result, an error too, says something of the object only if it is linked afterwards.
    fn save(
        &mut self,
        pin: Self::Pin,
        object: &PlacedHead,
    ) -> Result<Option<Saved<Self::File>>, Self::Error>;

    /// Replaces exactly this object by a stub that names a file, and frees its memory. Returns
    /// whether it did.
    fn replace_by_stub(
        &mut self,
        object: &PlacedHead,
        file: FileNumber,
    ) -> Result<bool, Self::Error>;

    /// Locks the file of a stub of this rack, which may wait for another program, allocates an
    /// object, and copies the file into it. `None` if the stub is not linked any more. The result,
    /// an error too, says something of the object only if the stub is linked afterwards.
    fn load(&mut self, stub: &PlacedHead) -> Result<Option<Loaded<Self>>, Self::Error>;

    /// Replaces exactly this object or stub by a copy of it in memory of this program. Returns
    /// whether it did; frees the memory if not. A copy from a file names the file from then on.
    fn replace_by_copy(
        &mut self,
        found: &PlacedHead,
        copy: &mut Replica<Self::Memory>,
    ) -> Result<bool, Self::Error>;

    /// Asks a program in the rack of a stub to load its file, and waits until another entry has
    /// taken its place.
    fn ask_to_restore(&mut self, stub: &PlacedHead) -> Result<(), Self::Error>;

    /// The file with the bytes of a linked object or stub of this rack. For another head the result
    /// says nothing.
    fn file_of(&mut self, found: &PlacedHead) -> Result<Option<FileNumber>, Self::Error>;

    /// Locks a file of this rack, unless another program has locked it.
    fn lock_unused(&mut self, file: FileNumber) -> Result<Option<Self::File>, Self::Error>;

    /// Removes a file of this rack that no entry names any more.
    fn delete_file(&mut self, file: FileNumber);

    /// Called after a step that may take long. Fails if the tables may be gone.
    fn check_in_use(&mut self) -> Result<(), Self::Error>;

    /// Waits until this replica is ready, is not in the replica table, or has not grown for
    /// a second.
    fn wait(&mut self, replica: &PlacedHead) -> Result<(), Self::Error>;
}
