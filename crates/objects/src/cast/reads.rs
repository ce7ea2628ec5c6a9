//! The reads of a rack that receives an object, on threads of their own: while the bytes of one
//! block come, the next block is asked for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rackpool_client::{AccessError, PinnedBytesMut, PinnedChunkMut, Pool, RackId};
use rackpool_proto::multicast::{Block, Version};

use super::copy::Peer;
use super::part_hashes::PartHashes;
use crate::checksum::Checksum;
use crate::store::lock;

/// As many as the machine asks for at the same time.
pub(super) const THREADS: u16 = 2;
/// The pause between two counts of the bytes that are there, for racks that follow this one.
pub(super) const COUNT: Duration = Duration::from_millis(5);

type Chunk<'a> = PinnedChunkMut<'a, Arc<Pool>>;

/// The memory that a rack receives an object into.
pub(super) struct Receiving<'a> {
    pub(super) bytes: &'a mut PinnedBytesMut<Arc<Pool>>,
    /// Tells others how many bytes are there, from the first one on.
    pub(super) grown: &'a mut dyn FnMut(u64),
}

/// A block to be read.
struct Read<'a> {
    from: RackId,
    block: Block,
    /// Its first byte in the object.
    start: u64,
    peer: Arc<Peer>,
    chunk: Chunk<'a>,
    /// The turn of the read before, and its own.
    turns: [Arc<Turn>; 2],
}

/// Ends when half of a block has come. The next block is asked for then: early enough that its
/// bytes follow without a gap, and shares the link with this one for its second half only.
#[derive(Debug, Default)]
struct Turn {
    is_over: Mutex<bool>,
    ends: Condvar,
}

impl Turn {
    fn end(&self) {
        *lock(&self.is_over) = true;
        self.ends.notify_all();
    }

    fn wait(&self) {
        let is_over = self.ends.wait_while(lock(&self.is_over), |is_over| !*is_over);
        drop(is_over.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Ends the turn when it is dropped.
struct EndWith<'a>(&'a Turn);

impl Drop for EndWith<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Tells the session if its thread panics.
struct TellOfPanic(Arc<AtomicBool>);

impl Drop for TellOfPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

/// A block whose read has ended.
struct EndedRead<'a> {
    from: RackId,
    block: Block,
    chunk: Chunk<'a>,
    began: Instant,
    ended: Instant,
    /// The hashes of its parts, and the version of what the peer has; `None` if the peer can't be
    /// read. After an error the bytes may come later, so nobody may rely on the memory any more.
    outcome: Result<Option<(Vec<u64>, Version)>, AccessError>,
}

/// What became of a block.
pub(super) struct BlockRead {
    pub(super) from: RackId,
    pub(super) block: Block,
    pub(super) bytes: u64,
    /// The time from its request, or from the end of the read before if that was later.
    pub(super) took: Duration,
    /// The version of what the peer has; `None` if the peer can't be read.
    pub(super) found: Option<Version>,
}

/// The blocks of an object that is received, and the threads that read them.
pub(super) struct Reads<'a> {
    /// By number; none while it is read.
    chunks: Vec<Option<Chunk<'a>>>,
    /// The hashes of the object's parts, and how many each whole block has.
    hashes: Vec<u64>,
    parts_of_block: usize,
    begun: Sender<Read<'a>>,
    ended: Receiver<EndedRead<'a>>,
    has_panicked: Arc<AtomicBool>,
    /// Reads whose end was not yet asked for.
    waiting: VecDeque<EndedRead<'a>>,
    last_ended: Option<Instant>,
    /// The turn of the last read.
    last_turn: Arc<Turn>,
    grown: &'a mut dyn FnMut(u64),
    grown_at: Instant,
}

impl<'a> Reads<'a> {
    /// Starts the threads, which end when the value is dropped.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        pool: &Arc<Pool>,
        into: Receiving<'a>,
        block_bytes: usize,
    ) -> Self
    where
        'a: 'scope,
    {
        let Receiving { bytes, grown } = into;
        let hashes = vec![0; bytes.len().div_ceil(Checksum::BLOCK)];
        let chunks = bytes.chunks_mut(block_bytes).into_iter().map(Some).collect();
        let ((begun, to_read), (tells, ended)) = (channel(), channel());
        let to_read = Arc::new(Mutex::new(to_read));
        let last_turn = Arc::<Turn>::default();
        last_turn.end();
        let has_panicked = Arc::new(AtomicBool::new(false));
        for _ in 0..THREADS {
            let (to_read, tells, pool) = (Arc::clone(&to_read), tells.clone(), Arc::clone(pool));
            let tell = TellOfPanic(Arc::clone(&has_panicked));
            scope.spawn(move || {
                let _tell = tell;
                loop {
                    let next = lock(&to_read).recv();
                    let Ok(read) = next else { return };
                    if tells.send(run(&pool, read)).is_err() {
                        return;
                    }
                }
            });
        }
        Self {
            chunks,
            hashes,
            parts_of_block: block_bytes / Checksum::BLOCK,
            begun,
            ended,
            has_panicked,
            waiting: VecDeque::new(),
            last_ended: None,
            last_turn,
            grown,
            grown_at: Instant::now(),
        }
    }

    /// Begins to read a block. Returns false if it has no such block, or reads it already.
    pub(super) fn begin(&mut self, from: RackId, block: Block, peer: Arc<Peer>) -> bool {
        let chunk = self.chunks.get_mut(block.0 as usize).and_then(Option::take);
        let start = u64::from(block.0) * self.parts_of_block as u64 * Checksum::BLOCK as u64;
        let Some(chunk) = chunk else { return false };
        let own = Arc::<Turn>::default();
        let before = std::mem::replace(&mut self.last_turn, Arc::clone(&own));
        self.begun.send(Read { from, block, start, peer, chunk, turns: [before, own] }).is_ok()
    }

    /// A block whose read has ended.
    ///
    /// # Errors
    /// That of a read whose end is not known.
    ///
    /// # Panics
    /// If a thread that reads has panicked.
    pub(super) fn next(&mut self) -> Result<Option<BlockRead>, AccessError> {
        assert!(!self.has_panicked.load(Ordering::Acquire), "a thread that reads has panicked");
        let ended = self.waiting.pop_front().or_else(|| self.ended.try_recv().ok());
        let Some(EndedRead { from, block, chunk, began, ended, outcome }) = ended else {
            return Ok(None);
        };
        let since = self.last_ended.map_or(began, |last| last.max(began));
        // Two reads at once take at most twice the time of one.
        let least = ended.saturating_duration_since(began) / 2;
        let (bytes, took) = (chunk.len() as u64, ended.saturating_duration_since(since).max(least));
        self.last_ended = self.last_ended.max(Some(ended));
        let found = outcome?.map(|(hashes, version)| {
            let parts = self.hashes.iter_mut().skip(block.0 as usize * self.parts_of_block);
            parts.zip(hashes).for_each(|(part, hash)| *part = hash);
            version
        });
        if let Some(place) = self.chunks.get_mut(block.0 as usize) {
            *place = Some(chunk);
        }
        Ok(Some(BlockRead { from, block, bytes, took, found }))
    }

    /// Waits until a read has ended, at most for this time.
    pub(super) fn wait(&mut self, longest: Duration) {
        match self.ended.recv_timeout(longest) {
            Ok(ended) => self.waiting.push_back(ended),
            Err(RecvTimeoutError::Timeout) => {}
            // Both threads have panicked.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(longest),
        }
    }

    /// Tells others that the first `blocks` blocks are there, if it is time.
    pub(super) fn count(&mut self, blocks: impl FnOnce() -> u64) {
        if self.grown_at.elapsed() > COUNT {
            (self.grown)(blocks());
            self.grown_at = Instant::now();
        }
    }

    /// The checksum of the object, all blocks of which were read.
    pub(super) fn checksum(&self) -> u64 {
        Checksum::of_blocks(self.hashes.iter().copied())
    }
}

/// Reads a block into its place.
fn run<'a>(pool: &Pool, read: Read<'a>) -> EndedRead<'a> {
    let Read { from, block, start, peer, mut chunk, turns: [before, own] } = read;
    before.wait();
    let end_own = EndWith(&own);
    let (began, len) = (Instant::now(), chunk.len());
    let mut hashes = PartHashes::new(chunk.len());
    let read = if chunk.is_empty() {
        Ok(true)
    } else {
        peer.read(start, &mut chunk, |at, bytes| {
            if at + bytes.len() >= len / 2 {
                own.end();
            }
            hashes.add(at, bytes);
        })
    };
    drop(end_own);
    let ended = Instant::now();
    let outcome = read.map(|is_read| {
        let cast = peer.cast(pool).filter(|_| is_read)?;
        Some((hashes.finish(chunk.bytes()), Version(cast.0)))
    });
    EndedRead { from, block, chunk, began, ended, outcome }
}
