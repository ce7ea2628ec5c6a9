use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::{Portion, ReceiveRoom};

/// Bytes of a buffer: large enough that a system call moves much, small enough to stay in a cache.
const BUFFER_BYTES: usize = 256 << 10;

/// The least: enough that most of what comes at a time fits.
const LEAST_BYTES: usize = 16 << 10;

/// Where in a page a buffer begins: one for what comes, one for what goes out. The kernel's side of
/// a copy mostly begins in the first bytes of a page. A copy whose target lies a few bytes above
/// its source, pages aside, takes the processor several times as long (docs/design/tcp.md, "Where
/// buffers begin").
const INPUT_AT: usize = 0;
const OUTPUT_AT: usize = PAGE / 2;

/// Addresses that differ by a multiple of it look alike to the processor's loads and stores.
const PAGE: usize = 4096;

/// Bytes on their way between a socket and memory.
pub(super) struct Buffer {
    memory: Vec<u8>,
    /// Where the buffer begins in its memory.
    first: usize,
    start: usize,
    end: usize,
    /// Of the room that all peers share, if it is a part of it.
    _portion: Option<Portion>,
}

/// What a socket did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// Some bytes.
    Some,
    /// The socket is empty, or full.
    Nothing,
    /// The peer sends no more.
    End,
}

impl Buffer {
    /// For what goes out.
    pub(super) fn new() -> Self {
        Self::with(BUFFER_BYTES, OUTPUT_AT, None)
    }

    /// For what comes: as large as there is room beside the other peers.
    pub(super) fn within(room: &ReceiveRoom) -> Self {
        let portion = room.take(|offered| offered.clamp(LEAST_BYTES as u64, BUFFER_BYTES as u64));
        let len = usize::try_from(portion.bytes()).unwrap_or(BUFFER_BYTES);
        Self::with(len, INPUT_AT, Some(portion))
    }

    fn with(len: usize, at: usize, portion: Option<Portion>) -> Self {
        let mut memory = vec![0; len + PAGE];
        let first = (memory.as_ptr().align_offset(PAGE) + at) % PAGE;
        // What is left out is never touched, and costs no memory.
        memory.truncate(first + len);
        Self { memory, first, start: first, end: first, _portion: portion }
    }

    /// What is in it.
    pub(super) fn data(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The first `len` bytes are done with.
    pub(super) fn consume(&mut self, len: usize) {
        self.start = self.start.saturating_add(len).min(self.end);
        if self.is_empty() {
            (self.start, self.end) = (self.first, self.first);
        }
    }

    /// The first bytes, if there are so many.
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.data().first_chunk()?;
        self.consume(N);
        Some(bytes)
    }

    /// Room behind the data, all of the buffer when it is empty. Data never moves to make more:
    /// what waits for a socket that is full goes first.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.memory[self.end..]
    }

    /// Moves data that waits for the rest of it, where little room is left behind it.
    pub(super) fn make_room(&mut self) {
        let most = self.memory.len() - self.first;
        if self.start > self.first && self.memory.len() - self.end < most / 2 {
            self.memory.copy_within(self.start..self.end, self.first);
            (self.start, self.end) = (self.first, self.first + self.end - self.start);
        }
    }

    /// The first `len` bytes of the room are data now.
    pub(super) fn filled(&mut self, len: usize) {
        self.end = (self.end + len).min(self.memory.len());
    }

    /// Appends bytes for which there is room.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.room()[..bytes.len()].copy_from_slice(bytes);
        self.filled(bytes.len());
    }

    /// Receives what there is room for.
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

    /// Sends what the socket takes.
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

/// How many of `available` bytes of an operation may be moved now, `left` being left of it: a piece
/// ends where a word of the region at `at` ends, or the operation.
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
