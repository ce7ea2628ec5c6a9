use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};

use super::Mapper;
use super::card::Card;
use crate::handshake::Reader;
use crate::{FabricError, MemoryRegion};

/// What a peer offers, checked and mapped.
pub(super) struct PeerMemory {
    pub(super) regions: Vec<Arc<dyn MemoryRegion>>,
    /// Wakes the thread that polls the peer's fabric.
    pub(super) wake: OwnedFd,
    pub(super) card: Card,
}

impl PeerMemory {
    /// Checks and maps the descriptors that came with the content of an offer.
    pub(super) fn new(
        mapper: &dyn Mapper,
        content: &[u8],
        mut fds: impl Iterator<Item = OwnedFd>,
    ) -> Result<Self, FabricError> {
        let mut reader = Reader::new(content);
        let lens = reader.regions()?;
        reader.end()?;
        let wake = next_fd(&mut fds)?;
        check_wake(&wake)?;
        let card = Card::of_peer(mapper, next_fd(&mut fds)?)?;
        let mut regions = Vec::with_capacity(lens.len());
        for len in lens {
            let fd = next_fd(&mut fds)?;
            check_export(&fd, len)?;
            regions.push(map(mapper, fd, len)?);
        }
        if fds.next().is_some() {
            return Err(FabricError::misbehaved("it sent more descriptors than it announced"));
        }
        Ok(Self { regions, wake, card })
    }
}

/// Maps memory of a peer.
pub(super) fn map(
    mapper: &dyn Mapper,
    fd: OwnedFd,
    len: u64,
) -> Result<Arc<dyn MemoryRegion>, FabricError> {
    let memory = mapper
        .map(fd, len)
        .map_err(|error| FabricError::local("map the memory of a peer", error))?;
    if memory.len() < len {
        return Err(FabricError::local("map the memory of a peer", "the mapping is too short"));
    }
    Ok(memory)
}

/// The next descriptor.
pub(super) fn next_fd(fds: &mut impl Iterator<Item = OwnedFd>) -> Result<OwnedFd, FabricError> {
    fds.next().ok_or_else(|| FabricError::misbehaved("it sent fewer descriptors than it announced"))
}

/// Checks that a write to the peer's eventfd cannot block this side.
fn check_wake(fd: &OwnedFd) -> Result<(), FabricError> {
    match rustix::fs::fcntl_getfl(fd) {
        Ok(flags) if flags.contains(OFlags::NONBLOCK) => Ok(()),
        _ => Err(FabricError::misbehaved("writing to its wake-up may block")),
    }
}

/// Checks that a file is at least as long as announced, since an access beyond its end would fault.
/// Devices report no size.
fn check_export(fd: &OwnedFd, len: u64) -> Result<(), FabricError> {
    let stat = rustix::fs::fstat(fd)
        .map_err(|errno| FabricError::local("look at the memory of a peer", errno))?;
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    if len == 0 || is_file && u64::try_from(stat.st_size).unwrap_or(0) < len {
        return Err(FabricError::misbehaved(format!("it exports {len} B that are not there")));
    }
    Ok(())
}
