//! Creating and opening a volume.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU16};
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use rackpool_client::GlobalAddr;
use rackpool_kv::{CasError, KeyChange, Table, TableOptions, Transactor};

use crate::attr::{Caller, FileType, Ino, Timestamp};
use crate::error::{FsError, VolumeOpenError};
use crate::format::inode::Inode;
use crate::format::keys;
use crate::format::session::Session;
use crate::format::superblock::{Foreign, VolumeSuperblock};
use crate::volume::Volume;
use crate::volume::session::{TakenSeat, take_seat};
use crate::volume_memory::VolumeMemory;

/// How long an operation waits for another mount's claim on a file before it fails with `Busy`.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const MAX_NAME: usize = 200;
const MIN_PAGE: u64 = 64 << 10;

impl<M: VolumeMemory> Volume<M> {
    /// Opens the file system called `name` (1 to 200 bytes). If there is none, creates it, with a
    /// root directory that belongs to root.
    ///
    /// A program may be killed during creation: the next mount that opens the volume completes it.
    /// Only a kill before the name is stored leaks memory, the superblock of 4 KiB.
    pub fn open_or_create(memory: M, name: &str) -> Result<Self, VolumeOpenError> {
        Self::open_or_create_for(memory, name, Caller::new(0, 0))
    }

    /// As [`open_or_create`](Self::open_or_create), but a new root directory belongs to `owner`.
    pub fn open_or_create_for(
        memory: M,
        name: &str,
        owner: Caller,
    ) -> Result<Self, VolumeOpenError> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(VolumeOpenError::Name);
        }
        if memory.page_bytes() < MIN_PAGE {
            return Err(VolumeOpenError::PageSize(memory.page_bytes()));
        }
        let root = format!("fs:{name}");
        let addr = match memory.root(&root)? {
            Some(addr) => addr,
            None => Self::begin_volume(&memory, &root)?,
        };
        let mut superblock = Self::read_superblock(&memory, addr, name)?;
        if superblock.table.is_null() {
            superblock = Self::complete_volume(&memory, addr, superblock, owner)?;
        }
        let table =
            Table::open(memory.clone(), superblock.table).map_err(FsError::of_table::<M>)?;
        let TakenSeat { session, seat } = take_seat(&memory, addr)?;
        let volume = Self::new(memory, table, addr, superblock.seed, session, seat);
        volume.register_mount()?;
        volume.keep_reserve();
        Ok(volume)
    }

    fn new(
        memory: M,
        table: Table<M>,
        superblock: GlobalAddr,
        seed: u64,
        session: Session,
        seat: M::Seat,
    ) -> Self {
        Self {
            memory,
            table,
            superblock,
            seed,
            session,
            seat: Mutex::new(Some(seat)),
            has_reserve: AtomicBool::new(false),
            idle: Mutex::default(),
            slots: AtomicU16::new(0),
            inos: Mutex::new(0..0),
            files: std::array::from_fn(|_| Mutex::default()),
            splits: RwLock::default(),
            heads: Mutex::default(),
            marks: Mutex::default(),
            purging: Mutex::default(),
            keeps_nameless: false,
            nameless: Mutex::default(),
            lock_wait: LOCK_WAIT,
        }
    }

    /// Stores a superblock without a table under the root `root`, unless another mount stores one
    /// first. Returns the address of the volume that has the name afterwards.
    fn begin_volume(memory: &M, root: &str) -> Result<GlobalAddr, VolumeOpenError> {
        let failed = FsError::of_memory::<M>;
        let addr = memory.allocate(VolumeSuperblock::BYTES as u64).map_err(failed)?;
        // `RandomState`'s hash keys are the standard library's only source of randomness.
        let seed = RandomState::new().build_hasher().finish();
        let superblock = VolumeSuperblock { table: GlobalAddr::NULL, seed };
        memory.write(addr, &superblock.encode(addr)).map_err(failed)?;
        match memory.set_root(root, addr)? {
            Some(now) if now == addr => Ok(addr),
            Some(other) => {
                memory.free(addr).map_err(failed)?;
                Ok(other)
            }
            None => Err(VolumeOpenError::NotAVolume { name: root.into() }),
        }
    }

    fn read_superblock(
        memory: &M,
        addr: GlobalAddr,
        name: &str,
    ) -> Result<VolumeSuperblock, VolumeOpenError> {
        let read = || {
            let mut fixed = [0; VolumeSuperblock::FIXED];
            memory.read(addr, &mut fixed).map_err(FsError::of_memory::<M>)?;
            Ok::<_, VolumeOpenError>(VolumeSuperblock::decode(&fixed))
        };
        let decoded = match read()? {
            // Another mount may have stored the table after this read its word and before it read
            // the checksum.
            Err(Foreign::NotAVolume) => read()?,
            decoded => decoded,
        };
        decoded.map_err(|foreign| match foreign {
            Foreign::NotAVolume => VolumeOpenError::NotAVolume { name: name.into() },
            Foreign::Version(found) => {
                let supported = VolumeSuperblock::VERSION;
                VolumeOpenError::Version { name: name.into(), found, supported }
            }
        })
    }

    /// Completes a volume whose creation was interrupted or is in progress. Any number of mounts
    /// may do so at once.
    fn complete_volume(
        memory: &M,
        addr: GlobalAddr,
        begun: VolumeSuperblock,
        owner: Caller,
    ) -> Result<VolumeSuperblock, VolumeOpenError> {
        let place = VolumeSuperblock::place_addr(addr);
        let options = TableOptions::for_pages(memory.page_bytes());
        let table = Table::open_or_create_at(memory.clone(), place, &options);
        let table = table.map_err(FsError::of_table::<M>)?;
        let mut directory = Inode::new(FileType::Directory, 0o755, owner, Timestamp::now());
        directory.parent = Ino::ROOT;
        let first = (Ino::ROOT.0 + 1).to_le_bytes();
        for (key, value) in [
            (&keys::inode(Ino::ROOT)[..], &directory.encode()[..]),
            (keys::INOS, &first),
            (keys::MOUNTS, &[]),
            (keys::MOVES, &[0; 8]),
        ] {
            let change = KeyChange { key, expected: None, new: Some(value) };
            // A change of one key needs no owner. If the key exists, another mount has created it.
            let mut access = Transactor::new(&table, 0, 0);
            access.commit(&[change]).map_err(FsError::of_table::<M>)?;
        }
        let whole = VolumeSuperblock { table: table.addr(), ..begun };
        for (at, from, to) in [
            (VolumeSuperblock::table_addr(addr), 0, whole.table.raw()),
            (VolumeSuperblock::check_addr(addr), begun.check(), whole.check()),
        ] {
            Self::swap_surely(memory, at, from, to)?;
        }
        Ok(whole)
    }

    /// Swaps a word that never holds `from` again, unless another mount has swapped it. Retries
    /// while the outcome is indeterminate.
    fn swap_surely(memory: &M, at: GlobalAddr, from: u64, to: u64) -> Result<(), FsError> {
        loop {
            match memory.compare_and_swap(at, from, to) {
                Ok(_) => return Ok(()),
                Err(CasError::Indeterminate) => {}
                Err(CasError::GivenUp(error) | CasError::Failed(error)) => {
                    return Err(FsError::of_memory::<M>(error));
                }
            }
        }
    }
}
