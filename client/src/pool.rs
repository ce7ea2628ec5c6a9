use std::cell::RefCell;
use std::sync::Arc;

use rackpool_shm::access::Intent;
use rackpool_wire::control::{ControlRefusal, ControlReply, ControlRequest, RackStatus};

use crate::atomics::Atomic;
use crate::connection::{Connection, Link, lock};
use crate::thread::Thread;
use crate::transfer::Bytes;
use crate::{
    AccessError, AllocError, ClientOptions, DaemonError, FreeError, GlobalAddr, OpenError, RackId,
    RootError, keeper,
};

/// A pool of memory that spans racks, seen from one rack. Usable from many threads at once; every
/// call blocks until it is done.
///
/// Dropping the last reference closes it like [`Pool::close`]. Whatever was allocated stays: memory
/// belongs to the pool, not to the program that allocated it.
#[derive(Debug)]
pub struct Pool {
    id: u64,
    connection: Arc<Connection>,
}

/// One read of a batch: from where, into what.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The first byte's address.
    pub addr: GlobalAddr,
    /// Where the bytes go; its length says how many.
    pub into: &'a mut [u8],
}

/// One write of a batch: to where, from what.
#[derive(Debug)]
pub struct WriteRequest<'a> {
    /// The first byte's address.
    pub addr: GlobalAddr,
    /// The bytes.
    pub from: &'a [u8],
}

/// Accesses of a batch that are fetched ahead: about as many as a core has misses under way.
const AHEAD: usize = 16;

thread_local! {
    /// The pools this thread uses. Almost always one.
    static THREADS: RefCell<Vec<Thread>> = const { RefCell::new(Vec::new()) };
}

impl Pool {
    /// Opens the pool through the daemon of the rack this program runs in.
    ///
    /// ```no_run
    /// use rackpool_client::{ClientOptions, Pool, RackId};
    /// let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # Ok::<(), rackpool_client::OpenError>(())
    /// ```
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        let connection = Arc::new(Connection::open(options)?);
        keeper::start(&connection)?;
        Ok(Self { id: connection.id, connection })
    }

    /// The rack this pool is used from.
    #[must_use]
    pub fn rack(&self) -> RackId {
        self.connection.rack
    }

    /// The size of a page in bytes: the largest object that other sizes are carved from. Larger
    /// allocations take whole pages.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.connection.page_size.bytes()
    }

    /// The hot path: asks this thread's state, if it has one for this pool at hand.
    #[inline]
    fn hit(&self, work: impl FnOnce(&Thread) -> bool) -> bool {
        THREADS.with(|threads| match threads.try_borrow() {
            Ok(threads) => threads.first().is_some_and(|t| t.id == self.id && work(t)),
            Err(_) => false,
        })
    }

    #[inline]
    fn with<R>(&self, work: impl FnOnce(&mut Thread) -> R) -> Result<R, DaemonError> {
        THREADS.with_borrow_mut(|threads| match threads.first_mut() {
            Some(first) if first.id == self.id => Ok(work(first)),
            _ => {
                self.bring_to_front(threads)?;
                Ok(work(&mut threads[0]))
            }
        })
    }

    /// Finds or makes this thread's state for this pool.
    #[cold]
    fn bring_to_front(&self, threads: &mut Vec<Thread>) -> Result<(), DaemonError> {
        let index = match threads.iter().position(|thread| thread.id == self.id) {
            Some(index) => index,
            None => {
                threads.retain(|t| t.connection.check_link() != Err(DaemonError::Closed));
                threads.push(Thread::new(Arc::clone(&self.connection))?);
                threads.len() - 1
            }
        };
        threads.swap(0, index);
        Ok(())
    }

    /// Allocates at least `bytes` bytes and returns where. The contents are whatever was there.
    ///
    /// Objects up to a page are aligned to their size rounded up to a power of two (at least 16);
    /// larger ones to a page. The own rack is asked first, then the rack with most free space.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let addr = pool.alloc(4096)?;
    /// assert_eq!(addr.raw() % 4096, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn alloc(&self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        self.with(|thread| thread.alloc(bytes))?
    }

    /// Frees what [`Pool::alloc`] returned, in whatever program and rack.
    ///
    /// Freeing twice is found where that is possible without a message for each object: by this
    /// thread while it keeps the object for reuse, and by the object's home for all others. When
    /// frees travel together, a double one among them is logged instead of returned.
    pub fn free(&self, addr: GlobalAddr) -> Result<(), FreeError> {
        self.with(|thread| thread.free(addr)).map_err(AccessError::from)?
    }

    /// Fills `into` from `addr` on. It may cross pages within one object.
    ///
    /// 1, 2, 4 or 8 bytes at an aligned address are read in one piece.
    #[inline]
    pub fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), AccessError> {
        if self.hit(|thread| thread.read_hit(addr, into)) {
            return Ok(());
        }
        self.read_any(addr, into)
    }

    #[cold]
    fn read_any(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), AccessError> {
        self.with(|thread| thread.transfer(addr, Bytes::Read(into)))?
    }

    /// Stores `from` at `addr`. It may cross pages within one object.
    ///
    /// 1, 2, 4 or 8 bytes at an aligned address are written in one piece.
    #[inline]
    pub fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), AccessError> {
        if self.hit(|thread| thread.write_hit(addr, from)) {
            return Ok(());
        }
        self.write_any(addr, from)
    }

    #[cold]
    fn write_any(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), AccessError> {
        self.with(|thread| thread.transfer(addr, Bytes::Write(from)))?
    }

    /// Reads in the given order; reads of one other rack that follow each other take one round
    /// trip. After an error the buffers from the failed one on hold unspecified bytes.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId, ReadRequest};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (a, b) = (pool.alloc(16)?, pool.alloc(64)?);
    /// let (mut first, mut second) = ([0; 16], [0; 64]);
    /// pool.read_batch(&mut [
    ///     ReadRequest { addr: a, into: &mut first },
    ///     ReadRequest { addr: b, into: &mut second },
    /// ])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_batch(&self, reads: &mut [ReadRequest<'_>]) -> Result<(), AccessError> {
        self.with(|thread| {
            for read in reads.iter().take(AHEAD) {
                thread.prefetch(read.addr, Intent::Read);
            }
            for index in 0..reads.len() {
                if let Some(later) = reads.get(index + AHEAD) {
                    thread.prefetch(later.addr, Intent::Read);
                }
                let read = &mut reads[index];
                if !thread.read_hit(read.addr, read.into) {
                    let left = reads[index..].iter_mut();
                    return thread.transfer_batch(
                        left.map(|read| (read.addr, Bytes::Read(&mut *read.into))),
                    );
                }
            }
            Ok(())
        })?
    }

    /// [`Pool::read_batch`] for requests that come from elsewhere: addresses and what to fill.
    pub fn read_many<'a>(
        &self,
        reads: impl Iterator<Item = (GlobalAddr, &'a mut [u8])>,
    ) -> Result<(), AccessError> {
        let transfers = reads.map(|(addr, into)| (addr, Bytes::Read(into)));
        self.with(|thread| thread.transfer_batch(transfers))?
    }

    /// Whether `addr` lies in the rack this pool is used from, so that reading it costs a memory
    /// access and no round trip. True now; pages may move.
    pub fn is_local(&self, addr: GlobalAddr) -> Result<bool, AccessError> {
        self.with(|thread| thread.is_local(addr))?
    }

    /// Writes in the given order; writes to one other rack that follow each other take one round
    /// trip. After an error those before the failed one are done, those after it may be.
    pub fn write_batch(&self, writes: &[WriteRequest<'_>]) -> Result<(), AccessError> {
        self.with(|thread| {
            for write in writes.iter().take(AHEAD) {
                thread.prefetch(write.addr, Intent::Write);
            }
            for (index, write) in writes.iter().enumerate() {
                if let Some(later) = writes.get(index + AHEAD) {
                    thread.prefetch(later.addr, Intent::Write);
                }
                if !thread.write_hit(write.addr, write.from) {
                    let left = writes[index..].iter();
                    return thread
                        .transfer_batch(left.map(|write| (write.addr, Bytes::Write(write.from))));
                }
            }
            Ok(())
        })?
    }

    /// Replaces the 8 bytes (little endian) at `addr` by `new` if they are `expected`, and returns
    /// what they were. `addr` must be aligned to 8 bytes. Linearizable across racks.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let counter = pool.alloc(8)?;
    /// pool.write(counter, &0_u64.to_le_bytes())?;
    /// assert_eq!(pool.compare_and_swap(counter, 0, 5)?, 0);
    /// assert_eq!(pool.compare_and_swap(counter, 0, 6)?, 5, "refused");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        self.with(|thread| thread.atomic(addr, Atomic::CompareAndSwap { expected, new }))?
    }

    /// Adds `delta` (wrapping) to the 8 bytes (little endian) at `addr` and returns what they were.
    /// `addr` must be aligned to 8 bytes. Linearizable across racks.
    pub fn fetch_and_add(&self, addr: GlobalAddr, delta: u64) -> Result<u64, AccessError> {
        self.with(|thread| thread.atomic(addr, Atomic::FetchAndAdd { delta }))?
    }

    /// The address stored under `name` (1 to 255 bytes), which the whole pool shares.
    pub fn root(&self, name: &str) -> Result<Option<GlobalAddr>, RootError> {
        self.root_request(&ControlRequest::GetRoot { name: name.into() }).map(|(addr, _)| addr)
    }

    /// Stores `new` under `name` if `expected` is stored there, durably. Returns what stands there
    /// now and whether this call put it there.
    pub fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<(Option<GlobalAddr>, bool), RootError> {
        self.root_request(&ControlRequest::PutRoot { name: name.into(), expected, new })
    }

    fn root_request(
        &self,
        request: &ControlRequest,
    ) -> Result<(Option<GlobalAddr>, bool), RootError> {
        match self.ask(request)? {
            ControlReply::Root { addr, changed } => Ok((addr, changed)),
            ControlReply::Refused(ControlRefusal::Metadata(refusal)) => Err(refusal.into()),
            ControlReply::Refused(ControlRefusal::MetadataUnreachable) => {
                Err(DaemonError::MetadataUnreachable.into())
            }
            _ => Err(DaemonError::Protocol.into()),
        }
    }

    /// The figures of the own rack.
    pub fn rack_status(&self) -> Result<RackStatus, DaemonError> {
        match self.ask(&ControlRequest::RackStatus)? {
            ControlReply::RackStatus(status) => Ok(status),
            _ => Err(DaemonError::Protocol),
        }
    }

    fn ask(&self, request: &ControlRequest) -> Result<ControlReply, DaemonError> {
        self.connection.check_link()?;
        let mut control = lock(&self.connection.control);
        let stream = control.as_mut().ok_or(DaemonError::Closed)?;
        stream.ask(request).map_err(|error| {
            if error.is_end_of_stream() {
                self.connection.set_link(Link::Down);
            }
            DaemonError::Unavailable
        })
    }

    /// Closes the pool: what this program holds for reuse goes back to the daemon. Other threads
    /// that still use it get [`DaemonError::Closed`].
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The calling thread's slot is released while the link is still up.
        let ours = |thread: &Thread| thread.id == self.id;
        let _ = THREADS.try_with(|threads| {
            if let Ok(mut threads) = threads.try_borrow_mut() {
                threads.retain(|thread| !ours(thread));
            }
        });
        self.connection.close();
    }
}
