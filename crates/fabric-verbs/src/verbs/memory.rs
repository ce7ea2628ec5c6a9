use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_fabric::MemoryRegion;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::abi;
use super::device::Domain;
use super::last_error;

/// A memory region registered with the device.
pub(crate) struct Registration {
    raw: Raw,
    _memory: Arc<dyn MemoryRegion>,
}

/// Registered memory of this process for messages. It is mapped as shared, because a fork would
/// otherwise make it copy-on-write and the device could write to the wrong copy.
pub(crate) struct Buffers {
    raw: Raw,
    memory: Anonymous,
}

/// A part of registered memory.
#[derive(Clone, Copy)]
pub(crate) struct Slice<'a> {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) key: u32,
    /// Inline data is read while a request is posted, so the memory must stay mapped until then.
    memory: PhantomData<&'a Raw>,
}

#[cfg(test)]
impl Slice<'_> {
    /// A slice of unmapped memory, for lists that are never posted.
    pub(super) const fn unmapped(address: u64, len: u32) -> Self {
        Self { address, len, key: 1, memory: PhantomData }
    }
}

/// A memory registration of the library. After its drop, the device can no longer access the
/// memory.
struct Raw {
    mr: NonNull<abi::Mr>,
    address: u64,
    len: u64,
    local_key: u32,
    remote_key: u32,
    domain: Arc<Domain>,
}

// SAFETY: as for the context.
unsafe impl Send for Raw {}
// SAFETY: as for the context.
unsafe impl Sync for Raw {}

impl Registration {
    /// Registers a whole region. With `remote`, peers may read and write it too.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        memory: Arc<dyn MemoryRegion>,
        remote: bool,
    ) -> io::Result<Self> {
        let Some(base) = memory.base() else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is not mapped"));
        };
        // SAFETY: a memory region promises that all its bytes are mapped at its base until it is
        // dropped. It is kept until after the registration has ended.
        let raw = unsafe { Raw::new(domain, base, memory.len(), remote) }?;
        Ok(Self { raw, _memory: memory })
    }

    /// Returns true if this registration covers the same bytes as `region`. The registration keeps
    /// its memory mapped, so another region at the same address is an alias of the same memory.
    pub(crate) fn covers(&self, region: &dyn MemoryRegion) -> bool {
        let base = region.base().map(|base| base.addr().get() as u64);
        base == Some(self.raw.address) && region.len() == self.raw.len
    }

    /// A part of the region; `None` if it exceeds the region.
    pub(crate) fn slice(&self, offset: u64, len: u32) -> Option<Slice<'_>> {
        self.raw.slice(offset, len)
    }

    /// Address by which peers access the region.
    pub(crate) fn address(&self) -> u64 {
        self.raw.address
    }

    /// Key by which peers access the region.
    pub(crate) fn remote_key(&self) -> u32 {
        self.raw.remote_key
    }

    pub(crate) fn len(&self) -> u64 {
        self.raw.len
    }
}

impl Buffers {
    /// Allocates zeroed memory. With `remote`, the peer may read and write it.
    pub(crate) fn new(domain: &Arc<Domain>, len: usize, remote: bool) -> io::Result<Self> {
        let memory = Anonymous::new(len)?;
        // SAFETY: just mapped, and unmapped only after the registration has ended.
        let raw = unsafe { Raw::new(domain, memory.base, len as u64, remote) }?;
        Ok(Self { raw, memory })
    }

    /// A part of the memory; `None` if it exceeds the memory.
    pub(crate) fn slice(&self, offset: u64, len: u32) -> Option<Slice<'_>> {
        self.raw.slice(offset, len)
    }

    /// Address by which the peer accesses the memory.
    pub(crate) fn address(&self) -> u64 {
        self.raw.address
    }

    /// Key by which the peer accesses the memory.
    pub(crate) fn remote_key(&self) -> u32 {
        self.raw.remote_key
    }

    /// Copies bytes into the memory; does nothing if the range exceeds the memory.
    pub(crate) fn put(&self, offset: usize, from: &[u8]) {
        if let Some(at) = self.memory.at(offset, from.len()) {
            // SAFETY: inside the mapping (checked); a slice of Rust's own never overlaps it.
            unsafe { at.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
        }
    }

    /// Copies `len` bytes out; returns none if the range exceeds the memory.
    pub(crate) fn take(&self, offset: usize, len: usize) -> Vec<u8> {
        let Some(at) = self.memory.at(offset, len) else { return Vec::new() };
        let mut bytes = vec![0; len];
        // SAFETY: inside the mapping (checked); concurrent writes of the device only change bytes.
        unsafe { at.copy_to_nonoverlapping(NonNull::from(&mut *bytes).cast(), len) };
        bytes
    }
}

impl Raw {
    /// # Safety
    /// `len` bytes at `base` stay mapped until the result is dropped, and are memory that others
    /// may write at any time.
    unsafe fn new(
        domain: &Arc<Domain>,
        base: NonNull<u8>,
        len: u64,
        remote: bool,
    ) -> io::Result<Self> {
        let mut access = abi::ACCESS_LOCAL_WRITE;
        if remote {
            access |= abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE;
        }
        let bytes = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let reg_mr = domain.context.library.reg_mr;
        // SAFETY: mapped memory, as the caller promises.
        let mr = unsafe { reg_mr(domain.raw.as_ptr(), base.as_ptr().cast(), bytes, access) };
        let mr = NonNull::new(mr).ok_or_else(last_error)?;
        // SAFETY: the library initialised it and does not write it again.
        let found = unsafe { mr.as_ref() };
        let (local_key, remote_key) = (found.lkey, found.rkey);
        let address = base.as_ptr().expose_provenance() as u64;
        Ok(Self { mr, address, len, local_key, remote_key, domain: Arc::clone(domain) })
    }

    fn slice(&self, offset: u64, len: u32) -> Option<Slice<'_>> {
        let end = offset.checked_add(len.into())?;
        (end <= self.len).then(|| Slice {
            address: self.address + offset,
            len,
            key: self.local_key,
            memory: PhantomData,
        })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: made by reg_mr and not yet deregistered. Cannot fail: no memory windows exist.
        unsafe { (self.domain.context.library.dereg_mr)(self.mr.as_ptr()) };
    }
}

/// Anonymous mapped memory.
struct Anonymous {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, accessed by raw copies only.
unsafe impl Send for Anonymous {}
// SAFETY: as for `Send`; concurrent copies only mix bytes.
unsafe impl Sync for Anonymous {}

impl Anonymous {
    fn new(len: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::SHARED) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping (checked).
        Some(unsafe { self.base.add(offset) })
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: exactly the mapped range; `Buffers` drops its registration first.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
