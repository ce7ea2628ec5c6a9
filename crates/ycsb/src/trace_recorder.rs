//! Recording of a benchmark's accesses to pages: a layer between the table and the client.

use std::collections::HashSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use rackpool_client::{GlobalAddr, PageSize, Pool, PublishCas, RackId, RootUpdate};
use rackpool_kv::{CasError, CasRequest, Memory, PoolError, ReadRequest, Roots};
use rackpool_model::{Access, PageId};
use rackpool_trace::{RackFrames, Recording};

use rackpool_admin::MetadataServer;

/// A trace that is being recorded, by all racks of a run.
pub struct TraceRecorder {
    started: Instant,
    page_size: PageSize,
    racks: Vec<RackFrames>,
    server: MetadataServer,
    state: Mutex<State>,
}

struct State {
    /// `None` once it is finished.
    recording: Option<Recording<BufWriter<File>>>,
    seen: HashSet<PageId>,
    /// The first failure; nothing is recorded after it.
    failure: Option<anyhow::Error>,
}

impl TraceRecorder {
    /// Starts a trace of the pool in `file`, which is replaced.
    ///
    /// # Errors
    /// If the pool's status is not available, or the file can't be written.
    pub fn start(file: &Path, server: MetadataServer) -> anyhow::Result<Self> {
        let pool = server.status()?;
        let page_size = PageSize::from_bytes(pool.page_bytes).context("the pool has no racks")?;
        let frames = pool.members.iter().map(|member| RackFrames {
            rack: member.rack,
            first: member.pages.first,
            frames: member.pages.count,
            free: member.free_frames.min(member.pages.count),
        });
        let mut racks: Vec<RackFrames> = frames.collect();
        racks.sort_by_key(|rack| rack.first);
        let written = File::create(file).and_then(|file| {
            Recording::start(BufWriter::with_capacity(1 << 20, file), pool.page_bytes, &racks)
        });
        let recording = written.with_context(|| format!("--record {}", file.display()))?;
        let state = State { recording: Some(recording), seen: HashSet::new(), failure: None };
        let (started, state) = (Instant::now(), Mutex::new(state));
        Ok(Self { started, page_size, racks, server, state })
    }

    /// Ends the trace. Returns the number of recorded accesses.
    ///
    /// # Errors
    /// If a part of the trace could not be written.
    pub fn finish(&self) -> anyhow::Result<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        let recording = state.recording.take().context("the recording has ended already")?;
        let count = recording.count();
        recording.finish().context("the trace can't be written")?;
        Ok(count)
    }

    fn note(&self, rack: RackId, addr: GlobalAddr, access: Access) {
        let Some(page) = addr.page(self.page_size) else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { recording: Some(recording), seen, failure } = &mut *state else { return };
        if failure.is_some() {
            return;
        }
        let first = seen.insert(page);
        let moved = if first { self.moved_home(page) } else { Ok(None) };
        // Under the lock, so that times of a rack never decrease.
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let noted = moved.and_then(|moved| {
            if let Some(home) = moved {
                recording.lives(page, home)?;
            }
            Ok::<_, anyhow::Error>(recording.accessed(rack, nanos, page, access)?)
        });
        *failure = noted.context("the trace can't be written").err();
    }

    /// Returns the page's home if it is not the rack where the page was born.
    fn moved_home(&self, page: PageId) -> anyhow::Result<Option<RackId>> {
        let home = self.server.locate(page)?;
        let born = self.racks.iter().find(|rack| rack.bore(page)).map(|rack| rack.rack);
        Ok(home.filter(|home| born.is_some_and(|born| born != *home)))
    }
}

/// A rack's pool whose accesses are recorded. Frees, which daemons execute, are not recorded.
pub struct RecordedPool {
    pool: Arc<Pool>,
    rack: RackId,
    recorder: Arc<TraceRecorder>,
}

impl RecordedPool {
    /// The pool as `rack` sees it.
    #[must_use]
    pub const fn new(pool: Arc<Pool>, rack: RackId, recorder: Arc<TraceRecorder>) -> Self {
        Self { pool, rack, recorder }
    }

    fn note(&self, addr: GlobalAddr, access: Access) {
        self.recorder.note(self.rack, addr, access);
    }
}

type Swapped<T> = Result<T, CasError<PoolError>>;

impl Memory for RecordedPool {
    type Error = PoolError;
    type Reservation = rackpool_client::Reservation;

    fn allocate(&self, bytes: u64) -> Result<GlobalAddr, PoolError> {
        Memory::allocate(&*self.pool, bytes)
    }

    fn free(&self, addr: GlobalAddr) -> Result<(), PoolError> {
        Memory::free(&*self.pool, addr)
    }

    fn reserve(&self, bytes: u64) -> Result<Self::Reservation, PoolError> {
        Memory::reserve(&*self.pool, bytes)
    }

    fn tombstone(&self) -> Result<Self::Reservation, PoolError> {
        Memory::tombstone(&*self.pool)
    }

    fn take(
        &self,
        place: GlobalAddr,
        object: GlobalAddr,
    ) -> Result<Option<Self::Reservation>, PoolError> {
        self.note(place, Access::Write);
        Memory::take(&*self.pool, place, object)
    }

    fn abort(&self, reservation: &mut Self::Reservation) {
        Memory::abort(&*self.pool, reservation);
    }

    fn publish(&self, reservation: &mut Self::Reservation, link: &PublishCas) -> Swapped<u64> {
        self.note(link.addr, Access::Write);
        Memory::publish(&*self.pool, reservation, link)
    }

    fn resolve(&self, reservation: &mut Self::Reservation, published: bool) {
        Memory::resolve(&*self.pool, reservation, published);
    }

    fn finish(&self, reservation: Self::Reservation) -> Result<(), PoolError> {
        Memory::finish(&*self.pool, reservation)
    }

    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), PoolError> {
        self.note(addr, Access::Read);
        Memory::read(&*self.pool, addr, into)
    }

    fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), PoolError> {
        self.note(addr, Access::Write);
        Memory::write(&*self.pool, addr, from)
    }

    fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), PoolError> {
        for read in reads.iter() {
            self.note(read.addr, Access::Read);
        }
        Memory::read_batch(&*self.pool, reads)
    }

    fn compare_and_swap(&self, addr: GlobalAddr, expected: u64, new: u64) -> Swapped<u64> {
        self.note(addr, Access::Write);
        Memory::compare_and_swap(&*self.pool, addr, expected, new)
    }

    fn compare_and_swap_batch(&self, requests: &[CasRequest]) -> Swapped<()> {
        for request in requests {
            self.note(request.addr, Access::Write);
        }
        Memory::compare_and_swap_batch(&*self.pool, requests)
    }

    fn is_unallocated(&self, error: &PoolError) -> bool {
        self.pool.is_unallocated(error)
    }

    fn is_lost(&self, error: &PoolError) -> bool {
        self.pool.is_lost(error)
    }

    fn page_bytes(&self) -> u64 {
        Memory::page_bytes(&*self.pool)
    }

    fn is_near(&self, addr: GlobalAddr) -> bool {
        Memory::is_near(&*self.pool, addr)
    }
}

impl Roots for RecordedPool {
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, PoolError> {
        Roots::root(&*self.pool, name)
    }

    fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Swapped<RootUpdate> {
        Roots::set_root(&*self.pool, name, expected, new)
    }
}
