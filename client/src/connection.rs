//! The state that all threads of one client share: the mapped files and the link to the daemon.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rackpool_model::{ClientId, MemoryId, PageSize, RackId};
use rackpool_ring::client_file::{ArrayKind, ClientFile, DATA_BYTES};
use rackpool_ring::data::{DataBlock, DataRing};
use rackpool_shm::delay::ExtraLatency;
use rackpool_shm::host::HostFiles;
use rackpool_shm::lock_words::LockWords;
use rackpool_shm::marks::{Marks, ObjectHolder};
use rackpool_shm::memory::device_bytes;
use rackpool_shm::metadata::MetadataLayout;
use rackpool_shm::permit::Permit;
use rackpool_shm::superblock::{FileKind, Geometry, Superblock};
use rackpool_shm::{Mapping, OutsideMapping, ReadOnlyMapping};
use rackpool_sync::SleepFlag;
use rackpool_sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use rackpool_sync::barrier::{self, Barrier};
use rackpool_sync::futex;
use rackpool_wire::control::Resume;

use crate::calls::{Calls, Stray, collect_strays};
use crate::cells::Cells;
use crate::control::{ControlStream, Welcome};
use crate::deadline::Deadline;
use crate::fixed::Owned;
use crate::siblings::{self, Siblings};
use crate::slots::ThreadSlots;
use crate::{ClientOptions, DaemonError, OpenError};

/// State of the link to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum DaemonLink {
    /// A daemon serves this client. The end of its socket makes the link `Down`.
    Up = 0,
    /// The daemon is gone. Operations that need it wait; the keeper looks for its successor.
    Down = 1,
    /// The reconnect timeout has passed without a daemon. Operations fail; the keeper continues to
    /// look for a daemon.
    Overdue = 2,
    /// A daemon came back that cannot serve this client. Only closing leaves this state.
    Forgotten = 3,
    /// The program has closed the pool. Final.
    Closed = 4,
}

/// Result of connecting to a restarted daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reopened {
    /// The daemon serves this client again.
    Served,
    /// The daemon's heavy barrier does not reach this process, which omits the fence in its
    /// accesses because the earlier daemon had promised that barrier.
    BarrierLost,
}

/// Upper bound of the timeouts, so that adding one to a point in time cannot overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Least size of the data ring in bytes: room for a few requests of the largest size.
const LEAST_DATA: u64 = 256 << 10;

/// Source of connection ids. An id is never reused in this process, unlike a connection's address.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// One client of a rack.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Unique in this process, never 0.
    pub(crate) id: NonZeroU64,
    /// Each operation compares its pool number with `id`. Revoked when the link is forgotten or
    /// closed.
    pub(crate) permit: Permit,
    pub(crate) options: ClientOptions,
    pub(crate) rack: RackId,
    pub(crate) page_size: PageSize,
    pub(crate) layout: MetadataLayout,
    /// The barrier between announcing an access and loading the page word.
    pub(crate) barrier: Barrier,
    /// The emulated extra latency of an access.
    pub(crate) latency: ExtraLatency,
    pub(crate) frames: Arc<Mapping>,
    pub(crate) frames_file: OwnedFd,
    /// The frames mapped for reading, from the first use on.
    pub(crate) readable_frames: Mutex<Option<Arc<ReadOnlyMapping>>>,
    pub(crate) metadata: Arc<ReadOnlyMapping>,
    pub(crate) marks: Marks,
    pub(crate) lock_words: LockWords,
    /// The number that names this client in marks.
    pub(crate) holder: ObjectHolder,
    pub(crate) file: ClientFile,
    /// The fixed objects that the program owns.
    pub(crate) owned: Mutex<Owned>,
    /// The free cells of the pin array.
    pub(crate) pins: Mutex<Cells>,
    pub(crate) control: Mutex<Option<ControlStream>>,
    pub(crate) client: ClientId,
    memory: MemoryId,
    doorbell: RwLock<OwnedFd>,
    slots: ThreadSlots,
    link: AtomicU8,
    /// The incarnation of the daemon to which calls are posted.
    incarnation: AtomicU64,
    /// The allocator of the client file's data ring.
    pub(crate) data: DataRing,
    /// Blocks of abandoned calls, which a daemon may still access.
    pub(crate) strays: Mutex<Vec<Option<Stray>>>,
    /// The other daemons of the rack.
    pub(crate) siblings: Siblings,
}

/// Locks a mutex, poisoned or not: no holder leaves its contents half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Connects to the daemon's socket and maps the files that the daemon passes.
    pub(crate) fn open(options: ClientOptions) -> Result<Self, OpenError> {
        let named = options.socket.clone();
        let mut why = None;
        for options in siblings::candidates(options) {
            let is_named = options.socket == named;
            match Self::open_at(options) {
                Ok(connection) => return Ok(connection),
                // The daemon that was named says why; any is better than one that is away.
                Err(error) if why.is_none() || is_named => why = Some(error),
                Err(error) if matches!(why, Some(OpenError::Connect { .. })) => why = Some(error),
                Err(_) => {}
            }
        }
        Err(why.unwrap_or_else(|| OpenError::Protocol("a rack without daemons".into())))
    }

    fn open_at(options: ClientOptions) -> Result<Self, OpenError> {
        let mut control = ControlStream::connect(&options.socket)?;
        let welcome = control.hello(ThreadSlots::wanted(options.threads), None)?;
        let siblings = Siblings::of(&options, welcome.rack);
        Ok(Self { siblings, ..Self::over(options, control, welcome)? })
    }

    /// Maps the files that a daemon has passed.
    pub(crate) fn over(
        mut options: ClientOptions,
        control: ControlStream,
        welcome: Welcome,
    ) -> Result<Self, OpenError> {
        for timeout in [&mut options.request_timeout, &mut options.reconnect_timeout] {
            *timeout = (*timeout).min(LONGEST);
        }
        let protocol = |error: OutsideMapping| OpenError::Protocol(error.to_string());
        let geometry = read_superblock(&welcome.metadata, FileKind::Metadata)?;
        let client = read_superblock(&welcome.client_file, FileKind::Client)?;
        let threads = u16::try_from(client.threads)
            .map_err(|_| OpenError::Protocol("a client file without threads".into()))?;
        if client.client != welcome.client || client.memory != geometry.memory {
            return Err(OpenError::Protocol("files that do not belong together".into()));
        }
        let layout = MetadataLayout::new(geometry.page_size, geometry.frames);
        let frames_bytes = u64::from(geometry.frames) * geometry.page_size.bytes();
        let metadata =
            map_checked(&welcome.metadata, layout.bytes(), |f, n| ReadOnlyMapping::new(f, n))?;
        let marks_bytes = Marks::bytes(geometry.page_size, geometry.frames);
        let marks = map_checked(&welcome.marks, marks_bytes, |f, n| Mapping::new(f, n))?;
        let locks = map_checked(&welcome.locks, LockWords::BYTES, |f, n| Mapping::new(f, n))?;
        let frames = map_checked(&welcome.frames, frames_bytes, |f, n| Mapping::new(f, n))?;
        frames.advise_huge();
        let file = map_checked(&welcome.client_file, ClientFile::bytes(threads), |f, n| {
            Mapping::new(f, n)
        })?;
        let incarnation = incarnation(&metadata)?;
        let barrier = if barrier_reaches_clients(&metadata).map_err(protocol)? {
            barrier::register()
        } else {
            Barrier::Full
        };
        let id = NonZeroU64::MIN.saturating_add(CONNECTIONS.fetch_add(1, Ordering::Relaxed));
        Ok(Self {
            id,
            permit: Permit::new(id)?,
            barrier,
            latency: ExtraLatency::noted_in(&metadata).map_err(protocol)?,
            rack: welcome.rack,
            page_size: geometry.page_size,
            layout,
            frames: Arc::new(frames),
            frames_file: welcome.frames,
            readable_frames: Mutex::new(None),
            metadata: Arc::new(metadata),
            marks: Marks::new(Arc::new(marks), geometry.page_size, geometry.frames)
                .map_err(protocol)?,
            lock_words: LockWords::new(&Arc::new(locks)).map_err(protocol)?,
            holder: ObjectHolder::of(welcome.client),
            file: ClientFile::new(file, threads).map_err(protocol)?,
            owned: Mutex::new(Owned::new()),
            pins: Mutex::new(Cells::of(ArrayKind::Pins)),
            client: welcome.client,
            memory: welcome.memory,
            doorbell: RwLock::new(welcome.doorbell),
            control: Mutex::new(Some(control)),
            slots: ThreadSlots::new(threads, options.threads),
            link: AtomicU8::new(DaemonLink::Up as u8),
            incarnation: AtomicU64::new(incarnation),
            strays: Mutex::default(),
            siblings: Siblings::default(),
            data: DataRing::new(read_part().clamp(LEAST_DATA, DATA_BYTES)),
            options,
        })
    }

    /// Connects to a restarted daemon under the same client id.
    pub(crate) fn reopen(&self) -> Result<Reopened, OpenError> {
        let resume = Resume { client: self.client, memory: self.memory };
        let threads = self.file.threads();
        let mut control = ControlStream::connect(&self.options.socket)?;
        let incarnation = incarnation(&self.metadata)?;
        self.daemon_changed(incarnation);
        let welcome = control.hello(threads, Some(resume))?;
        let Welcome { client, memory, doorbell, .. } = welcome;
        if client != self.client || memory != self.memory {
            return Err(OpenError::Protocol("another client's files".into()));
        }
        if !self.barrier_holds() {
            return Ok(Reopened::BarrierLost);
        }
        *self.doorbell.write().unwrap_or_else(PoisonError::into_inner) = doorbell;
        *lock(&self.control) = Some(control);
        self.set_link(DaemonLink::Up);
        // A thread may have rung the doorbell of the dead daemon.
        self.ring_doorbell();
        Ok(Reopened::Served)
    }

    /// Shows the daemon that this process runs.
    pub(crate) fn beat(&self) {
        self.file.beat().fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if the running daemon issues the heavy barrier on which this client relies, or
    /// if this client does not rely on it.
    pub(crate) fn barrier_holds(&self) -> bool {
        match self.barrier {
            Barrier::Light => barrier_reaches_clients(&self.metadata).unwrap_or(false),
            Barrier::Full => true,
        }
    }

    /// The incarnation of the daemon to which calls are posted.
    pub(crate) fn life(&self) -> u64 {
        // SYNC: pairs with the swap in `daemon_changed`.
        self.incarnation.load(Ordering::Acquire)
    }

    /// Stores the incarnation of the running daemon. Unanswered calls to an earlier incarnation are
    /// lost: a daemon drops requests that name another incarnation. Wakes the threads that wait for
    /// them.
    pub(crate) fn daemon_changed(&self, incarnation: u64) {
        // SYNC: pairs with the load in `life`.
        if self.incarnation.swap(incarnation, Ordering::AcqRel) == incarnation {
            return;
        }
        // SYNC: pairs with the fence in `CallCell::will_sleep`: either this thread sees the
        // sleeper, or the sleeper sees the new incarnation.
        fence(Ordering::SeqCst);
        for thread in 0..self.file.threads() {
            for cell in self.file.cells(thread).unwrap_or_default() {
                if cell.rouse() {
                    futex::wake_all(cell.sleep_word());
                }
            }
        }
    }

    /// Takes a block of at least `bytes` bytes of the data ring. Returns `None` if none is free
    /// now.
    pub(crate) fn take_block(&self, bytes: u64) -> Option<DataBlock> {
        self.data.take(bytes).or_else(|| {
            collect_strays(self);
            self.data.take(bytes)
        })
    }

    /// Returns a block to the data ring.
    pub(crate) fn give_back(&self, block: Option<DataBlock>) {
        if let Some(block) = block {
            self.data.give_back(block);
        }
    }

    /// The state of the link.
    #[inline]
    pub(crate) fn link(&self) -> DaemonLink {
        match self.link.load(Ordering::Acquire) {
            0 => DaemonLink::Up,
            1 => DaemonLink::Down,
            2 => DaemonLink::Overdue,
            3 => DaemonLink::Forgotten,
            _ => DaemonLink::Closed,
        }
    }

    /// Changes the state of the link. `Closed` is final; `Forgotten` can only become `Closed`.
    pub(crate) fn set_link(&self, link: DaemonLink) {
        let _ = self.link.fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| {
            let is_final = before == DaemonLink::Closed as u8
                || (before == DaemonLink::Forgotten as u8 && link != DaemonLink::Closed);
            (!is_final).then_some(link as u8)
        });
        // The state is stored first: a thread without a permit reads the reason from it.
        if matches!(link, DaemonLink::Forgotten | DaemonLink::Closed) {
            self.permit.revoke();
        }
    }

    /// Returns true in a child of the process that opened the pool. The connection and everything
    /// noted in its file belong to the parent: the child may neither use nor return them.
    pub(crate) fn is_inherited(&self) -> bool {
        self.permit.pool() == 0
            && !matches!(self.link(), DaemonLink::Forgotten | DaemonLink::Closed)
    }

    /// The error of an operation whose permit is not valid.
    #[cold]
    pub(crate) fn why_not(&self) -> DaemonError {
        match self.link() {
            DaemonLink::Forgotten => DaemonError::Forgotten,
            DaemonLink::Closed => DaemonError::Closed,
            DaemonLink::Up | DaemonLink::Down | DaemonLink::Overdue => DaemonError::Inherited,
        }
    }

    /// Returns an error if no daemon serves this client and none is expected soon.
    pub(crate) fn check_link(&self) -> Result<(), DaemonError> {
        if self.permit.pool() != self.id.get() {
            return Err(self.why_not());
        }
        match self.link() {
            DaemonLink::Up | DaemonLink::Down => Ok(()),
            DaemonLink::Overdue => Err(DaemonError::Unavailable),
            DaemonLink::Forgotten => Err(DaemonError::Forgotten),
            DaemonLink::Closed => Err(DaemonError::Closed),
        }
    }

    /// Waits until a daemon serves this client.
    #[inline]
    pub(crate) fn wait_for_daemon(&self, deadline: &Deadline<'_>) -> Result<(), DaemonError> {
        if self.link() == DaemonLink::Up { Ok(()) } else { self.wait_until_served(deadline) }
    }

    #[cold]
    fn wait_until_served(&self, deadline: &Deadline<'_>) -> Result<(), DaemonError> {
        while self.link() != DaemonLink::Up {
            self.check_link()?;
            if deadline.has_passed() {
                return Err(DaemonError::Unavailable);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Rings the daemon's doorbell if the daemon sleeps; returns whether it did. Call it after
    /// pushing a request.
    #[inline]
    pub(crate) fn ring_doorbell(&self) -> bool {
        let flag = || self.metadata.load(Superblock::SLEEPING_OFFSET & !7);
        let sleeps = SleepFlag::must_ring(|| flag().unwrap_or(1) & 1 == 1);
        if sleeps {
            let doorbell = self.doorbell.read().unwrap_or_else(PoisonError::into_inner);
            // A full eventfd counter wakes the daemon as well. The keeper notices a dead daemon.
            let _ = rustix::io::write(&*doorbell, &1_u64.to_le_bytes());
        }
        sleeps
    }

    /// Takes a thread slot for a thread to keep. Returns `None` if none is left.
    pub(crate) fn take_thread(&self) -> Result<Option<Calls>, DaemonError> {
        match self.check_link() {
            // A sibling may serve the thread.
            Err(DaemonError::Unavailable) if !self.siblings.is_empty() => {}
            checked => checked?,
        }
        Ok(self.slots.take(self))
    }

    /// Takes a thread slot for a short time. Waits for one until the operation's deadline.
    pub(crate) fn borrow_thread(&self) -> Result<Calls, DaemonError> {
        self.check_link()?;
        let calls = self.slots.borrow(self, &self.overdue());
        calls.ok_or(DaemonError::TooManyThreads(self.file.threads()))
    }

    /// Returns a thread slot with the call cells that belong to it.
    pub(crate) fn return_thread(&self, calls: Calls) {
        self.slots.give_back(calls, self);
    }

    /// Closes the connection: the daemon takes back all objects noted in the client file. Does
    /// nothing in a forked child.
    pub(crate) fn close(&self) {
        if self.is_inherited() {
            return;
        }
        self.set_link(DaemonLink::Closed);
        // The file states it too, so that a daemon that is down now finds it when it restarts.
        if let Ok(block) = self.file.superblock() {
            block.set_closed();
        }
        if let Some(control) = lock(&self.control).take() {
            control.shutdown();
        }
        self.close_siblings();
    }

    /// The timeout of one answer.
    pub(crate) const fn request_timeout(&self) -> Duration {
        self.options.request_timeout
    }

    /// The deadline of an operation that starts now, however often the daemon restarts: the daemon
    /// may be away for the reconnect timeout and then take the request timeout to answer.
    pub(crate) fn overdue(&self) -> Deadline<'static> {
        Deadline::after(self.options.reconnect_timeout + self.options.request_timeout)
    }
}

fn incarnation(metadata: &ReadOnlyMapping) -> Result<u64, OpenError> {
    let found = metadata.load(Superblock::INCARNATION_OFFSET);
    found.map_err(|error| OpenError::Protocol(error.to_string()))
}

/// The bytes of reads that the daemon lets be in flight: docs/design/in-flight.md.
fn read_part() -> u64 {
    let machine = HostFiles::here();
    machine.device_share(machine.card_node(None, None)) / 4
}

fn barrier_reaches_clients(metadata: &ReadOnlyMapping) -> Result<bool, OutsideMapping> {
    let word = metadata.load(Superblock::HEAVY_BARRIER_OFFSET & !7)?;
    let shift = (Superblock::HEAVY_BARRIER_OFFSET & 7) * 8;
    Ok((word >> shift) & 1 == 1)
}

fn file_len(file: &OwnedFd) -> Result<u64, OpenError> {
    let stat = rustix::fs::fstat(file).map_err(std::io::Error::from)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device() {
        // A CXL device (DAX): `fstat` reports no length for it.
        return Ok(device_bytes(file, &HostFiles::here()).unwrap_or(0));
    }
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

fn map_checked<M>(
    file: &OwnedFd,
    bytes: u64,
    map: impl FnOnce(BorrowedFd<'_>, u64) -> std::io::Result<M>,
) -> Result<M, OpenError> {
    let found = file_len(file)?;
    if found < bytes {
        return Err(OpenError::Protocol(format!("a file of {found} B instead of {bytes} B")));
    }
    Ok(map(file.as_fd(), bytes)?)
}

fn read_superblock(file: &OwnedFd, kind: FileKind) -> Result<Geometry, OpenError> {
    // `pread` is simpler than private mappings of the two files' first pages. A writable shared
    // mapping is impossible: the descriptor of the metadata is read-only.
    let mut bytes = [0; 4096];
    let count = rustix::io::pread(file, &mut bytes, 0).map_err(std::io::Error::from)?;
    if count < bytes.len() {
        return Err(OpenError::Protocol("a file without superblock".into()));
    }
    let geometry = Superblock::parse(&bytes, Path::new("the file passed by the rack daemon"))?;
    if geometry.kind != kind {
        return Err(OpenError::Protocol(format!("a {:?} file for a {kind:?} file", geometry.kind)));
    }
    Ok(geometry)
}
