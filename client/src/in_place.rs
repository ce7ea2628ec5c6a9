//! Pinned objects as slices: bytes that a program reads, or writes before it publishes them, where
//! they lie in the rack's frames.

use std::borrow::Borrow;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rackpool_model::{FrameId, GlobalAddr};
use rackpool_shm::ReadOnlyMapping;
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::extent_owner::ExtentOwner;
use rackpool_shm::frame_bytes::{FrameBytes, FrameBytesMut};
use rackpool_shm::mapping::FilePart;
use rackpool_shm::metadata::PageUse;

use crate::connection::{Connection, lock};
use crate::thread::Thread;
use crate::translation::Place;
use crate::{AccessError, DaemonError, Extent, NoCell, Pin, Pool};

/// The kernel maps files in units of this many bytes.
const KERNEL_PAGE: u64 = 4096;

/// The reason why the bytes of a pinned object can't be used in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The pinned object or the extent can't be found, or this program does not own the object.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The address is no part of the pinned object and no extent of it.
    #[error("{bytes} B at {addr} are not memory of the pinned object: pass its own extents")]
    NotItsMemory {
        /// The address of the first byte.
        addr: GlobalAddr,
        /// The length in bytes.
        bytes: u64,
    },
    /// The program has too many pins, or the file system has no room for more.
    #[error(transparent)]
    NoCell(#[from] NoCell),
    /// The kernel refused to map the extents side by side.
    #[error(
        "the kernel can't map {extents} extents side by side ({source}): free memory of the rack, so that new objects lie in one piece"
    )]
    System {
        /// The number of extents.
        extents: usize,
        /// The kernel's reason.
        source: std::io::Error,
    },
}

/// The bytes of a pinned object, for reading in place. The pin lasts as long as this value.
///
/// ```no_run
/// # use rackpool_client::{ClientOptions, Pool, RackId};
/// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
/// # let (head, extents) = (pool.alloc_fixed(64)?, Vec::new());
/// let bytes = pool.pin(head)?.map_extents(&extents, 100 << 20)?;
/// println!("{} zeros", bytes.iter().filter(|byte| **byte == 0).count());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PinnedBytes<P: Borrow<Pool>> {
    pin: Pin<P>,
    bytes: FrameBytes,
    frames_offset: Option<u64>,
}

/// The bytes of an object that this program owns, for writing in place, before it publishes the
/// object. The object is pinned as long as this value exists; it can't be reserved or disowned
/// before it is dropped.
///
/// ```no_run
/// # use rackpool_client::{ClientOptions, Pool, RackId};
/// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
/// let head = pool.alloc_fixed(64)?;
/// let extents = pool.alloc_extents(head, 100 << 20)?;
/// let mut bytes = pool.pin(head)?.map_extents_mut(&extents, 100 << 20)?;
/// bytes.fill(7);
/// drop(bytes);
/// let reservation = pool.reserve_owned(head)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PinnedBytesMut<P: Borrow<Pool>> {
    pub(crate) pin: Pin<P>,
    pub(crate) bytes: FrameBytesMut,
    /// Where the bytes lie, one part after the other.
    pub(crate) memory: Vec<Extent>,
    frames_offset: Option<u64>,
}

/// Where bytes lie in the frames file: one part, or several.
struct Parts(Vec<FilePart>);

impl Parts {
    /// Appends a part, as the continuation of the last one if it is that.
    fn push(&mut self, offset: u64, len: u64) {
        match self.0.last_mut() {
            Some(last) if last.offset + last.len == offset => last.len += len,
            _ => self.0.push(FilePart { offset, len }),
        }
    }

    /// The offset of the first byte, if the bytes are one part.
    fn single(&self) -> Option<u64> {
        match self.0[..] {
            [FilePart { offset, .. }] => Some(offset),
            _ => None,
        }
    }

    /// The parts as the kernel can map them: only the last one may end within a page.
    fn for_kernel(mut self) -> Vec<FilePart> {
        if let Some(last) = self.0.last_mut() {
            last.len = last.len.next_multiple_of(KERNEL_PAGE);
        }
        self.0
    }
}

impl<P: Borrow<Pool>> Pin<P> {
    /// The given bytes of the pinned object itself, for reading. Offsets count from its address.
    ///
    /// # Errors
    /// [`MapError`]: the range goes past the object, or this program writes the object in place.
    pub fn map_head(self, range: Range<u64>) -> Result<PinnedBytes<P>, MapError> {
        let parts = self.head_parts(&range)?;
        self.map(parts, range.end.saturating_sub(range.start))
    }

    /// The first `bytes` bytes of these extents of the pinned object side by side, for reading. The
    /// cost does not depend on the size if the extents are one run of frames; otherwise it is a
    /// system call for each piece.
    ///
    /// # Errors
    /// [`MapError`]: an extent is not one of the pinned object or does not lie in this rack, the
    /// extents are shorter than `bytes`, this program writes the object in place, or the kernel
    /// can't map them.
    pub fn map_extents(self, extents: &[Extent], bytes: u64) -> Result<PinnedBytes<P>, MapError> {
        let parts = self.extent_parts(extents, bytes)?;
        self.map(parts, bytes)
    }

    /// As [`map_head`](Self::map_head), for writing.
    ///
    /// # Errors
    /// As [`map_head`](Self::map_head), and [`AccessError::NotOwned`].
    pub fn map_head_mut(self, range: Range<u64>) -> Result<PinnedBytesMut<P>, MapError> {
        let parts = self.head_parts(&range)?;
        let bytes = range.end.saturating_sub(range.start);
        let addr = self.addr();
        let addr = addr.add(range.start).map_err(|_| AccessError::InvalidAddress(addr))?;
        self.map_mut(parts, vec![Extent { addr, bytes }], bytes)
    }

    /// As [`map_extents`](Self::map_extents), for writing.
    ///
    /// # Errors
    /// As [`map_extents`](Self::map_extents), and [`AccessError::NotOwned`].
    pub fn map_extents_mut(
        self,
        extents: &[Extent],
        bytes: u64,
    ) -> Result<PinnedBytesMut<P>, MapError> {
        let parts = self.extent_parts(extents, bytes)?;
        self.map_mut(parts, extents.to_vec(), bytes)
    }

    fn connection(&self) -> &Connection {
        self.pool().connection()
    }

    fn head_parts(&self, range: &Range<u64>) -> Result<Parts, MapError> {
        let (offset, object) = self.with(|thread| thread.fixed_place(self.addr()))?;
        if range.start > range.end || range.end > object {
            let bytes = range.end.saturating_sub(range.start);
            return Err(MapError::NotItsMemory { addr: self.addr(), bytes });
        }
        Ok(Parts(vec![FilePart { offset: offset + range.start, len: range.end - range.start }]))
    }

    fn extent_parts(&self, extents: &[Extent], bytes: u64) -> Result<Parts, MapError> {
        let (mut parts, mut left) = (Parts(Vec::new()), bytes);
        self.with(|thread| {
            let (head, _) = thread.fixed_place(self.addr())?;
            for extent in extents {
                parts.push(thread.extent_place(head, extent)?, extent.bytes.min(left));
                left -= extent.bytes.min(left);
                if left == 0 {
                    break;
                }
            }
            Ok(())
        })?;
        if left == 0 {
            return Ok(parts);
        }
        Err(MapError::NotItsMemory { addr: self.addr(), bytes })
    }

    fn with<R>(
        &self,
        work: impl FnOnce(&mut Thread) -> Result<R, MapError>,
    ) -> Result<R, MapError> {
        self.pool().with(work).map_err(AccessError::from)?
    }

    fn map(self, parts: Parts, bytes: u64) -> Result<PinnedBytes<P>, MapError> {
        let connection = self.connection();
        if lock(&connection.owned).is_written(self.addr()) {
            return Err(AccessError::BeingWritten(self.addr()).into());
        }
        let (len, frames_offset) = (slice_len(bytes)?, parts.single());
        let bytes = match frames_offset {
            Some(offset) => FrameBytes::within(&connection.readable_frames()?, offset, len)
                .map_err(|_| AccessError::from(DaemonError::Protocol))?,
            None => {
                let parts = parts.for_kernel();
                FrameBytes::side_by_side(&connection.frames_file, &parts, len)
                    .map_err(|source| MapError::System { extents: parts.len(), source })?
            }
        };
        Ok(PinnedBytes { pin: self, bytes, frames_offset })
    }

    fn map_mut(
        self,
        parts: Parts,
        memory: Vec<Extent>,
        bytes: u64,
    ) -> Result<PinnedBytesMut<P>, MapError> {
        let (bytes, frames_offset) = self.writable(parts, bytes)?;
        lock(&self.connection().owned).begin_writing(self.addr())?;
        Ok(PinnedBytesMut { pin: self, bytes, memory, frames_offset })
    }

    /// The bytes of these parts, and the offset of the first one if they are consecutive.
    fn writable(&self, parts: Parts, bytes: u64) -> Result<(FrameBytesMut, Option<u64>), MapError> {
        let connection = self.connection();
        let (len, frames_offset) = (slice_len(bytes)?, parts.single());
        let bytes = match frames_offset {
            Some(offset) => FrameBytesMut::within(&connection.frames, offset, len)
                .map_err(|_| AccessError::from(DaemonError::Protocol))?,
            None => {
                let parts = parts.for_kernel();
                FrameBytesMut::side_by_side(&connection.frames_file, &parts, len)
                    .map_err(|source| MapError::System { extents: parts.len(), source })?
            }
        };
        Ok((bytes, frames_offset))
    }
}

fn slice_len(bytes: u64) -> Result<usize, MapError> {
    let len = usize::try_from(bytes).ok().filter(|len| isize::try_from(*len).is_ok());
    let too_large = || std::io::ErrorKind::InvalidInput.into();
    len.ok_or_else(|| MapError::System { extents: 0, source: too_large() })
}

impl Thread {
    /// The offset of a fixed object of this rack in the frames, and its length in bytes.
    pub(crate) fn fixed_place(&mut self, addr: GlobalAddr) -> Result<(u64, u64), MapError> {
        let target = self.target(addr, 1)?;
        let known = self.translate_here(&target)?;
        match (known.place, known.page_use(self.connection.page_size)) {
            (Place::Local { frame, .. }, PageUse::Fixed(class))
                if target.offset & (class.bytes() - 1) == 0 =>
            {
                Ok((self.frame_offset(frame) + target.offset, class.bytes()))
            }
            _ => Err(AccessError::NotFixed(addr).into()),
        }
    }

    /// The offset in the frames of an extent that belongs to the head at this offset. The daemon
    /// writes the owner word that says so; the extent comes from bytes that a client has written.
    fn extent_place(&mut self, head: u64, extent: &Extent) -> Result<u64, MapError> {
        let Extent { addr, bytes } = *extent;
        let not_its = MapError::NotItsMemory { addr, bytes };
        let target = self.target(addr, 1)?;
        let known = self.translate_here(&target)?;
        let page_bytes = self.connection.page_size.bytes();
        let (Place::Local { frame, .. }, PageUse::Run { index: 0, pages }) =
            (known.place, known.page_use(self.connection.page_size))
        else {
            return Err(not_its);
        };
        let word = self.connection.metadata.load(self.connection.layout.header(frame) + 8);
        let owner = word.ok().and_then(ExtentOwner::from_raw);
        let is_its = owner.is_some_and(|owner| owner.head() == head)
            && target.offset == 0
            && bytes <= u64::from(pages) * page_bytes
            && bytes.is_multiple_of(page_bytes);
        if is_its { Ok(self.frame_offset(frame)) } else { Err(not_its) }
    }

    fn frame_offset(&self, frame: FrameId) -> u64 {
        u64::from(frame.0) * self.connection.page_size.bytes()
    }
}

impl Connection {
    /// The frames mapped for reading, so that no program writes sealed bytes by mistake.
    fn readable_frames(&self) -> Result<Arc<ReadOnlyMapping>, MapError> {
        let mut mapping = lock(&self.readable_frames);
        if let Some(mapping) = &*mapping {
            return Ok(Arc::clone(mapping));
        }
        let made = ReadOnlyMapping::new(&self.frames_file, self.frames.len());
        let made = made.map_err(|source| MapError::System { extents: 1, source })?;
        Ok(Arc::clone(mapping.insert(Arc::new(made))))
    }
}

impl<P: Borrow<Pool>> PinnedBytes<P> {
    /// The address of the pinned object.
    #[must_use]
    pub const fn head(&self) -> GlobalAddr {
        self.pin.addr()
    }

    /// The offset of the first byte in the rack's [frames file](Pool::frames_file), if the bytes
    /// are consecutive there.
    #[must_use]
    pub const fn frames_offset(&self) -> Option<u64> {
        self.frames_offset
    }
}

impl<P: Borrow<Pool>> Deref for PinnedBytes<P> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

impl<P: Borrow<Pool>> PinnedBytesMut<P> {
    /// The address of the object.
    #[must_use]
    pub const fn head(&self) -> GlobalAddr {
        self.pin.addr()
    }

    /// The offset of the first byte in the rack's [frames file](Pool::frames_file), if the bytes
    /// are consecutive there.
    #[must_use]
    pub const fn frames_offset(&self) -> Option<u64> {
        self.frames_offset
    }
}

impl<P: Borrow<Pool>> PinnedBytesMut<P> {
    /// The first `bytes` bytes of these extents of the object side by side, instead of the bytes of
    /// the object itself. The object may have been [published](Pool::reserve_written) meanwhile.
    ///
    /// # Errors
    /// As [`Pin::map_extents_mut`]; this value is dropped then.
    pub fn map_extents_mut(mut self, extents: &[Extent], bytes: u64) -> Result<Self, MapError> {
        let parts = self.pin.extent_parts(extents, bytes)?;
        (self.bytes, self.frames_offset) = self.pin.writable(parts, bytes)?;
        self.memory = extents.to_vec();
        Ok(self)
    }

    /// Copies `from` to these bytes, from offset `at` on, past the processor's caches: faster for
    /// bytes that the caches can't hold, and slower for a reader that follows at once. `from` is in
    /// the caches afterwards, as far as it fits.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (head, samples) = (pool.alloc_fixed(64)?, vec![7; 100 << 20]);
    /// let extents = pool.alloc_extents(head, 100 << 20)?;
    /// let mut bytes = pool.pin(head)?.map_extents_mut(&extents, 100 << 20)?;
    /// bytes.copy_past_caches(0, &samples)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AccessError::BeyondObject`] if these bytes end before the end of the copy; nothing is
    /// copied then.
    pub fn copy_past_caches(&mut self, at: usize, from: &[u8]) -> Result<(), AccessError> {
        let available = self.bytes.len().saturating_sub(at);
        if from.len() > available {
            let (len, available) = (from.len() as u64, available as u64);
            return Err(AccessError::BeyondObject { addr: self.head(), len, available });
        }
        self.bytes.copy_past_caches(at, from);
        Ok(())
    }
}

impl<P: Borrow<Pool>> Deref for PinnedBytesMut<P> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

impl<P: Borrow<Pool>> DerefMut for PinnedBytesMut<P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut_slice()
    }
}

impl<P: Borrow<Pool>> Drop for PinnedBytesMut<P> {
    fn drop(&mut self) {
        let connection = self.pin.pool().connection();
        // A forked child has inherited the lock too, perhaps held by a thread of the parent.
        if !connection.is_inherited() {
            lock(&connection.owned).end_writing(self.pin.addr());
        }
    }
}

impl Pool {
    /// The file with the frames of the own rack, open for reading and writing. A program that gets
    /// the descriptor can map all memory of the rack.
    #[must_use]
    pub fn frames_file(&self) -> BorrowedFd<'_> {
        self.connection().frames_file.as_fd()
    }

    /// The folder on a disk of this rack for what programs move out of its memory; `None` if the
    /// daemon was started without one (`--spill-dir`). It is empty when the memory is new, and
    /// private to this user.
    #[must_use]
    pub fn spill_folder(&self) -> Option<PathBuf> {
        let rack = self.connection().options.socket.parent()?;
        std::fs::read_link(RackDirectory::at(rack).spill()).ok()
    }

    /// The length of the [frames file](Self::frames_file) in bytes.
    #[must_use]
    pub fn frames_bytes(&self) -> u64 {
        self.connection().frames.len()
    }
}
