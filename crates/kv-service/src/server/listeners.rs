use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};

use anyhow::Context;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use super::stream::Stream;

/// The listening sockets.
#[derive(Debug, Default)]
pub struct Listeners {
    tcp: Option<TcpListener>,
    unix: Option<(UnixListener, PathBuf)>,
}

impl Listeners {
    /// Binds the given addresses.
    pub fn bind(tcp: Option<SocketAddr>, unix: Option<&Path>) -> anyhow::Result<Self> {
        let tcp = tcp
            .map(|address| {
                bind_tcp(address).with_context(|| {
                    format!("can't listen on {address}: choose another --listen, or stop the process that listens there")
                })
            })
            .transpose()?;
        let unix = unix.map(|path| Ok::<_, anyhow::Error>((bind_unix(path)?, path.into())));
        Ok(Self { tcp, unix: unix.transpose()? })
    }

    /// The address that was bound.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    pub(super) fn register(&mut self, registry: &Registry, tokens: [Token; 2]) -> io::Result<()> {
        if let Some(listener) = &mut self.tcp {
            registry.register(listener, tokens[0], Interest::READABLE)?;
        }
        if let Some((listener, _)) = &mut self.unix {
            registry.register(listener, tokens[1], Interest::READABLE)?;
        }
        Ok(())
    }

    /// Accepts the next connection; `WouldBlock` if there is none.
    pub(super) fn accept(&self) -> io::Result<Stream> {
        if let Some(listener) = &self.tcp {
            match listener.accept() {
                Ok((stream, _)) => {
                    // Answers are written with one call, so delaying small segments gains nothing.
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => {}
            }
        }
        match &self.unix {
            Some((listener, _)) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.unix {
            // If this fails, the next instance that listens there removes the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The length of the accept queue, as far as the host allows it (`net.core.somaxconn`). A client
/// that finds the queue full retries after a second.
const BACKLOG: i32 = 4096;

fn bind_tcp(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // `bind` has called `listen` with a backlog of 128; this call raises it.
    listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener)
}

/// Listens at a path. Removes a socket file on which no process listens any more.
fn bind_unix(path: &Path) -> anyhow::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && StdUnixStream::connect(path).is_err_and(refused) {
        std::fs::remove_file(path)
            .with_context(|| format!("can't remove the old socket {}", path.display()))?;
    }
    listen_unix(path).with_context(|| {
        format!(
            "can't listen on {}: choose another --unix, or stop the process that listens there",
            path.display()
        )
    })
}

/// Listens at a new socket that other users cannot connect to.
fn listen_unix(path: &Path) -> anyhow::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The file gets the mode of the socket at its creation, whatever the umask.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(UnixListener::from_std(StdUnixListener::from(socket)))
}
