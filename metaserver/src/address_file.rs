use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file with the address at which the server listens. It exists while this value lives.
#[derive(Debug)]
pub(crate) struct AddressFile(PathBuf);

impl AddressFile {
    /// Removes the file of an earlier server. Only the server that holds the store may call this.
    pub(crate) fn clear(path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes the address atomically: readers never see a part of it.
    pub(crate) fn write(path: &Path, address: SocketAddr) -> io::Result<Self> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".new");
        Self::clear(Path::new(&unfinished))?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&unfinished);
        file?.write_all(format!("{address}\n").as_bytes())?;
        fs::rename(&unfinished, path)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        if let Err(error) = Self::clear(&self.0) {
            tracing::warn!("can't remove {}: {error}", self.0.display());
        }
    }
}
