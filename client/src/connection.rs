//! What all threads of one client share: the mapped files and the state of the link to the
//! daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rackpool_model::{ClientId, MemoryId, PageSize, RackId};
use rackpool_ring::client_file::ClientFile;
use rackpool_shm::metadata::MetadataLayout;
use rackpool_shm::superblock::{FileKind, Geometry, Superblock};
use rackpool_shm::{Mapping, ReadOnlyMapping};
use rackpool_sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use rackpool_sync::barrier::{self, Barrier};
use rackpool_wire::control::Resume;

use crate::control::{ControlStream, Welcome};
use crate::{ClientOptions, DaemonError, OpenError};

/// What the link to the daemon is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Link {
    /// Requests are served.
    Up = 0,
    /// The daemon is gone; it may come back.
    Down = 1,
    /// It did not come back in time. It may still.
    Overdue = 2,
    /// It came back and does not know this client.
    Forgotten = 3,
    /// The program has closed the pool.
    Closed = 4,
}

/// Tells connections of this process apart, also when one takes another's place in memory.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

/// One client of a rack.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Unique in this process, never 0.
    pub(crate) id: u64,
    pub(crate) options: ClientOptions,
    pub(crate) rack: RackId,
    pub(crate) page_size: PageSize,
    pub(crate) layout: MetadataLayout,
    /// What stands between announcing an access and looking at the page word.
    pub(crate) barrier: Barrier,
    pub(crate) frames: Arc<Mapping>,
    pub(crate) metadata: Arc<ReadOnlyMapping>,
    pub(crate) file: ClientFile,
    pub(crate) control: Mutex<Option<ControlStream>>,
    client: ClientId,
    memory: MemoryId,
    doorbell: RwLock<OwnedFd>,
    free_threads: Mutex<Vec<u16>>,
    link: AtomicU8,
    life: AtomicU64,
}

/// Takes a lock whose holder can't leave its contents half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Opens the daemon's socket and maps what it passes.
    pub(crate) fn open(options: ClientOptions) -> Result<Self, OpenError> {
        let (control, welcome) = ControlStream::open(&options.socket, options.threads, None)?;
        let protocol = |error: rackpool_shm::OutOfBounds| OpenError::Protocol(error.to_string());
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
        let frames = map_checked(&welcome.frames, frames_bytes, |f, n| Mapping::new(f, n))?;
        let file = map_checked(&welcome.client_file, ClientFile::bytes(threads), |f, n| {
            Mapping::new(f, n)
        })?;
        let reaches = metadata.load(Superblock::HEAVY_BARRIER_OFFSET & !7).map_err(protocol)?;
        let shift = (Superblock::HEAVY_BARRIER_OFFSET & 7) * 8;
        let barrier = if (reaches >> shift) & 1 == 1 { barrier::register() } else { Barrier::Full };
        Ok(Self {
            id: CONNECTIONS.fetch_add(1, Ordering::Relaxed),
            barrier,
            rack: welcome.rack,
            page_size: geometry.page_size,
            layout,
            frames: Arc::new(frames),
            metadata: Arc::new(metadata),
            file: ClientFile::new(file, threads).map_err(protocol)?,
            client: welcome.client,
            memory: welcome.memory,
            doorbell: RwLock::new(welcome.doorbell),
            control: Mutex::new(Some(control)),
            free_threads: Mutex::new((0..threads).rev().collect()),
            link: AtomicU8::new(Link::Up as u8),
            life: AtomicU64::new(1),
            options,
        })
    }

    /// Connects to a restarted daemon as the client this was.
    pub(crate) fn reopen(&self) -> Result<(), OpenError> {
        let resume = Resume { client: self.client, memory: self.memory };
        let threads = self.options.threads;
        let (control, welcome) = ControlStream::open(&self.options.socket, threads, Some(resume))?;
        let Welcome { client, memory, doorbell, .. } = welcome;
        if client != self.client || memory != self.memory {
            return Err(OpenError::Protocol("another client's files".into()));
        }
        *self.doorbell.write().unwrap_or_else(PoisonError::into_inner) = doorbell;
        *lock(&self.control) = Some(control);
        self.life.fetch_add(1, Ordering::AcqRel);
        self.set_link(Link::Up);
        Ok(())
    }

    /// The state of the link.
    pub(crate) fn link(&self) -> Link {
        match self.link.load(Ordering::Acquire) {
            0 => Link::Up,
            1 => Link::Down,
            2 => Link::Overdue,
            3 => Link::Forgotten,
            _ => Link::Closed,
        }
    }

    /// Changes the state of the link; a closed one stays closed.
    pub(crate) fn set_link(&self, link: Link) {
        let _ = self.link.fetch_update(Ordering::AcqRel, Ordering::Acquire, |before| {
            (before != Link::Closed as u8).then_some(link as u8)
        });
    }

    /// Grows whenever the daemon has another life: requests posted before are lost.
    pub(crate) fn life(&self) -> u64 {
        self.life.load(Ordering::Acquire)
    }

    /// The error for a link that does not serve and is not expected to soon.
    pub(crate) fn check_link(&self) -> Result<(), DaemonError> {
        match self.link() {
            Link::Up | Link::Down => Ok(()),
            Link::Overdue => Err(DaemonError::Unavailable),
            Link::Forgotten => Err(DaemonError::Forgotten),
            Link::Closed => Err(DaemonError::Closed),
        }
    }

    /// Wakes the daemon if it sleeps. Called after a request has been pushed.
    pub(crate) fn ring_doorbell(&self) {
        // SYNC: pairs with the fence in `go_to_sleep`: either the daemon sees the request before
        // it sleeps, or it is seen asleep here.
        fence(Ordering::SeqCst);
        let asleep = self.metadata.load(Superblock::SLEEPING_OFFSET & !7).unwrap_or(1) & 1;
        if asleep == 1 {
            let doorbell = self.doorbell.read().unwrap_or_else(PoisonError::into_inner);
            // A full counter wakes as well; a dead daemon is noticed by the keeper.
            let _ = rustix::io::write(&*doorbell, &1_u64.to_le_bytes());
        }
    }

    /// Takes a thread slot.
    pub(crate) fn take_thread(&self) -> Result<u16, DaemonError> {
        self.check_link()?;
        lock(&self.free_threads).pop().ok_or(DaemonError::TooManyThreads(self.file.threads()))
    }

    /// Gives a thread slot back.
    pub(crate) fn return_thread(&self, thread: u16) {
        lock(&self.free_threads).push(thread);
    }

    /// Ends the connection: the daemon takes back what the client held.
    pub(crate) fn close(&self) {
        self.set_link(Link::Closed);
        if let Some(control) = lock(&self.control).take() {
            control.shutdown();
        }
    }

    /// How long an answer may take.
    pub(crate) const fn request_timeout(&self) -> Duration {
        self.options.request_timeout
    }
}

fn file_len(file: &OwnedFd) -> Result<u64, OpenError> {
    let stat = rustix::fs::fstat(file).map_err(std::io::Error::from)?;
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
    // Private copies of the two files' first pages would do; reading them is simpler than mapping
    // the metadata writable, which its descriptor does not allow.
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
