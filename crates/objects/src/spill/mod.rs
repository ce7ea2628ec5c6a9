//! Objects that make room move to files of their rack, and come back with the next get:
//! `docs/design/spill.md`. The order of the steps is that of the protocol.

mod folder;

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rackpool_client::{AccessError, GlobalAddr, Pool};

pub(crate) use self::folder::{LockedFile, SpillFolder};
use crate::error::StoreError;
use crate::layout::head::{FileNumber, Head, HeadLayout};
use crate::layout::header::StorePhase;
use crate::layout::keys::Keys;
use crate::protocol;
use crate::steps::Entries;
use crate::store::{PlacedHead, Purpose, Store, read_prefix};
use crate::survey::Survey;
use crate::unsealed::FixedMemory;

/// The shortest time between two sweeps of files by one program, and the least multiple of a
/// sweep's duration.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
const SWEEP_REST: u32 = 20;

/// An error of a file.
fn of_file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.into();
    |source| StoreError::SpillFile { path, source }
}

/// Removes all files of a store that was removed, as far as they are in this rack. Sweeps of other
/// stores remove the rest.
pub(crate) fn remove_all_files(pool: &Pool, header: GlobalAddr, stamp: u64) {
    if let Some(rack) = pool.spill_folder() {
        let _ = SpillFolder::of(&rack, header, stamp).delete_all();
    }
}

impl Store {
    /// The folder for files of this store in this rack.
    pub(crate) fn spill_folder(&self) -> Result<SpillFolder, StoreError> {
        let rack = self.pool().rack();
        let folder = self.pool().spill_folder().ok_or(StoreError::NoSpillFolder { rack })?;
        let (header, stamp) = self.header();
        Ok(SpillFolder::of(&folder, header, stamp))
    }

    /// Locks a file of this rack. Waits while another program has locked it.
    pub(crate) fn lock_file(
        &self,
        keys: &Keys,
        number: FileNumber,
    ) -> Result<LockedFile, StoreError> {
        let folder = self.spill_folder()?;
        folder.lock(keys, number).map_err(of_file(folder.path_of(keys, number)))
    }

    /// The same, unless another program has locked it or it is gone.
    pub(crate) fn lock_unused_file(
        &self,
        keys: &Keys,
        number: FileNumber,
    ) -> Result<Option<LockedFile>, StoreError> {
        let folder = self.spill_folder()?;
        folder.lock_unused(keys, number).map_err(of_file(folder.path_of(keys, number)))
    }

    /// Copies an object of this rack to a new file.
    pub(crate) fn write_file(
        &self,
        keys: &Keys,
        object: &PlacedHead,
        bytes: &[u8],
    ) -> Result<(FileNumber, LockedFile), StoreError> {
        let folder = self.spill_folder()?;
        let (number, mut file) = folder.create(keys).map_err(of_file(folder.path()))?;
        let error = match file.write(bytes) {
            Ok(checksum) if checksum == object.head.checksum => return Ok((number, file)),
            Ok(_) => StoreError::Damaged { addr: object.place.addr },
            Err(source) => of_file(file.path())(source),
        };
        let _ = folder.delete(keys, number);
        Err(error)
    }

    /// Allocates an object and copies the file of a stub into it.
    pub(crate) fn read_file(
        &self,
        keys: &Keys,
        stub: &Head,
        file: &mut LockedFile,
    ) -> Result<FixedMemory, StoreError> {
        let allocate =
            |is_contiguous| self.allocate(HeadLayout::of(keys.id_len()), stub.len(), is_contiguous);
        // In one piece if it was, and if that can be had: some programs can use only such objects.
        let memory = match allocate(stub.extents <= 1) {
            Err(StoreError::Fragmented { .. }) => allocate(false),
            allocated => allocated,
        }?;
        let checksum = file.read(&mut memory.map_mut()?).map_err(of_file(file.path()))?;
        if checksum != stub.checksum {
            return Err(StoreError::DamagedFile { path: file.path().to_path_buf() });
        }
        Ok(memory)
    }

    /// Moves an object of this rack, which takes `bytes` bytes of memory, to another rack if one
    /// has memory for it, else to a file. Returns whether it did: not if the object has changed or
    /// was used meanwhile.
    pub(crate) fn move_away(
        &self,
        keys: &Keys,
        object: &PlacedHead,
        bytes: u64,
    ) -> Result<bool, StoreError> {
        let may_give = self.shared.purpose == Purpose::Program;
        // If the others can't be asked, the file will do.
        if may_give && self.give_away(keys, object, bytes).unwrap_or(false) {
            self.shared.counters.moves.add(1);
            self.shared.counters.moved_bytes.add(object.head.len());
            return Ok(true);
        }
        self.spill(keys, object)
    }

    /// Moves an object of another rack into this one. Returns whether it did: not if there is no
    /// such object, or its bytes are in a file.
    pub(crate) fn adopt(&self, id: &[u8]) -> Result<bool, StoreError> {
        let keys = Keys::of(id)?;
        self.check_in_use()?;
        self.with(|handles| {
            let found = handles.find(keys.object())?;
            let is_elsewhere = |found: &PlacedHead| {
                !found.head.is_spilled() && found.head.rack != self.pool().rack()
            };
            let Some(object) = found.filter(is_elsewhere) else { return Ok(false) };
            protocol::adopt(&mut Entries::new(self, handles, &keys), &object)
        })
    }

    fn spill(&self, keys: &Keys, object: &PlacedHead) -> Result<bool, StoreError> {
        let is_spilled = self.repairing(|| {
            self.with(|handles| protocol::spill(&mut Entries::new(self, handles, keys), object))
        })?;
        if is_spilled {
            self.shared.counters.spills.add(1);
            self.shared.counters.spilled_bytes.add(object.head.len());
        }
        Ok(is_spilled)
    }

    /// Deletes spilled objects of this rack that have expired, and removes files that no entry
    /// names, and those of stores that are gone, unless this program did so a short time ago. What
    /// the disk refuses is left to a later sweep.
    pub(crate) fn sweep_files(&self, survey: &mut Survey) -> Result<(), StoreError> {
        let Some(rack) = self.pool().spill_folder() else { return Ok(()) };
        let pause = |took: Duration| SWEEP_EVERY.max(SWEEP_REST * took);
        if survey.files_swept.is_some_and(|(end, took)| end.elapsed() < pause(took)) {
            return Ok(());
        }
        let begin = Instant::now();
        let swept = self.sweep_folder(&rack);
        survey.files_swept = Some((Instant::now(), begin.elapsed()));
        swept.or_else(|error| if error.is_of_disk() { Ok(()) } else { Err(error) })
    }

    fn sweep_folder(&self, rack: &Path) -> Result<(), StoreError> {
        let oldest = self.oldest_alive()?;
        let (header, stamp) = self.header();
        let folder = SpillFolder::of(rack, header, stamp);
        for (keys, number) in folder.files().map_err(of_file(rack))? {
            self.check_in_use()?;
            // If its entry can't be read, a later sweep decides about the file.
            let _ = self.sweep_file(&keys, number, oldest);
        }
        for entry in std::fs::read_dir(rack).map_err(of_file(rack))?.flatten() {
            let name = entry.file_name();
            let Some(of) = name.to_str().and_then(SpillFolder::store_of) else { continue };
            if of != self.header() && self.is_gone(of)? {
                SpillFolder::of(rack, of.0, of.1).delete_all().map_err(of_file(entry.path()))?;
            }
        }
        Ok(())
    }

    /// Deletes the object of a file if it is spilled and was sealed before the time `oldest`, and
    /// removes the file if no entry names it.
    fn sweep_file(&self, keys: &Keys, number: FileNumber, oldest: u64) -> Result<(), StoreError> {
        let found = self.with(|handles| handles.find(keys.object()))?;
        if let Some(object) = found.filter(|found| found.head.file == Some(number))
            && object.head.created_ms < oldest
        {
            self.delete_version(keys, &object)?;
        }
        self.with(|handles| {
            protocol::remove_unused_file(&mut Entries::new(self, handles, keys), number)
        })
    }

    /// Whether the store with this header and stamp was removed.
    fn is_gone(&self, (header, stamp): (GlobalAddr, u64)) -> Result<bool, StoreError> {
        Ok(match read_prefix(self.pool(), header) {
            Ok(prefix) => prefix.is_none_or(|prefix| {
                // Its memory may still have the bytes of the last phase.
                prefix.stamp != stamp || prefix.phase == Some(StorePhase::Empty)
            }),
            Err(StoreError::Access(AccessError::NotAllocated(_))) => true,
            // Or its rack is away.
            Err(error) => error.is_lost(),
        })
    }
}
