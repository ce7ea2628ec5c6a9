//! A client without a daemon, for tests: its files are created here, and a closure answers its
//! requests.

use std::fs::File;
use std::io::Seek;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use rackpool_model::{ClientId, MemoryId, PageSize, RackId};
use rackpool_ring::call::Answer;
use rackpool_ring::client_file::{ClientFile, RingKind, ThreadSlot};
use rackpool_shm::lock_words::LockWords;
use rackpool_shm::marks::Marks;
use rackpool_shm::metadata::MetadataLayout;
use rackpool_shm::superblock::{FileKind, Geometry, Superblock};
use rackpool_shm::{Mapping, file};
use rackpool_sync::futex;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::ClientOptions;
use crate::connection::Connection;
use crate::control::{ControlStream, Welcome};
use crate::thread::Thread;

pub(crate) const THREADS: u16 = 2;
const FRAMES: u32 = 4;
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// A connection, and the daemon's view of it.
pub(crate) struct Bench {
    pub(crate) connection: Arc<Connection>,
    pub(crate) metadata: Mapping,
    daemon: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    doorbell: File,
    _folder: tempfile::TempDir,
    _socket: UnixStream,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with_timeout(TIMEOUT)
    }

    pub(crate) fn with_timeout(timeout: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let geometry = |kind| Geometry {
            kind,
            rack: RackId(0),
            memory: MemoryId(7),
            page_size: PageSize::DEFAULT,
            frames: FRAMES,
            client: ClientId(1),
            threads: u32::from(THREADS),
        };
        let layout = MetadataLayout::new(PageSize::DEFAULT, FRAMES);
        let (metadata, mapped) = make(folder.path(), "metadata", layout.bytes());
        let block = mapped.view::<Superblock>(0).unwrap();
        block.format(&geometry(FileKind::Metadata));
        block.set_heavy_barrier(true);
        let frames = u64::from(FRAMES) * PageSize::DEFAULT.bytes();
        let (frames, _) = make(folder.path(), "frames", frames);
        let (marks, _) = make(folder.path(), "marks", Marks::bytes(PageSize::DEFAULT, FRAMES));
        let (locks, _) = make(folder.path(), "locks", LockWords::BYTES);
        let (client_file, client) = make(folder.path(), "client", ClientFile::bytes(THREADS));
        client.view::<Superblock>(0).unwrap().format(&geometry(FileKind::Client));
        let (doorbell, _) = make(folder.path(), "doorbell", 8);
        let rung = File::from(doorbell.try_clone().unwrap());
        let welcome = Welcome {
            client: ClientId(1),
            rack: RackId(0),
            memory: MemoryId(7),
            frames,
            metadata,
            marks,
            locks,
            client_file,
            doorbell,
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let control = ControlStream::over(ours, timeout).unwrap();
        let options = ClientOptions::with_socket(folder.path().join("none"))
            .request_timeout(timeout)
            .reconnect_timeout(timeout);
        let connection = Arc::new(Connection::over(options, control, welcome).unwrap());
        Self {
            connection,
            metadata: mapped,
            daemon: None,
            doorbell: rung,
            _folder: folder,
            _socket: theirs,
        }
    }

    /// A thread with a slot of its own.
    pub(crate) fn thread(&self) -> Thread {
        Thread::new(&self.connection).unwrap().unwrap()
    }

    pub(crate) fn slot(&self, thread: u16) -> &ThreadSlot {
        self.connection.file.thread(thread).unwrap()
    }

    /// How often the doorbell was rung. The doorbell is a file here; each ring appends to it.
    pub(crate) fn rings(&self) -> u64 {
        (&self.doorbell).stream_position().unwrap() / 8
    }

    /// Simulates a new daemon, to which the posted calls are lost.
    pub(crate) fn lose_calls(connection: &Connection) {
        connection.daemon_changed(connection.life() + 1);
    }

    /// Answers requests with `answer` from now on; `None` leaves a request unanswered.
    pub(crate) fn serve(
        &mut self,
        mut answer: impl FnMut(&ThreadSlot, RackRequest) -> Option<RackAnswer> + Send + 'static,
    ) {
        self.stop();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, connection) = (Arc::clone(&stop), Arc::clone(&self.connection));
        let served = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                serve_once(&connection, &mut answer);
                std::thread::yield_now();
            }
        });
        self.daemon = Some((stop, served));
    }

    pub(crate) fn stop(&mut self) {
        if let Some((stop, served)) = self.daemon.take() {
            stop.store(true, Ordering::Relaxed);
            served.join().unwrap();
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.connection.close();
        self.stop();
    }
}

fn make(folder: &Path, name: &str, bytes: u64) -> (OwnedFd, Mapping) {
    let file = file::create(&folder.join(name), bytes).unwrap();
    let mapped = Mapping::new(&file, bytes).unwrap();
    (file.into(), mapped)
}

fn serve_once(
    connection: &Connection,
    answer: &mut impl FnMut(&ThreadSlot, RackRequest) -> Option<RackAnswer>,
) {
    for route in [RingKind::Rack, RingKind::Remote] {
        let mut entries = Vec::new();
        connection.file.ring(route).pop(64, |entry| entries.push(entry));
        for entry in entries.iter().filter(|entry| entry.life == connection.life()) {
            let cell = &connection.file.cells(entry.thread).unwrap()[usize::from(entry.cell)];
            let request = RackRequest::from_words(entry.code, entry.arguments).unwrap();
            let slot = connection.file.thread(entry.thread).unwrap();
            let Some(answer) = answer(slot, request) else { continue };
            let (status, values) = answer.to_words();
            cell.finish(entry.call, &Answer { status, values });
            fence(Ordering::SeqCst);
            if cell.rouse() {
                futex::wake_all(cell.sleep_word());
            }
        }
    }
}
