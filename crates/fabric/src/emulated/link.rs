use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::memfd;
use crate::{FabricError, MemoryRegion, OutOfRange};

/// Size of one message ring, in bytes.
pub(super) const RING_BYTES: u64 = 1 << 20;
/// Size of the whole link memory, in bytes (see docs/design/fabric.md).
pub(super) const LINK_BYTES: u64 = FIRST_RING_AT + 2 * RING_BYTES;

const MAGIC: u64 = u64::from_le_bytes(*b"racklink");
const LAYOUT: u64 = 1;
const INITIATOR_WORDS_AT: u64 = 0x1000;
const ACCEPTOR_WORDS_AT: u64 = 0x2000;
const FIRST_RING_AT: u64 = 0x3000;

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The end that connected and created the link memory.
    Initiator,
    /// The end that accepted.
    Acceptor,
}

/// A word that one side writes and the other reads. Words are two cache lines apart, so that the
/// adjacent-line prefetcher does not fetch a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Word {
    /// 1 once the side has closed the endpoint.
    Closed = 0x000,
    /// 1 while the side may be copying.
    InOperation = 0x080,
    /// A `SleepWord`: whether the side sleeps, and which events wake it.
    Sleep = 0x100,
    /// Bytes ever put into the ring that the side fills.
    Tail = 0x180,
    /// Bytes ever taken from the ring that the side empties.
    Head = 0x200,
}

/// The shared memory of a link, seen from one of its ends.
#[derive(Clone)]
pub(super) struct SharedLink {
    memory: Arc<dyn MemoryRegion>,
    side: Side,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }

    const fn words_at(self) -> u64 {
        match self {
            Self::Initiator => INITIATOR_WORDS_AT,
            Self::Acceptor => ACCEPTOR_WORDS_AT,
        }
    }

    /// Offset of the ring that this side fills.
    const fn ring_at(self) -> u64 {
        match self {
            Self::Initiator => FIRST_RING_AT,
            Self::Acceptor => FIRST_RING_AT + RING_BYTES,
        }
    }
}

/// Creates a link memory.
pub(super) fn create_memory() -> Result<OwnedFd, FabricError> {
    memfd::create("rackpool-link", LINK_BYTES)
        .map_err(|errno| FabricError::local("create the memory of a link", errno))
}

/// Checks that a descriptor from a peer is a link memory that cannot shrink.
pub(super) fn check_memory(fd: &OwnedFd) -> Result<(), FabricError> {
    memfd::check(fd, "link memory", LINK_BYTES)
}

impl From<OutOfRange> for FabricError {
    fn from(error: OutOfRange) -> Self {
        Self::local("access mapped memory", error)
    }
}

impl SharedLink {
    /// Creates one end of a link. The initiator writes the header; the acceptor checks it.
    pub(super) fn new(memory: Arc<dyn MemoryRegion>, side: Side) -> Result<Self, FabricError> {
        let header = [(0, MAGIC), (8, LAYOUT), (16, RING_BYTES)];
        for (offset, value) in header {
            match side {
                Side::Initiator => memory.store(offset, value)?,
                Side::Acceptor if memory.load(offset)? == value => {}
                Side::Acceptor => return Err(FabricError::misbehaved("its link has no header")),
            }
        }
        Ok(Self { memory, side })
    }

    /// Touches every page, so that no message incurs the page fault.
    pub(super) fn touch(&self) -> Result<(), FabricError> {
        for offset in (0..LINK_BYTES).step_by(4096) {
            self.memory.load(offset)?;
        }
        Ok(())
    }

    /// Stores a word of this side.
    pub(super) fn store(&self, word: Word, value: u64) -> Result<(), FabricError> {
        Ok(self.memory.store(self.side.words_at() + word as u64, value)?)
    }

    /// Loads a word of the peer. It may have any value.
    pub(super) fn peer(&self, word: Word) -> Result<u64, FabricError> {
        Ok(self.memory.load(self.side.other().words_at() + word as u64)?)
    }

    /// Orders earlier stores before later loads.
    pub(super) fn fence(&self) {
        self.memory.full_fence();
    }

    /// Writes bytes into the ring that this side fills, at a running position.
    pub(super) fn put(&self, position: u64, bytes: &[u8]) -> Result<(), FabricError> {
        let (first, rest) = bytes.split_at(before_wrap(position, bytes.len()));
        let ring = self.side.ring_at();
        self.memory.write(ring + position % RING_BYTES, first)?;
        if !rest.is_empty() {
            self.memory.write(ring, rest)?;
        }
        Ok(())
    }

    /// Reads bytes from the ring that the peer fills, at a running position.
    pub(super) fn take(&self, position: u64, into: &mut [u8]) -> Result<(), FabricError> {
        let (first, rest) = into.split_at_mut(before_wrap(position, into.len()));
        let ring = self.side.other().ring_at();
        self.memory.read(ring + position % RING_BYTES, first)?;
        if !rest.is_empty() {
            self.memory.read(ring, rest)?;
        }
        Ok(())
    }
}

/// The number of the `len` bytes at `position` that lie before the end of the ring.
fn before_wrap(position: u64, len: usize) -> usize {
    let left = RING_BYTES - position % RING_BYTES;
    usize::try_from(left).map_or(len, |left| left.min(len))
}
