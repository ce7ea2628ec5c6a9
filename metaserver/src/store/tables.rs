use std::path::Path;

use rackpool_model::{
    Epoch, GlobalAddr, Incarnation, MemoryId, PageId, PageRange, PageSize, RackId,
};
use rackpool_proto::directory::{Moved, Run};
use rackpool_proto::membership::RackRecord;
use rackpool_proto::metadata::Change;
use rackpool_wire::swap::SwapId;
use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    TableError, WriteTransaction,
};

use super::StoreError;

/// The version of the tables below.
const FORMAT: u64 = 3;
/// The version without [`STARTS`], before the store had a history.
const WITHOUT_HISTORY: u64 = 2;
/// The version without [`MOVED`] and [`STARTS`], before pages moved.
const UNMOVED: u64 = 1;

/// Single values under [`KEY_FORMAT`], [`KEY_BOOT`] and [`KEY_PAGE_BYTES`].
const HEADER: TableDefinition<&str, u64> = TableDefinition::new("rackpool");
/// Start -> the random id of the server, its last commit.
const STARTS: TableDefinition<u32, (u64, u64)> = TableDefinition::new("starts");
/// First page id -> number of ids, rack, memory.
const RUNS: TableDefinition<u32, (u32, u16, u128)> = TableDefinition::new("runs");
/// Rack -> memory, incarnation, control path, fabric address, whether it left.
const RACKS: TableDefinition<u16, (u128, u64, &str, &str, bool)> = TableDefinition::new("racks");
/// Page -> rack, memory, epoch, swap.
const MOVED: TableDefinition<u32, (u16, u128, u32, u64)> = TableDefinition::new("moved");
/// Name -> address.
const ROOTS: TableDefinition<&str, u64> = TableDefinition::new("roots");

const KEY_FORMAT: &str = "format";
const KEY_BOOT: &str = "boot";
const KEY_PAGE_BYTES: &str = "page_bytes";

/// Why the tables can't be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Foreign,
    Version(u64),
    Damaged(String),
}

impl ReadError {
    pub(super) fn of(self, path: &Path) -> StoreError {
        let path = path.to_owned();
        match self {
            Self::Foreign => StoreError::Foreign { path },
            Self::Version(found) => StoreError::Version { path, found, known: FORMAT },
            Self::Damaged(cause) => StoreError::Damaged { path, cause },
        }
    }
}

impl<E: Into<redb::Error>> From<E> for ReadError {
    fn from(error: E) -> Self {
        Self::Damaged(error.into().to_string())
    }
}

/// Creates the tables of an empty store.
pub(super) fn format(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.open_table(RUNS)?;
    transaction.open_table(RACKS)?;
    transaction.open_table(ROOTS)?;
    transaction.open_table(MOVED)?;
    transaction.open_table(STARTS)?;
    transaction.open_table(HEADER)?.insert(KEY_FORMAT, FORMAT)?;
    Ok(())
}

/// Converts the store to the format before pages moved.
#[cfg(test)]
pub(super) fn make_unmoved(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.delete_table(MOVED)?;
    transaction.delete_table(STARTS)?;
    transaction.open_table(HEADER)?.insert(KEY_FORMAT, UNMOVED)?;
    Ok(())
}

/// Applies the changes to the tables.
pub(super) fn write(transaction: &WriteTransaction, changes: &[Change]) -> Result<(), redb::Error> {
    let mut header = transaction.open_table(HEADER)?;
    let mut starts = transaction.open_table(STARTS)?;
    let mut runs = transaction.open_table(RUNS)?;
    let mut racks = transaction.open_table(RACKS)?;
    let mut roots = transaction.open_table(ROOTS)?;
    let mut places = transaction.open_table(MOVED)?;
    for change in changes {
        match change {
            Change::Started { boot, server } => {
                header.insert(KEY_BOOT, u64::from(*boot))?;
                starts.insert(boot, (*server, 1))?;
            }
            Change::Advanced { commit } => {
                let last = starts.last()?.map(|(boot, start)| (boot.value(), start.value().0));
                if let Some((boot, server)) = last {
                    starts.insert(boot, (server, *commit))?;
                }
            }
            Change::PoolFormatted { page_size } => {
                header.insert(KEY_PAGE_BYTES, page_size.bytes())?;
            }
            Change::RunHandedOut(Run { pages, rack, memory }) => {
                runs.insert(pages.first.0, (pages.count, rack.0, memory.0))?;
            }
            Change::RackRegistered { rack, record } => {
                racks.insert(rack.0, row(record))?;
            }
            Change::RackLeft { rack } => {
                let known = racks.get(rack.0)?.map(|found| record(found.value()));
                if let Some(mut known) = known {
                    known.left = true;
                    racks.insert(rack.0, row(&known))?;
                }
            }
            Change::PageMoved(Moved { page, home, memory, epoch, swap }) => {
                places.insert(page.0, (home.0, memory.0, epoch.raw(), swap.0))?;
            }
            Change::RootPut { name, addr } => {
                roots.insert(name.as_str(), addr.raw())?;
            }
            Change::RootRemoved { name } => {
                roots.remove(name.as_str())?;
            }
        }
    }
    Ok(())
}

/// Returns all records, in the order in which they can be restored. A store of an earlier release
/// is converted to the current format after it was read.
pub(super) fn read(database: &Database) -> Result<Vec<Change>, ReadError> {
    let transaction = database.begin_read()?;
    let (format, header) = read_header(&transaction)?;
    let records = read_tables(&transaction, format, header)?;
    if format != FORMAT {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
        self::format(&transaction)?;
        transaction.commit()?;
    }
    Ok(records)
}

fn read_tables(
    transaction: &ReadTransaction,
    format: u64,
    mut header: Vec<Change>,
) -> Result<Vec<Change>, ReadError> {
    let mut records = Vec::new();
    if format == FORMAT {
        for entry in transaction.open_table(STARTS)?.iter()? {
            let (boot, start) = entry?;
            let (server, commit) = start.value();
            records.push(Change::Started { boot: boot.value(), server });
            records.push(Change::Advanced { commit });
        }
    }
    // `STARTS` has more about the last start than the header, unless a release without that table
    // made it.
    if !records.is_empty() {
        header.retain(|change| !matches!(change, Change::Started { .. }));
    }
    records.extend(header);
    for entry in transaction.open_table(RUNS)?.iter()? {
        let (first, rest) = entry?;
        let (count, rack, memory) = rest.value();
        let pages = PageRange { first: PageId(first.value()), count };
        let run = Run { pages, rack: RackId(rack), memory: MemoryId(memory) };
        records.push(Change::RunHandedOut(run));
    }
    for entry in transaction.open_table(RACKS)?.iter()? {
        let (rack, found) = entry?;
        let record = record(found.value());
        records.push(Change::RackRegistered { rack: RackId(rack.value()), record });
    }
    if format != UNMOVED {
        for entry in transaction.open_table(MOVED)?.iter()? {
            let (page, place) = entry?;
            let (home, memory, epoch, swap) = place.value();
            records.push(Change::PageMoved(Moved {
                page: PageId(page.value()),
                home: RackId(home),
                memory: MemoryId(memory),
                epoch: Epoch::new(epoch),
                swap: SwapId(swap),
            }));
        }
    }
    for entry in transaction.open_table(ROOTS)?.iter()? {
        let (name, addr) = entry?;
        let addr = GlobalAddr::from_raw(addr.value());
        records.push(Change::RootPut { name: name.value().into(), addr });
    }
    Ok(records)
}

/// Checks that this program can read the store. Returns its format and the records of its header.
fn read_header(transaction: &ReadTransaction) -> Result<(u64, Vec<Change>), ReadError> {
    let header = match transaction.open_table(HEADER) {
        Err(TableError::Storage(error)) => return Err(error.into()),
        Err(_) => return Err(ReadError::Foreign),
        Ok(header) => header,
    };
    let value =
        |key| -> Result<Option<u64>, ReadError> { Ok(header.get(key)?.map(|value| value.value())) };
    let format = match value(KEY_FORMAT)? {
        Some(known @ (FORMAT | WITHOUT_HISTORY | UNMOVED)) => known,
        Some(other) => return Err(ReadError::Version(other)),
        None => return Err(ReadError::Foreign),
    };
    let mut records = Vec::new();
    if let Some(boot) = value(KEY_BOOT)? {
        let boot = u32::try_from(boot).map_err(|error| ReadError::Damaged(error.to_string()))?;
        records.push(Change::Started { boot, server: 0 });
    }
    if let Some(bytes) = value(KEY_PAGE_BYTES)? {
        let page_size = PageSize::from_bytes(bytes);
        let page_size = page_size.map_err(|error| ReadError::Damaged(error.to_string()))?;
        records.push(Change::PoolFormatted { page_size });
    }
    Ok((format, records))
}

fn row(record: &RackRecord) -> (u128, u64, &str, &str, bool) {
    let RackRecord { memory, incarnation, control_path, fabric_address, left } = record;
    (memory.0, incarnation.0, control_path, fabric_address, *left)
}

fn record(row: (u128, u64, &str, &str, bool)) -> RackRecord {
    let (memory, incarnation, control_path, fabric_address, left) = row;
    RackRecord {
        memory: MemoryId(memory),
        incarnation: Incarnation(incarnation),
        control_path: control_path.into(),
        fabric_address: fabric_address.into(),
        left,
    }
}
