use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::descriptors::{receive, send, send_descriptor};
use super::subscription::Subscription;
use crate::protocol::FrameBuffer;

/// Bytes that are received at once.
const PIECE_BYTES: usize = 256 << 10;
/// The most bytes of replies that a client may leave unread. Its requests wait until it reads.
const MOST_UNREAD_BYTES: usize = 16 << 20;
/// The most descriptors that a client may have sent without use.
const MOST_DESCRIPTORS: usize = 4;

/// What is sent to a client.
#[derive(Debug)]
enum Outgoing {
    Bytes(Vec<u8>),
    /// The descriptor of the frames file.
    Descriptor,
}

/// A client's socket.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    /// What has arrived.
    pub(super) input: FrameBuffer,
    /// The descriptors that have arrived.
    pub(super) descriptors: VecDeque<OwnedFd>,
    /// A subscription has begun, and its descriptor has not arrived.
    pub(super) awaits_descriptor: bool,
    /// When the first request is executed again.
    pub(super) again_ms: Option<u64>,
    pub(super) subscription: Option<Subscription>,
    outgoing: VecDeque<Outgoing>,
    /// How much of the first bytes was sent.
    sent: usize,
    unread: usize,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            input: FrameBuffer::default(),
            descriptors: VecDeque::new(),
            awaits_descriptor: false,
            again_ms: None,
            subscription: None,
            outgoing: VecDeque::new(),
            sent: 0,
            unread: 0,
        }
    }

    /// Receives once. Returns false at the end of the socket.
    ///
    /// # Errors
    /// If the socket fails, or the client sends descriptors that nobody has asked for.
    pub(super) fn receive(&mut self, piece: &mut Vec<u8>) -> io::Result<bool> {
        piece.resize(PIECE_BYTES, 0);
        match receive(&self.stream, piece, &mut self.descriptors) {
            Ok(0) => return Ok(false),
            Ok(bytes) => self.input.push(&piece[..bytes]),
            Err(error) if is_temporary(&error) => {}
            Err(error) => return Err(error),
        }
        if self.descriptors.len() > MOST_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected descriptors"));
        }
        Ok(true)
    }

    /// Adds a reply.
    pub(super) fn reply(&mut self, frame: Vec<u8>, sends_descriptor: bool) {
        self.unread += frame.len();
        self.outgoing.push_back(Outgoing::Bytes(frame));
        if sends_descriptor {
            self.outgoing.push_back(Outgoing::Descriptor);
        }
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// If the client is gone.
    pub(super) fn flush(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        while let Some(first) = self.outgoing.front() {
            let is_sent = match first {
                Outgoing::Descriptor => send_descriptor(&self.stream, file).map(|()| true),
                Outgoing::Bytes(bytes) => send(&self.stream, &bytes[self.sent..]).map(|sent| {
                    self.sent += sent;
                    self.unread = self.unread.saturating_sub(sent);
                    self.sent >= bytes.len()
                }),
            };
            match is_sent {
                Ok(true) => {
                    self.outgoing.pop_front();
                    self.sent = 0;
                }
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns true if replies wait for room in the socket.
    pub(super) fn wants_to_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns true if the client has to read before it is served again.
    pub(super) const fn has_too_much_unread(&self) -> bool {
        self.unread > MOST_UNREAD_BYTES
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
