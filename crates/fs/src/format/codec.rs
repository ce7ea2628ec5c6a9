//! Encoding and decoding of the table's values. Bytes that do not decode are damage.

use crate::error::FsError;

/// Decodes bytes from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Decodes `bytes`; `what` names them in errors.
    pub(crate) const fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) const fn damaged(&self) -> FsError {
        FsError::Damaged(self.what)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], FsError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(self.damaged())?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], FsError> {
        let (bytes, rest) = self.rest.split_first_chunk::<LEN>().ok_or(self.damaged())?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, FsError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FsError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FsError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FsError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, FsError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Decodes a number of variable length: seven bits a byte, the lowest first; all bytes but the
    /// last have their highest bit set.
    pub(crate) fn short_number(&mut self) -> Result<u64, FsError> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.damaged())
    }

    /// Bytes after their length, a u32.
    pub(crate) fn long(&mut self) -> Result<&'a [u8], FsError> {
        let len = self.u32()?;
        self.bytes(len as usize)
    }

    /// Bytes after their length, a u8.
    pub(crate) fn short(&mut self) -> Result<&'a [u8], FsError> {
        let len = self.u8()?;
        self.bytes(len.into())
    }
}

/// Appends a number that [`Reader::short_number`] reads.
pub(crate) fn put_short_number(into: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        let [low, ..] = number.to_le_bytes();
        into.push(low | 0x80);
        number >>= 7;
    }
    let [low, ..] = number.to_le_bytes();
    into.push(low);
}

/// Appends bytes after their length, a u32; the callers bound it.
pub(crate) fn put_long(into: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    into.extend_from_slice(&len.to_le_bytes());
    into.extend_from_slice(bytes);
}

/// Appends bytes after their length, a u8; the callers bound it.
pub(crate) fn put_short(into: &mut Vec<u8>, bytes: &[u8]) {
    into.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
    into.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_come_back_and_those_of_too_many_bits_are_damage() {
        for number in [0, 1, 127, 128, 16_383, 16_384, u64::from(u32::MAX), u64::MAX - 1, u64::MAX]
        {
            let mut bytes = Vec::new();
            put_short_number(&mut bytes, number);
            let mut from = Reader::new(&bytes, "a number");
            assert_eq!(from.short_number().unwrap(), number);
            assert!(from.is_empty());
            assert!(Reader::new(&bytes[..bytes.len() - 1], "a number").short_number().is_err());
        }
        for bytes in [
            &[0xff; 10][..],
            &[0xff; 20],
            &[0x80; 12],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2],
        ] {
            assert!(Reader::new(bytes, "a number").short_number().is_err(), "{bytes:?}");
        }
    }
}
