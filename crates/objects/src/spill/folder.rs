//! The files of a store's spilled objects in one rack: `docs/design/spill.md`.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rackpool_client::GlobalAddr;

use crate::checksum::Checksum;
use crate::layout::head::FileNumber;
use crate::layout::keys::Keys;

/// What is copied at a time in bytes.
const PART: usize = 16 * Checksum::BLOCK;

/// The folder of one store in one rack. It need not exist.
#[derive(Clone, Debug)]
pub(crate) struct SpillFolder(PathBuf);

/// A file of an object, locked until it is dropped. The kernel unlocks the files of a program that
/// is killed.
#[derive(Debug)]
pub(crate) struct LockedFile {
    file: File,
    path: PathBuf,
}

impl SpillFolder {
    /// The folder of the store with this header and stamp, in the rack's folder for files.
    pub(crate) fn of(rack: &Path, header: GlobalAddr, stamp: u64) -> Self {
        Self(rack.join(format!("{:016x}-{stamp:016x}", header.raw())))
    }

    /// Header and stamp of the store whose folder has this name.
    pub(crate) fn store_of(name: &str) -> Option<(GlobalAddr, u64)> {
        let (header, stamp) = name.split_once('-')?;
        let header = GlobalAddr::from_raw(number_in(header)?);
        Some((header, number_in(stamp)?))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn path_of(&self, keys: &Keys, number: FileNumber) -> PathBuf {
        let mut name = String::new();
        for byte in keys.id() {
            name.push_str(&format!("{byte:02x}"));
        }
        self.0.join(format!("{name}.{number:016x}"))
    }

    /// The object and the number of the file with this name.
    fn file_of(name: &str) -> Option<(Keys, FileNumber)> {
        let (id, number) = name.split_once('.')?;
        let (pairs, []) = id.as_bytes().as_chunks::<2>() else { return None };
        let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
        let id: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>()?;
        Some((Keys::of(&id).ok()?, FileNumber::new(number_in(number)?)?))
    }

    /// All files of the store.
    pub(crate) fn files(&self) -> io::Result<impl Iterator<Item = (Keys, FileNumber)> + use<>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        let entries = entries.into_iter().flatten().flatten();
        Ok(entries.filter_map(|entry| Self::file_of(entry.file_name().to_str()?)))
    }

    /// Whether there is a file of this number with this length.
    pub(crate) fn has(&self, keys: &Keys, number: FileNumber, len: u64) -> bool {
        fs::metadata(self.path_of(keys, number)).is_ok_and(|found| found.len() == len)
    }

    /// Creates a file of a number that none has, locked.
    pub(crate) fn create(&self, keys: &Keys) -> io::Result<(FileNumber, LockedFile)> {
        loop {
            let number = rand::random();
            let path = self.path_of(keys, number);
            let mut options = File::options();
            let created = options.write(true).create_new(true).mode(0o600).open(&path);
            let file = match created {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            // Another program may have taken it for one that was left behind, before it was locked.
            if try_lock(&file)? && file.metadata()?.nlink() > 0 {
                return Ok((number, LockedFile { file, path }));
            }
        }
    }

    /// Opens and locks a file. Waits while another program has locked it.
    pub(crate) fn lock(&self, keys: &Keys, number: FileNumber) -> io::Result<LockedFile> {
        let path = self.path_of(keys, number);
        let file = File::open(&path)?;
        file.lock()?;
        Ok(LockedFile { file, path })
    }

    /// The same, unless another program has locked it or it is gone.
    pub(crate) fn lock_unused(
        &self,
        keys: &Keys,
        number: FileNumber,
    ) -> io::Result<Option<LockedFile>> {
        let path = self.path_of(keys, number);
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        Ok(try_lock(&file)?.then_some(LockedFile { file, path }))
    }

    pub(crate) fn delete(&self, keys: &Keys, number: FileNumber) -> io::Result<()> {
        fs::remove_file(self.path_of(keys, number))
    }

    /// Removes the folder with all files.
    pub(crate) fn delete_all(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

impl LockedFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes bytes, and returns their checksum.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let mut checksum = Checksum::new();
        for part in bytes.chunks(PART) {
            checksum.update(part);
            self.file.write_all(part)?;
        }
        Ok(checksum.finish())
    }

    /// Reads bytes, and returns their checksum.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<u64> {
        let mut checksum = Checksum::new();
        for part in into.chunks_mut(PART) {
            self.file.read_exact(part)?;
            checksum.update(part);
        }
        Ok(checksum.finish())
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// A number of 16 hexadecimal digits.
fn number_in(text: &str) -> Option<u64> {
    let is_number = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, SpillFolder, Keys) {
        let top = tempfile::tempdir().unwrap();
        let folder = SpillFolder::of(top.path(), GlobalAddr::from_raw(640), 7);
        (top, folder, Keys::of(b"an/id\0").unwrap())
    }

    #[test]
    fn names_come_back_as_they_went() {
        let (top, folder, keys) = folder();
        assert_eq!(folder.files().unwrap().count(), 0);
        let (number, file) = folder.create(&keys).unwrap();
        assert!(folder.files().unwrap().eq([(keys, number)]));
        let name = folder.0.file_name().and_then(|name| name.to_str()).unwrap();
        assert_eq!(SpillFolder::store_of(name), Some((GlobalAddr::from_raw(640), 7)));
        for other in ["", "-", "1-2", "0000000000000280-000000000000000g"] {
            assert_eq!(SpillFolder::store_of(other), None, "{other}");
        }
        for other in ["", ".", "6.0000000000000001", "61.0", "61.0000000000000000", "owner"] {
            assert!(SpillFolder::file_of(other).is_none(), "{other}");
        }
        drop(file);
        folder.delete(&keys, number).unwrap();
        folder.delete_all().unwrap();
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 0);
        folder.delete_all().unwrap();
    }

    #[test]
    fn bytes_come_back_with_their_checksum() {
        let (_top, folder, keys) = folder();
        let bytes = (0..=250).cycle().take(PART + 1000).collect::<Vec<u8>>();
        let (number, mut file) = folder.create(&keys).unwrap();
        let checksum = file.write(&bytes).unwrap();
        assert_eq!(checksum, Checksum::of(&bytes));
        assert!(folder.lock_unused(&keys, number).unwrap().is_none(), "it is locked");
        drop(file);
        assert!(folder.has(&keys, number, bytes.len() as u64));
        assert!(!folder.has(&keys, number, 1));
        let mut read = vec![0; bytes.len()];
        let mut file = folder.lock(&keys, number).unwrap();
        assert_eq!(file.read(&mut read).unwrap(), checksum);
        assert_eq!(read, bytes);
        assert!(file.read(&mut read).is_err(), "it has no more bytes");
        drop(file);
        drop(folder.lock_unused(&keys, number).unwrap().unwrap());
        folder.delete(&keys, number).unwrap();
        assert!(folder.lock_unused(&keys, number).unwrap().is_none());
        assert!(folder.lock(&keys, number).is_err());
    }
}
