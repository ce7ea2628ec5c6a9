use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use rackpool_client::{GlobalAddr, PinnedBytes, Pool};

use crate::checksum::Checksum;
use crate::error::StoreError;
use crate::layout::head::Head;

/// A sealed object as a slice of this rack's memory. Derefs to the bytes, without the metadata.
///
/// The bytes stay and do not change until the last clone is dropped or the process ends, also if
/// the object is deleted meanwhile. No lease runs out under a reader.
///
/// Programs that keep the protocol never write sealed bytes, and the mapping is read-only. A faulty
/// or malicious process of the same user can write the rack's memory all the same; then the bytes
/// under this slice change. [`verify`](Self::verify) finds that.
#[derive(Clone)]
pub struct View {
    bytes: Arc<PinnedBytes<Arc<Pool>>>,
    head: Head,
}

impl View {
    pub(crate) fn new(bytes: PinnedBytes<Arc<Pool>>, head: Head) -> Self {
        Self { bytes: Arc::new(bytes), head }
    }

    /// The metadata of the object.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        &self.bytes[self.split()..]
    }

    /// The number that names the layout of the bytes.
    #[must_use]
    pub const fn layout_tag(&self) -> u64 {
        self.head.layout_tag
    }

    /// The checksum of bytes and metadata: XXH3-64 over the XXH3-64 of each block of 64 KiB.
    #[must_use]
    pub const fn checksum(&self) -> u64 {
        self.head.checksum
    }

    /// When the object was sealed, in milliseconds since 1970 by the creator's clock.
    #[must_use]
    pub const fn created_ms(&self) -> u64 {
        self.head.created_ms
    }

    /// The address of the object's head in this rack.
    #[must_use]
    pub fn head(&self) -> GlobalAddr {
        self.bytes.head()
    }

    /// The number of extents of this copy; 0 if the bytes are in the head.
    pub(crate) const fn extents(&self) -> u32 {
        self.head.extents
    }

    /// Whether this is a copy of the object with this head.
    pub(crate) fn is_copy_of(&self, object: &Head) -> bool {
        let Head { rack, extents, file, .. } = self.head;
        self.head == Head { rack, extents, file, ..*object }
    }

    /// The offset of the first byte in the rack's [frames file](Pool::frames_file), if the bytes
    /// are consecutive there. The metadata follow directly.
    #[must_use]
    pub fn frames_offset(&self) -> Option<u64> {
        self.bytes.frames_offset()
    }

    /// Computes the checksum of the bytes and compares it with that of the seal.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if they differ.
    pub fn verify(&self) -> Result<(), StoreError> {
        if Checksum::of(&self.bytes) == self.head.checksum {
            return Ok(());
        }
        Err(StoreError::Damaged { addr: self.head() })
    }

    /// Where the bytes end and the metadata begin. The length fits, since the bytes are mapped.
    fn split(&self) -> usize {
        usize::try_from(self.head.bytes).unwrap_or(usize::MAX)
    }
}

impl Deref for View {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.split()]
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("head", &self.head()).field("bytes", &self.head.bytes).finish()
    }
}
