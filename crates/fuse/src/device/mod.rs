//! The kernel's end of a mount: its requests and the answers, as bytes.
//!
//! `fuser` mounts and negotiates with the kernel. Its own loop supports neither interruption nor
//! the distinction between `fcntl` and `flock` locks, so this module reads the requests.

mod fields;
pub(crate) mod opcode;
mod reply;
mod spinner;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nix::libc;

pub(crate) use fields::{Fields, Header};
pub(crate) use reply::{Directory, Opened, Reply};

use spinner::Spinner;

use crate::session::MAX_REQUEST;

/// A request holds a header, names, and at most [`MAX_REQUEST`] bytes to write.
const REQUEST_BYTES: usize = MAX_REQUEST as usize + (16 << 10);

/// The descriptor that any number of threads read requests from.
#[derive(Clone, Debug)]
pub(crate) struct Device(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    file: File,
    spinner: Spinner,
}

impl Device {
    /// Returns the device of a mount.
    pub(crate) fn of(mount: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::new(File::from(mount.try_clone_to_owned()?)))
    }

    fn new(file: File) -> Self {
        Self(Arc::new(Shared { file, spinner: Spinner::default() }))
    }

    /// Reads requests and passes them to `answer`, until the kernel has released the mount.
    pub(crate) fn serve(
        &self,
        mut answer: impl FnMut(&Header, Fields<'_>, Reply),
    ) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_BYTES];
        loop {
            let len = match (&self.0.file).read(&mut buffer) {
                Ok(len) => len,
                Err(error) => match error.raw_os_error() {
                    // Interrupted before the read, or no request after all.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => continue,
                    // Released before the read, or while a request was being read.
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(()),
                    _ => return Err(error),
                },
            };
            let mut fields = Fields::new(buffer.get(..len).unwrap_or_default());
            let Ok(header) = fields.header() else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a request without a header",
                ));
            };
            let reply = Reply::new(self, header.unique);
            if header.opcode == opcode::DESTROY {
                reply.done();
                return Ok(());
            }
            answer(&header, fields, reply);
            self.0.spinner.answered(header.opcode, &self.0.file);
        }
    }
}

/// Stands for the kernel in tests: receives the answers.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Kernel {
    device: Device,
    heard: File,
}

#[cfg(test)]
impl Kernel {
    pub(crate) fn new() -> Self {
        use std::os::fd::OwnedFd;
        use std::os::unix::net::UnixStream;
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        let device = Device::new(File::from(OwnedFd::from(theirs)));
        Self { device, heard: File::from(OwnedFd::from(ours)) }
    }

    pub(crate) fn reply(&self, unique: u64) -> Reply {
        Reply::new(&self.device, unique)
    }

    /// Returns the next answer: the number of its request, and the error.
    pub(crate) fn answer(&self) -> (u64, i32) {
        let mut header = [0; 16];
        (&self.heard).read_exact(&mut header).expect("an answer");
        let [_, _, _, _, a, b, c, d, unique @ ..] = header;
        (u64::from_le_bytes(unique), -i32::from_le_bytes([a, b, c, d]))
    }
}
