use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::FabricError;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Creates shared memory: zeroed, and sealed so that no side can take pages from another.
pub(super) fn create(name: &str, len: u64) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS | SealFlags::SEAL)?;
    Ok(fd)
}

/// Checks that a descriptor from a peer is shared memory of this length that cannot shrink.
pub(super) fn check(fd: &OwnedFd, what: &str, len: u64) -> Result<(), FabricError> {
    let seals = rustix::fs::fcntl_get_seals(fd)
        .map_err(|_| FabricError::misbehaved(format!("its {what} is no memfd")))?;
    if !seals.contains(SEALS) {
        return Err(FabricError::misbehaved(format!("its {what} is not sealed")));
    }
    let size = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size);
    if u64::try_from(size).ok() != Some(len) {
        return Err(FabricError::misbehaved(format!("its {what} has {size} B")));
    }
    Ok(())
}
