use std::io::{self, Read};

/// A buffer that is not in use has this size, in bytes.
pub(super) const PIECE: usize = 64 << 10;
/// There is room for at least so many bytes before more are read.
const LEAST: usize = 16 << 10;
/// A request takes at most so many bytes, all of them received.
const MOST: usize = 1 << 30;
/// What is left of a request is kept in a buffer of its own size if it is not longer.
const SMALL: usize = 4 << 10;

/// Bytes that have come and were not used yet.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

/// What came of reading.
pub(super) enum Filled {
    /// There may be more.
    All,
    /// All that had come, unless that was the last before the end.
    Rest,
    /// No more has come.
    Nothing,
    /// There will be no more.
    End,
}

impl Input {
    /// What has come.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// How many bytes have come, and for how many more its buffer has room.
    pub(super) const fn space(&self) -> (usize, usize) {
        (self.end - self.begin, self.bytes.len() - self.end)
    }

    /// The size of its buffer, in bytes.
    pub(super) const fn held(&self) -> usize {
        self.bytes.len()
    }

    /// The first `len` bytes are used.
    pub(super) fn consume(&mut self, len: usize) {
        self.begin = (self.begin + len).min(self.end);
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        }
    }

    /// Takes out `len` bytes at `at`.
    pub(super) fn cut(&mut self, at: usize, len: usize) {
        let (from, to) = (self.begin + at, (self.begin + at + len).min(self.end));
        if from < to {
            self.bytes.copy_within(to..self.end, from);
            self.end -= to - from;
        }
    }

    /// Reads once, until at most `most` bytes wait. `spares` are buffers that are not in use.
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
        // Nothing is copied that is longer than what was used.
        if self.begin >= left {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, left);
        }
        if self.bytes.len() - self.end < LEAST {
            if left >= MOST {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            // As much again as has come: nothing for what is only announced.
            self.bytes.resize((self.end * 2).max(PIECE), 0);
        }
        Ok(())
    }

    /// Gives the buffer back as far as nothing waits in it.
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
            // Some bytes are always left.
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
