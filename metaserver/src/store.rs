mod create;
mod error;
mod secret;
mod tables;

use std::path::{Path, PathBuf};

use rackpool_model::FabricKey;
use rackpool_proto::metadata::Change;
use rackpool_shm::folder::{self, FolderError};
use redb::{Builder, Database, Durability};

pub use error::StoreError;

/// The durable records of a pool in one redb file. The format is described in
/// `docs/design/metadata.md`.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    database: Database,
    /// The first write error. After it the store refuses every change.
    failed: Option<String>,
}

/// Cache of the file in memory. The machine holds all records anyway.
const CACHE_BYTES: usize = 8 << 20;

impl Store {
    /// Opens the store, or creates it if the file does not exist, and returns its records. The file
    /// is locked against other servers until the store is dropped.
    ///
    /// # Errors
    /// When other users can replace the file, or the file is in use, damaged, of another format
    /// version, or not a store. Its records are then left as they are.
    pub fn open(path: &Path) -> Result<(Self, Vec<Change>), StoreError> {
        let path = &resolve(path)?;
        if !path.try_exists().map_err(|source| StoreError::io(path, source))? {
            create::create(path)?;
        }
        // Stores of earlier releases were readable by other users.
        secret::hide(path).map_err(|source| StoreError::io(path, source))?;
        let opened = builder().set_check_integrity_on_open(true).open(path);
        let database = opened.map_err(|error| StoreError::opening(path, error))?;
        let records = tables::read(&database).map_err(|error| error.of(path))?;
        Ok((Self { path: path.to_owned(), database, failed: None }, records))
    }

    /// Makes the changes durable, atomically.
    ///
    /// # Errors
    /// When the file can't be written. Whether it contains the changes is known only when it is
    /// opened again, so this store refuses every later change.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if let Some(cause) = &self.failed {
            return Err(StoreError::Failed { cause: cause.clone() });
        }
        self.write(changes).map_err(|error| {
            let cause = error.to_string();
            self.failed = Some(cause.clone());
            StoreError::Failed { cause }
        })
    }

    /// Returns the key with which racks authenticate each other. Draws a new key and makes it
    /// durable if there is none or `renew` is set.
    ///
    /// # Errors
    /// When the file can't be read or written.
    pub fn fabric_key(&mut self, renew: bool) -> Result<FabricKey, StoreError> {
        secret::fabric_key(&self.database, renew).map_err(|error| {
            let cause = error.to_string();
            self.failed = Some(cause.clone());
            StoreError::Failed { cause }
        })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&self, changes: &[Change]) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        tables::write(&transaction, changes)?;
        transaction.commit()?;
        Ok(())
    }
}

/// Returns the path without symbolic links. Refuses a folder in which other users can replace the
/// file.
fn resolve(path: &Path) -> Result<PathBuf, StoreError> {
    let failed = |source| StoreError::io(path, source);
    let there = path.try_exists().map_err(failed)?;
    let path = if there { path.canonicalize().map_err(failed)? } else { path.to_path_buf() };
    match folder::require_trusted(path.parent().unwrap_or(Path::new("/"))) {
        Ok(folder) => Ok(folder.join(path.file_name().unwrap_or_default())),
        Err(FolderError::Io { source, .. }) => Err(StoreError::io(&path, source)),
        Err(error) => Err(error.into()),
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_model::{
        Epoch, GlobalAddr, Incarnation, MemoryId, PageId, PageRange, PageSize, RackId,
    };
    use rackpool_proto::directory::{Moved, Run};
    use rackpool_proto::membership::RackRecord;
    use rackpool_wire::swap::SwapId;

    fn changes() -> Vec<Change> {
        let record = |left| RackRecord {
            memory: MemoryId(u128::MAX - 5),
            incarnation: Incarnation(u64::MAX),
            control_path: "/run/ä".into(),
            fabric_address: String::new(),
            left,
        };
        let pages = PageRange { first: PageId(1), count: 77 };
        let root = |name: &str, addr| Change::RootPut {
            name: name.into(),
            addr: GlobalAddr::from_raw(addr),
        };
        vec![
            Change::Started { boot: 2, server: 70 },
            Change::Advanced { commit: 9 },
            Change::Started { boot: 3, server: u64::MAX },
            Change::Advanced { commit: 1 },
            Change::PoolFormatted { page_size: PageSize::DEFAULT },
            Change::RunHandedOut(Run { pages, rack: RackId(9), memory: MemoryId(u128::MAX - 5) }),
            Change::RackRegistered { rack: RackId(9), record: record(true) },
            Change::PageMoved(Moved {
                page: PageId(5),
                home: RackId(9),
                memory: MemoryId(u128::MAX - 5),
                epoch: Epoch::new(u32::MAX),
                swap: SwapId(u64::MAX - 1),
            }),
            root("a", 1),
            root("z", u64::MAX),
        ]
    }

    #[test]
    fn a_store_of_the_format_before_pages_moved_is_brought_up_to_date() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let mut written = changes();
        let is_kept = |change: &Change| match change {
            Change::Started { boot, .. } => *boot == 3,
            Change::Advanced { .. } | Change::PageMoved(_) => false,
            _ => true,
        };
        written.retain(is_kept);
        written[0] = Change::Started { boot: 3, server: 0 };
        let (mut store, _) = Store::open(&path).unwrap();
        store.commit(&written).unwrap();
        let transaction = store.database.begin_write().unwrap();
        tables::make_unmoved(&transaction).unwrap();
        transaction.commit().unwrap();
        drop(store);
        assert_eq!(Store::open(&path).unwrap().1, written);
        let (mut store, records) = Store::open(&path).unwrap();
        assert_eq!(records, written);
        // From here on the store has a history, and all tables.
        store.commit(&changes()[2..]).unwrap();
        drop(store);
        assert_eq!(Store::open(&path).unwrap().1, changes()[2..]);
    }

    #[test]
    fn what_was_written_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let (mut store, records) = Store::open(&path).unwrap();
        assert_eq!(records, []);
        store.commit(&changes()).unwrap();
        drop(store);
        let (mut store, records) = Store::open(&path).unwrap();
        assert_eq!(records, changes());
        store
            .commit(&[
                Change::RootRemoved { name: "a".into() },
                Change::RackLeft { rack: RackId(9) },
                Change::Started { boot: 4, server: 5 },
                Change::Advanced { commit: 17 },
            ])
            .unwrap();
        drop(store);
        let (_, records) = Store::open(&path).unwrap();
        assert_eq!(records[..4], changes()[..4]);
        let started = Change::Started { boot: 4, server: 5 };
        assert_eq!(records[4..6], [started, Change::Advanced { commit: 17 }]);
        assert_eq!(records[6..10], changes()[4..8]);
        assert_eq!(records[10..], changes()[9..]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left over");
    }

    #[test]
    fn the_fabric_key_is_drawn_once_and_kept_secret() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let (mut store, _) = Store::open(&path).unwrap();
        let key = store.fabric_key(false).unwrap();
        assert_eq!(store.fabric_key(false).unwrap(), key);
        drop(store);
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        // The mode that an earlier release gave the file.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let (mut store, records) = Store::open(&path).unwrap();
        assert_eq!((mode(), records), (0o600, Vec::new()));
        assert_eq!(store.fabric_key(false).unwrap(), key, "durable");
        let renewed = store.fabric_key(true).unwrap();
        assert_ne!(renewed, key);
        drop(store);
        let (mut store, _) = Store::open(&path).unwrap();
        assert_eq!(store.fabric_key(false).unwrap(), renewed);
    }

    #[test]
    fn remains_of_an_unfinished_store_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        std::fs::write(directory.path().join("store.new"), [0; 5000]).unwrap();
        Store::open(&path).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_damaged_byte_is_told_or_harmless() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let (mut store, _) = Store::open(&path).unwrap();
        store.commit(&changes()).unwrap();
        drop(store);
        let whole = std::fs::read(&path).unwrap();
        let used = (0..whole.len()).filter(|&at| whole[at] != 0);
        for at in used.step_by(47) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            std::fs::write(&path, &damaged).unwrap();
            match Store::open(&path) {
                Ok((_, records)) => assert_eq!(records, changes(), "byte {at}"),
                Err(error) => {
                    assert!(error.to_string().contains("--store"), "{error}");
                    assert!(std::fs::read(&path).unwrap() == damaged, "changed: byte {at}");
                }
            }
        }
    }
}
