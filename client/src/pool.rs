use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;

use rackpool_model::SizeClass;
use rackpool_ring::magazines;
use rackpool_shm::access::Intent;
use rackpool_shm::window::{self, Atomic};
use rackpool_wire::control::{ControlRefusal, ControlReply, ControlRequest, RackStatus};

use crate::atomic_batch::Wanted;
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
    id: NonZeroU64,
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

/// One swap of [`Pool::compare_and_swap_batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompareAndSwap {
    /// The 8 bytes; aligned.
    pub addr: GlobalAddr,
    /// What must be there (little endian).
    pub expected: u64,
    /// What shall be there.
    pub new: u64,
}

/// Accesses of a batch that are fetched ahead. More than a core has misses under way, so that there
/// is always a next one: measured, docs/benchmarking.md.
const AHEAD: usize = 32;

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

    /// The connection's, which its threads carry.
    pub(crate) const fn id(&self) -> NonZeroU64 {
        self.id
    }

    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Thread) -> R) -> Result<R, DaemonError> {
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
        threads[0].bring_to_front();
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
    #[inline]
    pub fn alloc(&self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        match magazines::take(self.id, SizeClass::index_for(bytes)) {
            Some(object) => Ok(GlobalAddr::from_raw(object)),
            None => self.alloc_any(bytes),
        }
    }

    #[cold]
    fn alloc_any(&self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        self.with(|thread| thread.alloc(bytes))?
    }

    /// Frees what [`Pool::alloc`] returned, in whatever program and rack.
    ///
    /// Freeing twice is found where that is possible without a message for each object: by this
    /// thread while it keeps the object for reuse, and by the object's home for all others. When
    /// frees travel together, a double one among them is logged instead of returned.
    #[inline]
    pub fn free(&self, addr: GlobalAddr) -> Result<(), FreeError> {
        if let Some(class) = window::in_use(self.id, addr)
            && magazines::keep(self.id, usize::from(class.index()), addr.raw())
        {
            return Ok(());
        }
        self.free_any(addr)
    }

    #[cold]
    fn free_any(&self, addr: GlobalAddr) -> Result<(), FreeError> {
        self.with(|thread| thread.free(addr)).map_err(AccessError::from)?
    }

    /// Fills `into` from `addr` on. It may cross pages within one object.
    ///
    /// 1, 2, 4 or 8 bytes at an aligned address are read in one piece.
    #[inline]
    pub fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), AccessError> {
        if window::read(self.id, addr, into) {
            return Ok(());
        }
        self.read_any(addr, into)
    }

    #[cold]
    fn read_any(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), AccessError> {
        if window::read_detour(self.id, addr, into) {
            return Ok(());
        }
        self.with(|thread| thread.transfer(addr, Bytes::Read(into)))?
    }

    /// Stores `from` at `addr`. It may cross pages within one object.
    ///
    /// 1, 2, 4 or 8 bytes at an aligned address are written in one piece.
    #[inline]
    pub fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), AccessError> {
        if window::write(self.id, addr, from) {
            return Ok(());
        }
        self.write_any(addr, from)
    }

    #[cold]
    fn write_any(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), AccessError> {
        if window::write_detour(self.id, addr, from) {
            return Ok(());
        }
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
                thread.window.prefetch(read.addr, Intent::Read);
            }
            for index in 0..reads.len() {
                if let Some(later) = reads.get(index + AHEAD) {
                    thread.window.prefetch(later.addr, Intent::Read);
                }
                let read = &mut reads[index];
                if !thread.window.read(read.addr, read.into) {
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

    /// A hint: what is at `addr` will be read soon. As far as it is in this rack it begins to come into
    /// the processor's cache; the rest of it nobody waits for.
    #[inline]
    pub fn prefetch(&self, addr: GlobalAddr, bytes: usize) {
        const LINE: usize = 64;
        // A hint that can't be followed is none.
        let _ = self.with(|thread| {
            let first = addr.raw() & !(LINE as u64 - 1);
            let end = addr.raw().saturating_add(bytes as u64);
            for line in (first..end).step_by(LINE) {
                thread.window.prefetch(GlobalAddr::from_raw(line), Intent::Read);
            }
        });
    }

    /// Whether `addr` lies in the rack this pool is used from, so that reading it costs a memory
    /// access and no round trip. Pages may move: this is what the calling thread knows, which is true
    /// after each of its accesses to the page.
    pub fn is_local(&self, addr: GlobalAddr) -> Result<bool, AccessError> {
        self.with(|thread| thread.is_local(addr))?
    }

    /// Writes in the given order; writes to one other rack that follow each other take one round
    /// trip. After an error those before the failed one are done, those after it may be.
    pub fn write_batch(&self, writes: &[WriteRequest<'_>]) -> Result<(), AccessError> {
        self.with(|thread| {
            for write in writes.iter().take(AHEAD) {
                thread.window.prefetch(write.addr, Intent::Write);
            }
            for (index, write) in writes.iter().enumerate() {
                if let Some(later) = writes.get(index + AHEAD) {
                    thread.window.prefetch(later.addr, Intent::Write);
                }
                if !thread.window.write(write.addr, write.from) {
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
    #[inline]
    pub fn compare_and_swap(
        &self,
        addr: GlobalAddr,
        expected: u64,
        new: u64,
    ) -> Result<u64, AccessError> {
        self.atomic(addr, Atomic::CompareAndSwap { expected, new })
    }

    /// Several compare-and-swaps, in any order; returns what was there before each, in the order of
    /// `requests`. Those of other racks share their round trips. After an error each of them may or
    /// may not have been done.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, CompareAndSwap, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let (a, b) = (pool.alloc(8)?, pool.alloc(8)?);
    /// let before = pool.compare_and_swap_batch(&[
    ///     CompareAndSwap { addr: a, expected: 0, new: 1 },
    ///     CompareAndSwap { addr: b, expected: 0, new: 1 },
    /// ])?;
    /// assert_eq!(before.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compare_and_swap_batch(
        &self,
        requests: &[CompareAndSwap],
    ) -> Result<Vec<u64>, AccessError> {
        let mut batch: Vec<Wanted> = requests
            .iter()
            .map(|request| {
                let CompareAndSwap { addr, expected, new } = *request;
                Wanted { addr, atomic: Atomic::CompareAndSwap { expected, new }, before: 0 }
            })
            .collect();
        self.with(|thread| thread.atomic_batch(&mut batch))??;
        Ok(batch.iter().map(|wanted| wanted.before).collect())
    }

    /// Adds `delta` (wrapping) to the 8 bytes (little endian) at `addr` and returns what they were.
    /// `addr` must be aligned to 8 bytes. Linearizable across racks.
    #[inline]
    pub fn fetch_and_add(&self, addr: GlobalAddr, delta: u64) -> Result<u64, AccessError> {
        self.atomic(addr, Atomic::FetchAndAdd { delta })
    }

    #[inline]
    fn atomic(&self, addr: GlobalAddr, atomic: Atomic) -> Result<u64, AccessError> {
        match window::change(self.id, addr, atomic) {
            Some(before) => Ok(before),
            None => self.atomic_any(addr, atomic),
        }
    }

    #[cold]
    fn atomic_any(&self, addr: GlobalAddr, atomic: Atomic) -> Result<u64, AccessError> {
        self.with(|thread| thread.atomic(addr, atomic))?
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
            ControlReply::RackStatus(status) => Ok(*status),
            _ => Err(DaemonError::Protocol),
        }
    }

    /// Sends the daemon a request that it answers at once, the way that all requests to it go, and
    /// waits for the answer: how long that takes is what a miss costs at least.
    pub fn ping(&self) -> Result<(), DaemonError> {
        self.with(Thread::ping)?
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
                if let Some(first) = threads.first() {
                    first.bring_to_front();
                }
            }
        });
        self.connection.close();
    }
}
