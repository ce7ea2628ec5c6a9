//! The fields of a request.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::Errno;
use rackpool_fs::{Caller, Ino};

/// The header of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    /// The kernel's number of the request; the answer repeats it.
    pub(crate) unique: u64,
    pub(crate) ino: Ino,
    pub(crate) caller: Caller,
}

/// The fields of a request, decoded from the front, in little-endian order (the order of all
/// supported hosts). A missing field is an error of the kernel's: `EIO`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// length u32 | opcode u32 | unique u64 | node u64 | uid u32 | gid u32 | pid u32 | zero
    pub(super) fn header(&mut self) -> Result<Header, Errno> {
        self.skip(4)?;
        let (opcode, unique, node) = (self.u32()?, self.u64()?, self.u64()?);
        let caller = Caller::new(self.u32()?, self.u32()?);
        self.skip(8)?;
        Ok(Header { opcode, unique, ino: Ino(node), caller })
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<(), Errno> {
        self.0 = self.0.get(len..).ok_or(Errno::EIO)?;
        Ok(())
    }

    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], Errno> {
        let (bytes, rest) = self.0.split_first_chunk::<LEN>().ok_or(Errno::EIO)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Errno> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Errno> {
        self.array().map(i64::from_le_bytes)
    }

    /// A name, terminated by a zero byte.
    pub(crate) fn name(&mut self) -> Result<&'a OsStr, Errno> {
        let len = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::EIO)?;
        let (name, rest) = self.0.split_at(len);
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(OsStr::from_bytes(name))
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: u32) -> Result<&'a [u8], Errno> {
        let len = usize::try_from(len).map_err(|_| Errno::EIO)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::EIO)?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_from_the_front_and_refused_when_it_is_cut() {
        let mut bytes = vec![0; 40];
        bytes[4..8].copy_from_slice(&12_u32.to_le_bytes());
        bytes[8..16].copy_from_slice(&6_u64.to_le_bytes());
        bytes[16..24].copy_from_slice(&9_u64.to_le_bytes());
        bytes[24..28].copy_from_slice(&1000_u32.to_le_bytes());
        bytes.extend_from_slice(b"from\0to\0");
        let mut fields = Fields::new(&bytes);
        let header = fields.header().unwrap();
        assert_eq!((header.opcode, header.unique, header.ino), (12, 6, Ino(9)));
        assert_eq!(header.caller, Caller::new(1000, 0));
        assert_eq!(fields.name().unwrap(), "from");
        assert_eq!(fields.name().unwrap(), "to");
        assert!(fields.name().is_err() && fields.u32().is_err() && fields.bytes(1).is_err());
        assert!(Fields::new(&bytes[..39]).header().is_err());
        assert!(Fields::new(b"no end").name().is_err());
    }
}
