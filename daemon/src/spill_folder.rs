//! The folder on a disk for the objects that programs of the rack move out of its memory.
//!
//! ```text
//! DIR/rack-N/owner         the path of the rack's folder; locked while the daemon runs
//! DIR/rack-N/MEMORY/       the files, of this memory of the rack
//! POOL/rack-N/spill        a link to them, for the rack's programs
//! ```
//!
//! Files of an earlier memory name objects that are lost with it, and are removed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::Path;

use anyhow::{Context, bail};
use rackpool_model::MemoryId;
use rackpool_output::UsageError;
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::{file, folder};

/// A folder that this daemon uses, until it is dropped.
#[derive(Debug)]
pub(crate) struct SpillFolder {
    _owner: File,
}

/// Links the rack's folder to its files under `dir`, which are created if needed. Without `dir`
/// there is no link: programs then find no place for files, and don't read those of earlier starts.
pub(crate) fn prepare(
    dir: Option<&Path>,
    rack: &RackDirectory,
    memory: MemoryId,
) -> anyhow::Result<Option<SpillFolder>> {
    let Some(dir) = dir else {
        remove_link(rack)?;
        return Ok(None);
    };
    let name = rack.path().file_name().unwrap_or_default();
    let folder = folder::create(&dir.join(name)).map_err(UsageError::new)?;
    folder::require_private(&folder).map_err(UsageError::new)?;
    let owner = take(&folder, rack)?;
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let is_ours = entry.file_name().to_str() == Some(&memory.to_string());
        if entry.file_type()?.is_dir() && !is_ours {
            tracing::info!("files of earlier memory are removed: {}", entry.path().display());
            fs::remove_dir_all(entry.path())?;
        }
    }
    let files = folder.join(memory.to_string());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&files)?;
    remove_link(rack)?;
    symlink(&files, rack.spill())?;
    Ok(Some(SpillFolder { _owner: owner }))
}

/// Locks a folder for this daemon, and notes whose it is.
fn take(folder: &Path, rack: &RackDirectory) -> anyhow::Result<File> {
    let path = folder.join("owner");
    let mut owner =
        File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
    file::lock(&owner, &path).with_context(|| {
        format!("{} is used by another daemon: name another --spill-dir", folder.display())
    })?;
    let mut found = Vec::new();
    owner.read_to_end(&mut found)?;
    let own = rack.path().as_os_str().as_encoded_bytes();
    match found.as_slice() {
        [] => owner.write_all(own)?,
        found if found == own => {}
        other => bail!(UsageError::new(format!(
            "{} has spilled objects of {}: name another --spill-dir, or remove the folder if that pool is gone",
            folder.display(),
            String::from_utf8_lossy(other)
        ))),
    }
    Ok(owner)
}

fn remove_link(rack: &RackDirectory) -> std::io::Result<()> {
    match fs::remove_file(rack.spill()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: MemoryId = MemoryId(1);
    const NEW: MemoryId = MemoryId(2);

    /// A folder for files, and those of racks of the same number in two pools.
    fn folders() -> (tempfile::TempDir, [RackDirectory; 2]) {
        let top = tempfile::tempdir().unwrap();
        let racks = ["one", "two"].map(|pool| top.path().join(pool).join("rack-3"));
        racks.iter().for_each(|rack| fs::create_dir_all(rack).unwrap());
        let racks = racks.map(|rack| RackDirectory::at(&rack));
        (top, racks)
    }

    #[test]
    fn files_of_the_same_memory_stay_and_others_are_removed() {
        let (top, [rack, _]) = folders();
        let dir = top.path().join("disk");
        let folder = prepare(Some(&dir), &rack, OLD).unwrap();
        let link = fs::read_link(rack.spill()).unwrap();
        assert_eq!(link, dir.join("rack-3").join(OLD.to_string()));
        fs::write(link.join("object"), b"bytes").unwrap();
        drop(folder);
        drop(prepare(Some(&dir), &rack, OLD).unwrap());
        assert_eq!(fs::read(rack.spill().join("object")).unwrap(), b"bytes");
        drop(prepare(Some(&dir), &rack, NEW).unwrap());
        assert!(!link.exists());
        assert_eq!(fs::read_dir(rack.spill()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_has_the_files_of_one_pool() {
        let (top, [rack, other]) = folders();
        let dir = top.path().join("disk");
        let folder = prepare(Some(&dir), &rack, OLD).unwrap();
        let told = prepare(Some(&dir), &rack, OLD).unwrap_err();
        assert!(format!("{told:#}").contains("is used by another daemon"), "{told:#}");
        drop(folder);
        let told = prepare(Some(&dir), &other, OLD).unwrap_err();
        assert!(told.to_string().contains("has spilled objects of"), "{told:#}");
        assert!(told.to_string().contains("one/rack-3"), "{told:#}");
    }

    #[test]
    fn without_the_option_programs_find_no_folder() {
        let (top, [rack, _]) = folders();
        assert!(prepare(None, &rack, OLD).unwrap().is_none());
        drop(prepare(Some(&top.path().join("disk")), &rack, OLD).unwrap());
        assert!(prepare(None, &rack, OLD).unwrap().is_none());
        assert!(fs::read_link(rack.spill()).is_err());
    }
}
