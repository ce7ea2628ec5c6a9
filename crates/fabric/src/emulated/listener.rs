use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::net::SocketAddrUnix;

use super::socket::new_socket;
use crate::FabricStartError;

const BACKLOG: i32 = 64;

/// The file of a listening socket. Dropping it removes the file.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file, so that a successor's file is not removed.
    file: (u64, u64),
}

impl SocketFile {
    /// Listens at a path. Replaces the socket file of a dead predecessor. A living one is
    /// impossible, because the daemon holds the lock of its rack's memory.
    pub(super) fn bind(path: &Path) -> Result<(OwnedFd, Self), FabricStartError> {
        let failed = |step| {
            move |source: io::Error| FabricStartError::System {
                step,
                path: path.display().to_string(),
                source,
            }
        };
        let address = SocketAddrUnix::new(path).map_err(|_| FabricStartError::Option {
            option: "listen",
            value: path.display().to_string(),
            expected: "a path of at most 107 bytes",
        })?;
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                fs::remove_file(path).map_err(failed("remove the stale socket"))?;
            }
            Ok(_) => return Err(FabricStartError::NotASocket { path: path.display().to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look at the path")(error)),
        }
        let listen = || -> rustix::io::Result<OwnedFd> {
            let socket = new_socket()?;
            // The file gets the socket's mode, so that no other user can connect at any time.
            rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
            rustix::net::bind(&socket, &address)?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        let socket = listen().map_err(|errno| failed("listen")(errno.into()))?;
        let made = fs::symlink_metadata(path).map_err(failed("look at the new socket"))?;
        Ok((socket, Self { path: path.to_owned(), file: (made.dev(), made.ino()) }))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if ours {
            // A file that cannot be removed does no harm: the next incarnation replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}
