//! Extents: memory that belongs to a fixed object and is freed with it.

use rackpool_model::GlobalAddr;
use rackpool_ring::client_file::RingKind;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::thread::Thread;
use crate::{AllocError, DaemonError, Pool};

/// Consecutive pages that belong to a fixed object, their *head*. They keep their place and are
/// freed with the head. [`Pool::free`] refuses their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The address of the first byte.
    pub addr: GlobalAddr,
    /// The length in bytes: whole pages.
    pub bytes: u64,
}

impl Pool {
    /// Gives a fixed object of at least 64 B, the *head*, extents of `bytes` bytes in all, rounded
    /// up to whole pages, and returns them in their order. The memory need not lie side by side:
    /// a rack with one free page more has room (the last one stays for small movable objects).
    ///
    /// Extents that the head has already count. So a call that has failed can be repeated; else the
    /// caller frees the head, and its extents with it.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let head = pool.alloc_fixed(64)?;
    /// let extents = pool.alloc_extents(head, 3 * pool.page_bytes())?;
    /// pool.write(extents[0].addr, b"the first bytes")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError`]: `bytes` is 0, `head` is no fixed object of at least 64 B in the own rack
    /// ([`AllocError::NotAHead`]), the own rack has no room ([`AllocError::RackFull`]), or the
    /// daemon does not answer. The head then has some of the extents.
    pub fn alloc_extents(&self, head: GlobalAddr, bytes: u64) -> Result<Vec<Extent>, AllocError> {
        self.with(|thread| thread.alloc_extents(head, bytes))?
    }

    /// Returns the extents of a head of the own rack, in their order, by one request to the daemon
    /// for each.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let head = pool.alloc_fixed(64)?;
    /// assert_eq!(pool.extents(head)?, []);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError::NotAHead`], or that of a daemon that does not answer.
    pub fn extents(&self, head: GlobalAddr) -> Result<Vec<Extent>, AllocError> {
        self.with(|thread| {
            let mut extents = Vec::new();
            while let RackAnswer::Extent { addr, pages } = thread.extend(head, 0, &extents)? {
                extents.push(thread.extent(addr, pages));
            }
            Ok(extents)
        })?
    }
}

impl Thread {
    fn alloc_extents(&mut self, head: GlobalAddr, bytes: u64) -> Result<Vec<Extent>, AllocError> {
        if bytes == 0 {
            return Err(AllocError::ZeroSize);
        }
        let (mut extents, mut left) = (Vec::new(), bytes);
        let mut is_flushed = false;
        while left > 0 {
            let pages = self.connection.page_size.pages_for(left);
            match self.extend(head, pages, &extents)? {
                RackAnswer::Extent { addr, pages } if pages > 0 => {
                    let extent = self.extent(addr, pages);
                    left = left.saturating_sub(extent.bytes);
                    extents.push(extent);
                }
                RackAnswer::OutOfMemory { .. } if !is_flushed && self.free_memory()? => {
                    is_flushed = true;
                }
                full @ RackAnswer::OutOfMemory { .. } => return Err(self.rack_full(left, &full)),
                _ => return Err(DaemonError::Protocol.into()),
            }
        }
        Ok(extents)
    }

    /// Asks for the extent of a head after the `known` ones.
    fn extend(
        &mut self,
        head: GlobalAddr,
        pages: u64,
        known: &[Extent],
    ) -> Result<RackAnswer, AllocError> {
        let request = RackRequest::Extend { head, pages, known: known.len() as u64 };
        match self.calls.ask(&self.connection, request, RingKind::Rack)? {
            RackAnswer::NotAllocated => Err(AllocError::NotAHead(head)),
            answer @ (RackAnswer::Extent { .. }
            | RackAnswer::Done(_)
            | RackAnswer::OutOfMemory { .. }) => Ok(answer),
            _ => Err(DaemonError::Protocol.into()),
        }
    }

    fn extent(&self, addr: GlobalAddr, pages: u32) -> Extent {
        Extent { addr, bytes: u64::from(pages) * self.connection.page_size.bytes() }
    }
}
