//! The bytes and the block map of a rack in a cast: this program's own, and those of its peers.

use std::sync::Arc;

use rackpool_client::{AccessError, GlobalAddr, PinnedChunkMut, Pool};
use rackpool_proto::multicast::block_map::BlockMap;

use super::records::CastNumber;
use crate::error::StoreError;
use crate::layout::head::at;
use crate::transfer::Memory;

const WORD: u64 = 8;

/// A rack's block map in the pool: the number of the cast, then the words of the map. It belongs to
/// the program that made it, and ends with it.
#[derive(Debug)]
pub(super) struct StoredMap {
    pool: Arc<Pool>,
    addr: GlobalAddr,
}

impl StoredMap {
    /// Stores a map where peers can read it.
    pub(super) fn new(
        pool: &Arc<Pool>,
        cast: CastNumber,
        map: &BlockMap,
    ) -> Result<Self, StoreError> {
        let addr = pool.alloc_fixed(WORD * (1 + map.words().len() as u64))?;
        let stored = Self { pool: Arc::clone(pool), addr };
        let words: Vec<u8> = map.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        pool.write(at(addr, WORD), &words)?;
        // The number last: from now on the words count.
        pool.write(addr, &cast.0.to_le_bytes())?;
        Ok(stored)
    }

    pub(super) const fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// Stores a word of the map. The bytes of its blocks are in their places.
    pub(super) fn set(&self, map: &BlockMap, index: u32) -> Result<(), StoreError> {
        let word = map.words().get(index as usize).copied().unwrap_or_default();
        let at = at(self.addr, WORD * (1 + u64::from(index)));
        Ok(self.pool.write(at, &word.to_le_bytes())?)
    }
}

impl Drop for StoredMap {
    fn drop(&mut self) {
        // Peers that still read find that the map is not of their cast. If either fails, the daemon
        // takes the memory back when the program ends.
        let _ = self.pool.write(self.addr, &[0; 8]);
        let _ = self.pool.free(self.addr);
    }
}

/// Where a peer has the object's bytes and its block map.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) memory: Memory,
    pub(super) map: GlobalAddr,
}

impl Peer {
    /// The cast that the peer's map is of, and a word of it. `None` if the peer can't be read.
    pub(super) fn look(&self, pool: &Pool, index: u32) -> Option<(CastNumber, u64)> {
        // One read, since each waits for the blocks on the link. It may be torn if the map is freed
        // meanwhile; the number is read again after the block.
        let mut words = vec![0; 8 * (2 + index as usize)];
        pool.read(self.map, &mut words).ok()?;
        let (number, word) = (words.first_chunk()?, words.last_chunk()?);
        Some((CastNumber(u64::from_le_bytes(*number)), u64::from_le_bytes(*word)))
    }

    /// The cast that the peer's map is of.
    pub(super) fn cast(&self, pool: &Pool) -> Option<CastNumber> {
        let mut number = [0; 8];
        pool.read(self.map, &mut number).ok()?;
        Some(CastNumber(u64::from_le_bytes(number)))
    }

    /// Reads a block of the object into its place, and calls `on_read` with the offset in the block
    /// and the bytes of one piece after the other. Returns whether the peer could be read.
    ///
    /// # Errors
    /// That of a read whose end is not known. Its bytes may come later, whatever they are by then,
    /// so nobody may rely on the memory any more.
    pub(super) fn read(
        &self,
        start: u64,
        into: &mut PinnedChunkMut<'_, Arc<Pool>>,
        mut on_read: impl FnMut(usize, &[u8]),
    ) -> Result<bool, AccessError> {
        let (mut done, end) = (0, start.saturating_add(into.len() as u64));
        for part in self.memory.parts(start, end) {
            let len = usize::try_from(part.bytes).unwrap_or(usize::MAX);
            let mut read_to = done;
            let read = into.read_from(done, part.addr, len, |bytes| {
                on_read(read_to, bytes);
                read_to += bytes.len();
            });
            match read {
                Ok(()) => done = read_to,
                Err(error @ AccessError::Daemon(_)) => return Err(error),
                Err(_) => return Ok(false),
            }
        }
        Ok(done == into.len())
    }
}
