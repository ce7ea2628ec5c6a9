use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::descriptors::send;

/// The most notifications that wait for a subscriber.
const MOST_WAITING: usize = 1 << 20;

/// A socket through which a client is told of objects.
#[derive(Debug)]
pub(super) struct Subscription {
    socket: OwnedFd,
    waiting: VecDeque<Vec<u8>>,
    /// How much of the first one was sent.
    sent: usize,
}

impl Subscription {
    pub(super) const fn new(socket: OwnedFd) -> Self {
        Self { socket, waiting: VecDeque::new(), sent: 0 }
    }

    /// Adds a notification. Returns false if the subscriber has too many unread.
    pub(super) fn push(&mut self, notification: Vec<u8>) -> bool {
        self.waiting.push_back(notification);
        self.waiting.len() <= MOST_WAITING
    }

    /// Sends what the socket takes, one message for each notification.
    ///
    /// # Errors
    /// If the subscriber is gone.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some(first) = self.waiting.front() {
            match send(&self.socket, &first[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.sent >= first.len() {
                self.waiting.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }

    /// Returns true if notifications wait for room in the socket.
    pub(super) fn wants_to_write(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
