use std::io::{self, Read};

use crate::activity::InputSpace;

/// The size of a spare buffer, in bytes.
pub(super) const PIECE: usize = 64 << 10;
/// The least free space of a buffer before a read, in bytes.
const LEAST: usize = 16 << 10;
/// The most bytes of a request, all of them received.
const MOST: usize = 1 << 30;
/// An incomplete request of at most this length is moved to a buffer of its own size.
const SMALL: usize = 4 << 10;

/// Bytes that were received and not yet executed.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

/// The result of a read.
pub(super) enum Filled {
    /// The buffer was filled: the socket may have more.
    All,
    /// The socket is drained, unless the end follows.
    Rest,
    /// The socket had nothing.
    Nothing,
    /// The end of the stream.
    End,
}

impl Input {
    /// The bytes received.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// The use of the buffer.
    pub(super) const fn space(&self) -> InputSpace {
        InputSpace { bytes: self.end - self.begin, room: self.bytes.len() - self.end }
    }

    /// The size of the buffer in bytes.
    pub(super) const fn held(&self) -> usize {
        self.bytes.len()
    }

    /// Removes the first `len` bytes.
    pub(super) fn consume(&mut self, len: usize) {
        self.begin = (self.begin + len).min(self.end);
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Removes `len` bytes at `at`.
    pub(super) fn cut(&mut self, at: usize, len: usize) {
        let (from, to) = (self.begin + at, (self.begin + at + len).min(self.end));
        if from < to {
            self.bytes.copy_within(to..self.end, from);
            self.end -= to - from;
        }
    }

    /// Reads once, so that at most `most` bytes wait. `spares` are spare buffers.
    pub(super) fn fill(
        &mut self,
        stream: &mut impl Read,
        spares: &mut Vec<Vec<u8>>,
        most: usize,
    ) -> io::Result<Filled> {
        self.make_room(spares)?;
        let waiting = self.end - self.begin;
        let room = (self.bytes.len() - self.end).min(most.saturating_sub(waiting));
        if room == 0 {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        match stream.read(&mut self.bytes[self.end..self.end + room]) {
            Ok(0) => Ok(Filled::End),
            Ok(read) => {
                self.end += read;
                Ok(if read < room { Filled::Rest } else { Filled::All })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Filled::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Filled::All),
            Err(error) => Err(error),
        }
    }

    fn make_room(&mut self, spares: &mut Vec<Vec<u8>>) -> io::Result<()> {
        if self.bytes.is_empty() {
            self.bytes = spares.pop().unwrap_or_else(|| vec![0; PIECE]);
        }
        if self.bytes.len() - self.end >= LEAST {
            return Ok(());
        }
        let left = self.end - self.begin;
        // Never copies more bytes than were consumed.
        if self.begin >= left {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, left);
        }
        if self.bytes.len() - self.end < LEAST {
            if left >= MOST {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            // Grows with received bytes, never with announced lengths.
            self.bytes.resize((self.end * 2).max(PIECE), 0);
        }
        Ok(())
    }

    /// Returns the buffer to the spares if little waits in it.
    pub(super) fn release(&mut self, spares: &mut Vec<Vec<u8>>) {
        const KEPT: usize = 16;
        let left = self.end - self.begin;
        if left > SMALL || self.bytes.len() < PIECE {
            return;
        }
        let rest = self.bytes().to_vec();
        let bytes = std::mem::replace(&mut self.bytes, rest);
        (self.begin, self.end) = (0, left);
        if bytes.len() == PIECE && spares.len() < KEPT {
            spares.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_and_go() {
        let (mut input, mut spares) = (Input::default(), Vec::new());
        let data: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut stream = &data[..];
        let mut seen = Vec::new();
        loop {
            let filled = input.fill(&mut stream, &mut spares, usize::MAX).unwrap();
            let ended = matches!(filled, Filled::End);
            // Some bytes always stay.
            let used = input.bytes().len().saturating_sub(100);
            seen.extend_from_slice(&input.bytes()[..used]);
            input.consume(used);
            input.release(&mut spares);
            if ended {
                break;
            }
        }
        seen.extend_from_slice(input.bytes());
        assert!(seen == data);
        assert!(input.bytes.len() <= SMALL && !spares.is_empty());
    }

    #[test]
    fn a_part_is_cut_out() {
        let (mut input, mut spares) = (Input::default(), Vec::new());
        let mut stream = &b"0123456789abc"[..];
        input.fill(&mut stream, &mut spares, 10).unwrap();
        assert_eq!(stream, b"abc");
        input.consume(1);
        input.cut(2, 3);
        assert_eq!(input.bytes(), b"126789");
        input.cut(6, 3);
        assert_eq!(input.bytes(), b"126789");
    }
}
