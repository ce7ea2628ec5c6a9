//! Words of an object that a program stores while it writes the object's other bytes in place.

use std::borrow::Borrow;
use std::sync::Arc;

use rackpool_shm::mapping::{Mapping, OutsideMapping};
use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::{AccessError, DaemonError, MapError, Pin, PinError, PinnedBytesMut, Pool};

/// Words of an object whose other bytes this program [writes in place](PinnedBytesMut). To store
/// them takes an instruction each and no request, so it is possible where the pool can't be used,
/// such as in `on_read` of [`PinnedBytesMut::read_from`]. The object is pinned as long as this
/// value exists.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use rackpool_client::{ClientOptions, Pin, Pool, RackId};
/// # let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?);
/// # let (from, len) = (pool.alloc(64)?, 100 << 20);
/// let head = pool.alloc_fixed(64)?;
/// let extents = pool.alloc_extents(head, len as u64)?;
/// let mut bytes = Pin::new(pool, head)?.map_extents_mut(&extents, len as u64)?;
/// // The first word of the head says how many bytes are there.
/// let (done, mut count) = (bytes.words(0)?, 0);
/// bytes.read_from(0, from, len, |piece| {
///     count += piece.len() as u64;
///     done.store([count]);
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PinnedWords<P: Borrow<Pool>, const N: usize> {
    _pin: Pin<P>,
    frames: Arc<Mapping>,
    /// The offset of the first word in the frames.
    offset: u64,
}

impl<P: Borrow<Pool> + Clone> PinnedBytesMut<P> {
    /// `N` words of the object itself. `offset` counts from its address and is a multiple of 8.
    ///
    /// # Errors
    /// [`MapError`]: the words are not aligned, go past the object, or are among these bytes; or
    /// the program has too many pins.
    pub fn words<const N: usize>(&self, offset: u64) -> Result<PinnedWords<P, N>, MapError> {
        let (head, bytes) = (self.head(), (N as u64).saturating_mul(8));
        let not_its = MapError::NotItsMemory { addr: head, bytes };
        let pin = Pin::new(self.pin.shared_pool().clone(), head).map_err(|error| match error {
            PinError::Access(error) => MapError::Access(error),
            PinError::NoCell(full) => MapError::NoCell(full),
        })?;
        let place = pin.pool().with(|thread| thread.fixed_place(head));
        let (object, object_bytes) = place.map_err(AccessError::from)??;
        let (begin, end) = (head.raw().saturating_add(offset), offset.saturating_add(bytes));
        let is_written = self.memory.iter().any(|part| {
            let part_end = part.addr.raw().saturating_add(part.bytes);
            part.addr.raw() < begin.saturating_add(bytes) && begin < part_end
        });
        if end > object_bytes || !offset.is_multiple_of(8) || is_written {
            return Err(not_its);
        }
        let frames = Arc::clone(&pin.pool().connection().frames);
        let words = PinnedWords { _pin: pin, frames, offset: object + offset };
        words.view().map_err(|_| AccessError::from(DaemonError::Protocol))?;
        Ok(words)
    }
}

impl<P: Borrow<Pool>, const N: usize> PinnedWords<P, N> {
    /// Stores the words, one after the other. Bytes that this program wrote or
    /// [read](PinnedBytesMut::read_from) into the object before are there for all that see them.
    pub fn store(&self, words: [u64; N]) {
        // `words` has checked that they lie in the frames.
        let Ok(places) = self.view() else { return };
        for (place, word) in places.iter().zip(words) {
            // SYNC: pairs with the load in `copy_out`, by a program of the rack or by the fabric
            // for one of another rack, which reads the bytes afterwards.
            place.store(word, Ordering::Release);
        }
    }

    fn view(&self) -> Result<&[AtomicU64; N], OutsideMapping> {
        self.frames.view(self.offset)
    }
}
