use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::{Portion, ReceiveRoom};

/// Size of a buffer in bytes: large enough that one system call moves much, small enough to stay in
/// a cache.
const BUFFER_BYTES: usize = 256 << 10;

/// Minimum size of a receive buffer: most of what arrives at a time fits.
const LEAST_BYTES: usize = 16 << 10;

/// Offset within a page at which a buffer begins, for input and for output. The kernel's side of a
/// copy mostly begins in the first bytes of a page. A copy whose target lies a few bytes above its
/// source, modulo the page size, takes the processor several times as long (docs/design/tcp.md,
/// "Where buffers begin").
const INPUT_AT: usize = 0;
const OUTPUT_AT: usize = PAGE / 2;

/// Addresses that differ by a multiple of this size alias in the processor's load and store
/// buffers.
const PAGE: usize = 4096;

/// Bytes in transit between a socket and memory.
pub(super) struct Buffer {
    memory: Vec<u8>,
    /// Index in `memory` at which the buffer begins.
    first: usize,
    start: usize,
    end: usize,
    /// The buffer's part of the room that all peers share; `None` for output buffers.
    _portion: Option<Portion>,
}

/// The result of a send or receive on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// Some bytes were moved.
    Some,
    /// The socket is empty (receive) or full (send).
    Nothing,
    /// The peer has closed its sending direction.
    End,
}

impl Buffer {
    /// Creates an output buffer.
    pub(super) fn new() -> Self {
        Self::with(BUFFER_BYTES, OUTPUT_AT, None)
    }

    /// Creates an input buffer, as large as the room left by the other peers allows.
    pub(super) fn within(room: &ReceiveRoom) -> Self {
        let portion = room.take(|offered| offered.clamp(LEAST_BYTES as u64, BUFFER_BYTES as u64));
        let len = usize::try_from(portion.bytes()).unwrap_or(BUFFER_BYTES);
        Self::with(len, INPUT_AT, Some(portion))
    }

    fn with(len: usize, at: usize, portion: Option<Portion>) -> Self {
        let mut memory = vec![0; len + PAGE];
        let first = (memory.as_ptr().align_offset(PAGE) + at) % PAGE;
        // The part that is cut off was never touched, so it occupies no memory.
        memory.truncate(first + len);
        Self { memory, first, start: first, end: first, _portion: portion }
    }

    /// The bytes in the buffer.
    pub(super) fn data(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Removes the first `len` bytes.
    pub(super) fn consume(&mut self, len: usize) {
        self.start = self.start.saturating_add(len).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (self.first, self.first);
        }
    }

    /// Removes and returns the first `N` bytes; `None` if there are fewer.
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.data().first_chunk()?;
        self.consume(N);
        Some(bytes)
    }

    /// The free space behind the data; the whole buffer if it is empty. Never moves data to enlarge
    /// the space: bytes that wait for a full socket stay in place.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.memory[self.end..]
    }

    /// Moves an incomplete header or word to the front if less than half of the buffer is free
    /// behind it.
    pub(super) fn make_room(&mut self) {
        let most = self.memory.len() - self.first;
        if self.start > self.first && self.memory.len() - self.end < most / 2 {
            self.memory.copy_within(self.start..self.end, self.first);
            (self.start, self.end) = (self.first, self.first + self.end - self.start);
        }
    }

    /// Appends the first `len` bytes of the free space to the data.
    pub(super) fn filled(&mut self, len: usize) {
        self.end = (self.end + len).min(self.memory.len());
    }

    /// Appends bytes. The caller has checked that there is room.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.room()[..bytes.len()].copy_from_slice(bytes);
        self.filled(bytes.len());
    }

    /// Receives as many bytes as there is room for, with one system call.
    pub(super) fn receive(&mut self, mut socket: &TcpStream) -> io::Result<Moved> {
        self.make_room();
        match socket.read(self.room()) {
            Ok(0) => Ok(Moved::End),
            Ok(read) => {
                self.end += read;
                Ok(Moved::Some)
            }
            Err(error) => nothing(error),
        }
    }

    /// Sends as many bytes as the socket accepts, with one system call.
    pub(super) fn send(&mut self, mut socket: &TcpStream) -> io::Result<Moved> {
        match socket.write(self.data()) {
            Ok(sent) => {
                self.consume(sent);
                Ok(Moved::Some)
            }
            Err(error) => nothing(error),
        }
    }
}

fn nothing(error: io::Error) -> io::Result<Moved> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(Moved::Nothing),
        _ => Err(error),
    }
}

/// The number of the `available` bytes of an operation that may be moved now, with `left` bytes of
/// the operation to go. A piece must end at a word boundary of the region, or at the end of the
/// operation; `at` is its offset in the region.
pub(super) fn piece(at: u64, left: u32, available: usize) -> u32 {
    let available = u32::try_from(available).unwrap_or(u32::MAX);
    if left <= available {
        return left;
    }
    let beyond = u32::try_from(at.wrapping_add(u64::from(available)) % 8).unwrap_or(0);
    available.saturating_sub(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_a_word_or_with_the_operation() {
        assert_eq!(piece(3, 100, 100), 100);
        assert_eq!(piece(3, 100, 99), 93);
        assert_eq!(piece(0, 100, 7), 0);
        assert_eq!(piece(5, 100, 3), 3);
        assert_eq!(piece(5, 100, 2), 0);
        assert_eq!(piece(5, 2, 2), 2);
    }

    #[test]
    fn what_comes_has_buffers_of_the_room_and_never_too_small_ones() {
        let room = ReceiveRoom::new(800 << 10);
        let mut buffers: Vec<_> = (0..8).map(|_| Buffer::within(&room)).collect();
        let sizes: Vec<_> = buffers.iter_mut().map(|buffer| buffer.room().len() >> 10).collect();
        assert_eq!(sizes, [256, 256, 144, 72, 36, 18, 16, 16]);
        drop(buffers);
        assert_eq!(Buffer::within(&room).room().len(), BUFFER_BYTES);
    }

    #[test]
    fn buffers_begin_at_their_places_in_a_page() {
        let room = ReceiveRoom::new(800 << 10);
        let at = |mut buffer: Buffer| buffer.room().as_ptr().addr() % PAGE;
        for _ in 0..3 {
            assert_eq!((at(Buffer::new()), at(Buffer::within(&room))), (OUTPUT_AT, INPUT_AT));
        }
    }

    #[test]
    fn bytes_go_through_in_order_and_the_room_comes_back() {
        let mut buffer = Buffer::new();
        let room = buffer.room().len();
        buffer.put(b"one two");
        assert_eq!(buffer.take::<4>(), Some(*b"one "));
        assert_eq!(buffer.take::<4>(), None);
        assert_eq!(buffer.data(), b"two");
        buffer.consume(3);
        assert!(buffer.is_empty());
        assert_eq!(buffer.room().len(), room);
    }

    #[test]
    fn what_waits_stays_where_it_is_until_more_is_received_behind_it() {
        let mut buffer = Buffer::new();
        let most = buffer.room().len();
        buffer.put(&vec![1; most - 10]);
        buffer.put(b"the rest");
        buffer.consume(most - 10);
        let waits = buffer.data().as_ptr();
        assert_eq!(buffer.room().len(), 2);
        assert_eq!(buffer.data().as_ptr(), waits);
        buffer.make_room();
        assert_eq!(buffer.data(), b"the rest");
        assert_eq!(buffer.room().len(), most - 8);
    }
}
