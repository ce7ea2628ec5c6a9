//! Bytes of a rack's frames as slices: objects that a program reads and writes in place.
//!
//! Memory that other processes may write is otherwise accessed through atomics and checked copies
//! only. This module makes the one exception, because an object that is read in place is a slice.
//! The argument: `rackpool-client` makes these values for the memory of a *pinned* fixed object
//! alone. Such memory does not move and is not reused while the pin exists. It is writable for the
//! one program that owns the object, and while it is mapped for writing no other value of this
//! module exists for it in that program. Once the program has published the object, programs that
//! keep the protocol write none of its bytes.
//!
//! A process of the same user that breaks the protocol can change the bytes under a reader, as with
//! any mapped file. `docs/semantics/objects.md` says so, and how readers find it.

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::copy::copy_past;
use crate::mapping::{FilePart, Mapping, OutsideMapping, ReadOnlyMapping};

/// Consecutive bytes for reading.
#[derive(Clone, Debug)]
pub struct FrameBytes {
    /// Keeps the bytes mapped.
    _mapping: Arc<ReadOnlyMapping>,
    first: NonNull<u8>,
    len: usize,
}

/// Consecutive bytes for reading and writing.
#[derive(Debug)]
pub struct FrameBytesMut {
    /// Keeps the bytes mapped.
    _mapping: Arc<Mapping>,
    first: NonNull<u8>,
    len: usize,
}

/// Some of the bytes of a [`FrameBytesMut`], into which the daemon may be reading. No slice of them
/// exists but what [`part`](Self::part) returns, so the daemon's writes alias none.
#[derive(Debug)]
pub struct FrameChunkMut<'a> {
    first: NonNull<u8>,
    len: usize,
    _bytes: PhantomData<&'a mut FrameBytesMut>,
}

// SAFETY: as for `FrameBytesMut`, which it borrows.
unsafe impl Send for FrameChunkMut<'_> {}
// SAFETY: the bytes stay mapped while the value exists and are read only.
unsafe impl Send for FrameBytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for FrameBytes {}
// SAFETY: the bytes stay mapped while the value exists; writing them takes `&mut self`.
unsafe impl Send for FrameBytesMut {}
// SAFETY: as for `Send`.
unsafe impl Sync for FrameBytesMut {}

impl FrameBytes {
    /// `len` bytes of a mapping of all frames, from `offset` on.
    pub fn within(
        frames: &Arc<ReadOnlyMapping>,
        offset: u64,
        len: usize,
    ) -> Result<Self, OutsideMapping> {
        let first = frames.bytes(offset, len as u64)?;
        Ok(Self { _mapping: Arc::clone(frames), first, len })
    }

    /// The first `len` bytes of the parts of the frames file, mapped side by side.
    pub fn side_by_side(file: impl AsFd, parts: &[FilePart], len: usize) -> io::Result<Self> {
        let mapping = Arc::new(ReadOnlyMapping::side_by_side(file, parts)?);
        Self::within(&mapping, 0, len).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping (checked in `within`), which `self` keeps; no
        // program that keeps the protocol writes the bytes (see the module).
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

impl FrameBytesMut {
    /// `len` bytes of a mapping of all frames, from `offset` on.
    pub fn within(frames: &Arc<Mapping>, offset: u64, len: usize) -> Result<Self, OutsideMapping> {
        let first = frames.bytes(offset, len as u64)?;
        Ok(Self { _mapping: Arc::clone(frames), first, len })
    }

    /// The first `len` bytes of the parts of the frames file, mapped side by side.
    pub fn side_by_side(file: impl AsFd, parts: &[FilePart], len: usize) -> io::Result<Self> {
        let mapping = Arc::new(Mapping::side_by_side(file, parts)?);
        Self::within(&mapping, 0, len).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping (checked in `within`), which `self` keeps; only the
        // holder of `self` writes the bytes (see the module).
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }

    /// All bytes, of which the daemon may be writing some.
    pub const fn whole(&mut self) -> FrameChunkMut<'_> {
        FrameChunkMut { first: self.first, len: self.len, _bytes: PhantomData }
    }

    /// Copies `from` to these bytes, from offset `at` on, with stores that bypass the caches.
    /// `from` is in the caches afterwards, as far as it fits.
    ///
    /// # Panics
    /// If the range goes past the end.
    pub fn copy_past_caches(&mut self, at: usize, from: &[u8]) {
        let mut whole = self.whole();
        let into = whole.part(at..at.saturating_add(from.len()));
        // SAFETY: both slices have this length, and the one that is written overlaps no other.
        unsafe { copy_past(from.as_ptr(), into.as_mut_ptr(), from.len()) };
    }

    /// The number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, to be written.
    #[inline]
    #[must_use]
    pub const fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes this the only slice of the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl FrameChunkMut<'_> {
    /// Cuts off the first `len` bytes; all, if there are fewer.
    #[must_use]
    pub fn cut_off(&mut self, len: usize) -> Self {
        let len = len.min(self.len);
        let front = Self { first: self.first, len, _bytes: PhantomData };
        // SAFETY: at most one past the last byte of the chunk.
        self.first = unsafe { self.first.add(len) };
        self.len -= len;
        front
    }

    /// The number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of the bytes. The caller has no read under way into them.
    ///
    /// # Panics
    /// If the range goes past the end.
    #[must_use]
    pub fn part(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} B", self.len);
        // SAFETY: the range lies in the bytes.
        let first = unsafe { self.first.add(range.start) };
        // SAFETY: the range lies in the mapping, which the borrowed value keeps; `&mut self` makes
        // this the only slice of the chunk, and no other chunk has these bytes.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const LEN: u64 = 4 << 12;

    fn file() -> (OwnedFd, Mapping) {
        let file = memfd_create("frames", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LEN).unwrap();
        let mapping = Mapping::new(&file, LEN).unwrap();
        (file, mapping)
    }

    #[test]
    fn parts_lie_side_by_side_in_their_order() {
        let (file, whole) = file();
        for page in 0..4_u8 {
            whole.write(u64::from(page) << 12, &[page; 4096]).unwrap();
        }
        let parts =
            [(3, 1), (0, 2)].map(|(page, count)| FilePart { offset: page << 12, len: count << 12 });
        let mut writable = FrameBytesMut::side_by_side(&file, &parts, 3 << 12).unwrap();
        let readable = FrameBytes::side_by_side(&file, &parts, 3 << 12).unwrap();
        let expected = [[3; 4096], [0; 4096], [1; 4096]].concat();
        assert!(readable.as_slice() == expected && writable.as_slice() == expected);
        writable.as_mut_slice()[4096 + 7] = 9;
        assert_eq!(readable.as_slice()[4096 + 7], 9);
        let mut rest = writable.whole();
        let mut first = rest.cut_off(8192);
        assert_eq!(first.part(4096 + 7..4096 + 9), [9, 0]);
        rest.part(0..2).copy_from_slice(&[5, 6]);
        let last = rest.cut_off(1 << 20);
        assert_eq!((first.len(), last.len(), rest.len(), rest.is_empty()), (8192, 4096, 0, true));
        assert_eq!(readable.as_slice()[8191..8195], [0, 5, 6, 1]);
        assert_eq!((writable.whole().part(9..9).len(), writable.len()), (0, 3 << 12));
        let mut byte = [0];
        whole.read(7, &mut byte).unwrap();
        assert_eq!(byte, [9]);
    }

    #[test]
    fn a_range_outside_the_frames_is_refused() {
        let (file, whole) = file();
        let (whole, frames) =
            (Arc::new(whole), Arc::new(ReadOnlyMapping::new(&file, LEN).unwrap()));
        assert!(FrameBytesMut::within(&whole, 1, 4 << 12).is_err());
        assert!(FrameBytes::within(&frames, u64::MAX, 1).is_err());
        whole.write(4097, b"rack").unwrap();
        assert_eq!(FrameBytes::within(&frames, 4097, 4).unwrap().as_slice(), b"rack");
        assert!(FrameBytes::side_by_side(&file, &[], 0).is_err());
        let odd = [FilePart { offset: 1, len: 4096 }, FilePart { offset: 0, len: 4096 }];
        let short = [FilePart { offset: 0, len: 4096 }];
        assert!(FrameBytes::side_by_side(&file, &short, 4097).is_err());
        assert!(FrameBytes::side_by_side(&file, &odd, 1).is_err(), "not a multiple of a page");
    }
}
