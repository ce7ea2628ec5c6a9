//! The client's end of the daemon's Unix socket.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rackpool_model::{ClientId, MemoryId, RackId};
use rackpool_wire::control::{ControlReply, ControlRequest, Resume};
use rackpool_wire::{FrameReader, encode};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::OpenError;

/// Descriptors that come with a welcome.
const DESCRIPTORS: usize = 4;
/// How long a daemon may take for a rare request, the time of the metadata server included.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to the daemon's socket.
#[derive(Debug)]
pub(crate) struct ControlStream {
    stream: UnixStream,
    frames: FrameReader,
}

/// What the daemon passed at the first exchange.
#[derive(Debug)]
pub(crate) struct Welcome {
    pub(crate) client: ClientId,
    pub(crate) rack: RackId,
    pub(crate) memory: MemoryId,
    pub(crate) frames: OwnedFd,
    pub(crate) metadata: OwnedFd,
    pub(crate) client_file: OwnedFd,
    pub(crate) doorbell: OwnedFd,
}

impl ControlStream {
    /// Connects and introduces the client.
    pub(crate) fn open(
        socket: &Path,
        threads: u16,
        resume: Option<Resume>,
    ) -> Result<(Self, Welcome), OpenError> {
        let stream = UnixStream::connect(socket)
            .map_err(|source| OpenError::Connect { socket: socket.to_path_buf(), source })?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        let mut control = Self { stream, frames: FrameReader::new() };
        control.stream.write_all(&encode(&ControlRequest::Hello { threads, resume })?)?;
        let (reply, descriptors) = control.receive_welcome()?;
        match reply {
            ControlReply::Welcome { client, rack, memory, .. } => {
                let [frames, metadata, client_file, doorbell] =
                    <[OwnedFd; DESCRIPTORS]>::try_from(descriptors).map_err(|found| {
                        OpenError::Protocol(format!("{} descriptors came", found.len()))
                    })?;
                let welcome =
                    Welcome { client, rack, memory, frames, metadata, client_file, doorbell };
                Ok((control, welcome))
            }
            ControlReply::Refused(refusal) => Err(OpenError::Refused(refusal)),
            other => Err(OpenError::Protocol(format!("{other:?} instead of a welcome"))),
        }
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
            if let Some(reply) = self.frames.next()? {
                return Ok((reply, descriptors));
            }
        }
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask(&mut self, request: &ControlRequest) -> Result<ControlReply, OpenError> {
        self.stream.write_all(&encode(request)?)?;
        loop {
            if let Some(reply) = self.frames.next()? {
                return Ok(reply);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                count => self.frames.extend(&bytes[..count]),
            }
        }
    }

    /// A second handle to the socket, to watch for its end.
    pub(crate) fn watch(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Ends the connection, also for those who watch it.
    pub(crate) fn shutdown(&self) {
        // A socket that is down already is what is wanted.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}
