use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rackpool_model::FabricKey;
use redb::{Database, Durability, ReadableDatabase, TableDefinition, TableError};

/// Name -> secret.
const SECRETS: TableDefinition<&str, [u8; 32]> = TableDefinition::new("secrets");
const KEY_FABRIC: &str = "fabric";

/// Mode of the store's file: other users can't read it.
pub(super) const MODE: u32 = 0o600;

/// Makes a file unreadable for other users.
pub(super) fn hide(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
    }
    Ok(())
}

pub(super) fn fabric_key(database: &Database, renew: bool) -> Result<FabricKey, redb::Error> {
    if !renew && let Some(found) = read(database)? {
        return Ok(found);
    }
    let bytes = rackpool_sync::random_bytes()?;
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.open_table(SECRETS)?.insert(KEY_FABRIC, bytes)?;
    transaction.commit()?;
    Ok(FabricKey::new(bytes))
}

fn read(database: &Database) -> Result<Option<FabricKey>, redb::Error> {
    let table = match database.begin_read()?.open_table(SECRETS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        table => table?,
    };
    Ok(table.get(KEY_FABRIC)?.map(|bytes| FabricKey::new(bytes.value())))
}
