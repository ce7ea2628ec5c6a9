//! The client's end of the daemon's Unix socket.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rackpool_model::{ClientId, MemoryId, RackId};
use rackpool_shm::folder::{self, FolderError};
use rackpool_wire::control::{ControlReply, ControlRequest, Resume};
use rackpool_wire::metadata::Tagged;
use rackpool_wire::{FrameReader, encode};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SocketAddrUnix, SocketFlags, SocketType, recvmsg, socket_with, sockopt,
};

use crate::OpenError;
use crate::deadline::Deadline;

/// Number of descriptors in a welcome.
const DESCRIPTORS: usize = 6;
/// Timeout of a control request, including the metadata server's part.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the daemon's socket.
#[derive(Debug)]
pub(crate) struct ControlStream {
    stream: UnixStream,
    frames: FrameReader,
    /// Unsent bytes of a message that timed out; the next request sends them first.
    unsent: Vec<u8>,
    last_tag: u64,
    timeout: Duration,
}

/// What the daemon passes in its welcome.
#[derive(Debug)]
pub(crate) struct Welcome {
    pub(crate) client: ClientId,
    pub(crate) rack: RackId,
    pub(crate) memory: MemoryId,
    pub(crate) frames: OwnedFd,
    pub(crate) metadata: OwnedFd,
    pub(crate) marks: OwnedFd,
    pub(crate) locks: OwnedFd,
    pub(crate) client_file: OwnedFd,
    pub(crate) doorbell: OwnedFd,
}

impl ControlStream {
    /// Connects to the daemon.
    pub(crate) fn connect(socket: &Path) -> Result<Self, OpenError> {
        Self::connect_within(socket, REPLY_TIMEOUT)
    }

    /// Connects to a daemon that has to answer each request within `timeout`.
    pub(crate) fn connect_within(socket: &Path, timeout: Duration) -> Result<Self, OpenError> {
        let unreachable = |source| OpenError::Connect { socket: socket.to_path_buf(), source };
        let folder = match folder::require_private(socket.parent().unwrap_or(Path::new("/"))) {
            Ok(folder) => folder,
            Err(FolderError::Io { source, .. }) => return Err(unreachable(source)),
            Err(error) => return Err(error.into()),
        };
        let resolved = folder.join(socket.file_name().unwrap_or_default());
        let stream = connect(&resolved, timeout).map_err(unreachable)?;
        Ok(Self::over(stream, timeout)?)
    }

    /// Introduces the client, or resumes it, and receives the welcome.
    pub(crate) fn hello(
        &mut self,
        threads: u16,
        resume: Option<Resume>,
    ) -> Result<Welcome, OpenError> {
        self.send(&ControlRequest::Hello { threads, resume })?;
        let (reply, descriptors) = self.receive_welcome()?;
        match reply {
            ControlReply::Welcome { client, rack, memory, .. } => {
                let [frames, metadata, marks, locks, client_file, doorbell] =
                    <[OwnedFd; DESCRIPTORS]>::try_from(descriptors).map_err(|found| {
                        OpenError::Protocol(format!("{} descriptors came", found.len()))
                    })?;
                Ok(Welcome {
                    client,
                    rack,
                    memory,
                    frames,
                    metadata,
                    marks,
                    locks,
                    client_file,
                    doorbell,
                })
            }
            ControlReply::Refused(refusal) => Err(OpenError::Refused(refusal)),
            other => Err(OpenError::Protocol(format!("{other:?} instead of a welcome"))),
        }
    }

    /// Uses a stream on which no message has been sent.
    pub(crate) fn over(stream: UnixStream, timeout: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let frames = FrameReader::new();
        Ok(Self { stream, frames, unsent: Vec::new(), last_tag: 0, timeout })
    }

    /// Sets the socket's timeouts to the time left.
    fn wait_until(&self, deadline: &Deadline<'_>) -> io::Result<()> {
        // A zero timeout would mean none.
        let left = deadline.left().max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left))?;
        self.stream.set_write_timeout(Some(left))
    }

    /// Sends a request and returns its tag.
    fn send(&mut self, request: &ControlRequest) -> Result<u64, OpenError> {
        self.send_rest()?;
        self.last_tag += 1;
        self.unsent = encode(&Tagged { tag: self.last_tag, message: request })?;
        self.send_rest()?;
        Ok(self.last_tag)
    }

    fn send_rest(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive_welcome(&mut self) -> Result<(ControlReply, Vec<OwnedFd>), OpenError> {
        let mut descriptors = Vec::new();
        loop {
            let mut bytes = [0; 1024];
            let mut space =
                [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                &self.stream,
                &mut [io::IoSliceMut::new(&mut bytes)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
            .map_err(io::Error::from)?;
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(OpenError::Protocol("more descriptors than expected".into()));
            }
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            if received.bytes == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.frames.extend(&bytes[..received.bytes]);
            if let Some(reply) = self.frames.next::<Tagged<ControlReply>>()? {
                return Ok((reply.message, descriptors));
            }
        }
    }

    /// Sends a request and waits for its answer. Skips late answers to earlier requests.
    pub(crate) fn ask(&mut self, request: &ControlRequest) -> Result<ControlReply, OpenError> {
        let deadline = Deadline::after(self.timeout);
        self.wait_until(&deadline)?;
        let asked = self.send(request)?;
        loop {
            while let Some(Tagged { tag, message }) = self.frames.next()? {
                if tag == asked {
                    return Ok(message);
                }
            }
            let mut bytes = [0; 4096];
            self.wait_until(&deadline)?;
            match self.stream.read(&mut bytes)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                count => self.frames.extend(&bytes[..count]),
            }
        }
    }

    /// A second handle to the socket, on which the keeper waits for its end.
    pub(crate) fn watch(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Shuts the connection down, for all handles to it.
    pub(crate) fn shutdown(&self) {
        // Fails only if the socket is down already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Connects to a socket. A stopped daemon accepts nothing: once its backlog is full, a connect
/// without a timeout would not end.
fn connect(socket: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&stream, sockopt::Timeout::Send, Some(timeout))?;
    rustix::net::connect(&stream, &address)?;
    Ok(stream.into())
}

#[cfg(test)]
mod tests {
    use rackpool_wire::control::ControlRefusal;

    use super::*;

    #[test]
    fn a_late_reply_is_not_taken_for_the_next_one() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut control = ControlStream::over(ours, Duration::from_millis(50)).unwrap();
        assert!(control.ask(&ControlRequest::RackStatus).is_err(), "nobody answers in time");
        for (tag, name) in [(1, "late"), (2, "right")] {
            let message = ControlReply::Refused(ControlRefusal::Invalid(name.into()));
            theirs.write_all(&encode(&Tagged { tag, message }).unwrap()).unwrap();
        }
        let reply = control.ask(&ControlRequest::RackStatus).unwrap();
        assert_eq!(reply, ControlReply::Refused(ControlRefusal::Invalid("right".into())));
    }
}
