use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

/// The length of the accept queue, as far as the host allows it (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// The socket of the service. Its file is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at a path. Removes a socket file on which no process listens any more.
    pub(super) fn bind(path: &Path) -> anyhow::Result<Self> {
        let is_socket =
            std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if is_socket && UnixStream::connect(path).is_err_and(refused) {
            std::fs::remove_file(path)
                .with_context(|| format!("can't remove the old socket {}", path.display()))?;
        }
        let listener = listen_at(path).with_context(|| {
            format!(
                "can't listen on {}: choose another path with -s, or stop the process that listens there",
                path.display()
            )
        })?;
        Ok(Self { listener, path: path.into() })
    }

    /// Accepts the next connection; `WouldBlock` if there is none.
    pub(super) fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}

/// Listens at a new socket that other users cannot connect to: a client can write the rack's
/// memory.
fn listen_at(path: &Path) -> anyhow::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The file gets the mode of the socket at its creation, whatever the umask.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from(socket))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If this fails, the next service that listens there removes the file.
        let _ = std::fs::remove_file(&self.path);
    }
}
