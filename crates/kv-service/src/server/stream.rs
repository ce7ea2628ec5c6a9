use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rackpool_access::CredentialsError;

/// A connection's socket.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// The file descriptor.
    pub(super) fn descriptor(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }

    /// `Ok` if the peer is a process of this user or of root, else a text that names the peer's
    /// user. The Unix socket needs no check, since its mode excludes other users.
    pub(super) fn require_same_user(&self) -> Result<(), String> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        let ends = stream.local_addr().and_then(|local| Ok((local, stream.peer_addr()?)));
        let (local, peer) = ends.map_err(|error| error.to_string())?;
        match rackpool_access::require_same_user(local, peer) {
            Ok(()) => Ok(()),
            Err(CredentialsError::OtherUser { user, .. }) => {
                Err(format!("the process at {peer} belongs to user {user}"))
            }
            Err(CredentialsError::NobodysConnection { .. }) => {
                Err(format!("no process of this host is known at {peer}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The flag of this kind of socket in `CLIENT LIST`.
    pub(super) const fn flag(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "",
            Self::Unix(_) => "U",
        }
    }

    /// The peer's and the local address; for a Unix socket its path, twice.
    pub(super) fn addresses(&self) -> [String; 2] {
        match self {
            Self::Tcp(stream) => [stream.peer_addr(), stream.local_addr()].map(|address| {
                address.map_or_else(|_| "?:0".into(), |address| address.to_string())
            }),
            Self::Unix(stream) => {
                let address = stream.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                let path = path.map_or_else(|| "unix".into(), |path| path.display().to_string());
                [format!("{path}:0"), format!("{path}:0")]
            }
        }
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Source for Stream {
    fn register(&mut self, registry: &Registry, token: Token, what: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.register(registry, token, what),
            Self::Unix(stream) => stream.register(registry, token, what),
        }
    }

    fn reregister(&mut self, registry: &Registry, token: Token, what: Interest) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.reregister(registry, token, what),
            Self::Unix(stream) => stream.reregister(registry, token, what),
        }
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.deregister(registry),
            Self::Unix(stream) => stream.deregister(registry),
        }
    }
}
