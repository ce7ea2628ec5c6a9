use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;

use rackpool_model::SizeClass;
use rackpool_ring::magazines::{self, Keep};
use rackpool_shm::access::AccessIntent;
use rackpool_shm::permit::Permit;
use rackpool_shm::window::{self, TakeBackOutcome};

use crate::connection::Connection;
use crate::thread::Thread;
use crate::transfer::Bytes;
use crate::{
    AccessError, AllocError, ClientOptions, DaemonError, FreeError, GlobalAddr, OpenError, RackId,
    keeper,
};

mod atomics;
mod batch;
mod locks;
mod questions;

pub use atomics::CompareAndSwap;
pub use batch::{ReadRequest, WriteRequest};
pub use locks::{ReadGuard, WriteGuard};

/// A pool of memory that spans racks, used from one rack. All methods can be called from many
/// threads at once; each call blocks until the operation is complete.
///
/// Dropping the last reference closes the pool like [`Pool::close`]. Allocated objects stay: memory
/// belongs to the pool, not to the program that allocated it.
#[derive(Debug)]
pub struct Pool {
    id: NonZeroU64,
    /// The connection's permit, copied here because every operation checks it.
    permit: Permit,
    connection: Arc<Connection>,
}

thread_local! {
    /// The calling thread's states, one for each pool it uses; the last used one is first.
    static THREADS: RefCell<Vec<Thread>> = const { RefCell::new(Vec::new()) };
    /// States with a borrowed thread slot, for pools of which this thread has no slot of its own. A
    /// state stays here while it has reservations.
    static BORROWED: RefCell<Vec<Thread>> = const { RefCell::new(Vec::new()) };
}

impl Pool {
    /// Opens the pool through the daemon of the rack in which this program runs.
    ///
    /// ```no_run
    /// use rackpool_client::{ClientOptions, Pool, RackId};
    /// let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # Ok::<(), rackpool_client::OpenError>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]: no daemon listens on the socket, the daemon is of another release or user, an
    /// option is out of range, or the rack has no room for another client.
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        let connection = Arc::new(Connection::open(options)?);
        keeper::start(&connection)?;
        Ok(Self { id: connection.id, permit: connection.permit.clone(), connection })
    }

    /// The rack through which this pool is used.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// println!("used from {}", pool.rack());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn rack(&self) -> RackId {
        self.connection.rack
    }

    /// The size of a page in bytes. Larger allocations take whole pages; smaller ones share a page
    /// with objects of their size class.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let addr = pool.alloc(pool.page_bytes() + 1)?; // two pages
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.connection.page_size.bytes()
    }

    /// The id of the connection. The states of its threads carry the same id.
    pub(crate) const fn id(&self) -> NonZeroU64 {
        self.id
    }

    pub(crate) const fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Thread) -> R) -> Result<R, DaemonError> {
        if self.permit.pool() != self.id.get() {
            return Err(self.connection.why_not());
        }
        THREADS.with_borrow_mut(|threads| {
            let is_first = threads.first().is_some_and(|first| first.id == self.id);
            if !is_first && !self.bring_to_front(threads)? {
                return self.with_borrowed(work);
            }
            Ok(work(&mut threads[0]))
        })
    }

    /// Puts this thread's state for this pool first and creates it if needed. Returns false if the
    /// thread has no slot of its own and all such slots are in use.
    #[cold]
    fn bring_to_front(&self, threads: &mut Vec<Thread>) -> Result<bool, DaemonError> {
        let index = match threads.iter().position(|thread| thread.id == self.id) {
            Some(index) => index,
            // The thread's reservations are in the slot that it has borrowed, so it must keep using
            // that slot.
            None if BORROWED.with_borrow(|all| all.iter().any(|one| one.id == self.id)) => {
                return Ok(false);
            }
            None => {
                threads.retain(|t| t.connection.check_link() != Err(DaemonError::Closed));
                let Some(thread) = Thread::new(&self.connection)? else { return Ok(false) };
                threads.push(thread);
                threads.len() - 1
            }
        };
        threads.swap(0, index);
        threads[0].bring_to_front();
        Ok(true)
    }

    /// Runs `work` with a borrowed slot. The slot is returned afterwards unless it has
    /// reservations or locks.
    #[cold]
    fn with_borrowed<R>(&self, work: impl FnOnce(&mut Thread) -> R) -> Result<R, DaemonError> {
        BORROWED.with_borrow_mut(|all| {
            let kept = all.iter().position(|one| one.id == self.id);
            let mut thread = match kept {
                Some(index) => all.swap_remove(index),
                None => {
                    all.retain(|t| t.connection.check_link() != Err(DaemonError::Closed));
                    Thread::borrowing(&self.connection)?
                }
            };
            let result = work(&mut thread);
            if thread.reservations.has_any() || thread.claims.has_any() {
                all.push(thread);
            }
            Ok(result)
        })
    }

    /// Allocates at least `bytes` bytes and returns their address. The contents are unspecified.
    ///
    /// An object of up to a page is aligned to its size rounded up to a power of two (at least 16);
    /// a larger one is aligned to a page. The own rack is asked first, then the rack with the most
    /// free memory.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let addr = pool.alloc(4096)?;
    /// assert_eq!(addr.raw() % 4096, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError`]: `bytes` is 0 or exceeds the largest rack, no reachable rack has room, or a
    /// daemon does not answer.
    #[inline]
    pub fn alloc(&self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        match magazines::take(&self.permit, SizeClass::index_for(bytes)) {
            Some(object) => Ok(GlobalAddr::from_raw(object)),
            None => self.alloc_any(bytes),
        }
    }

    #[cold]
    fn alloc_any(&self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        self.with(|thread| thread.alloc(bytes))?
    }

    /// Frees an object that [`Pool::alloc`] returned to any program in any rack.
    ///
    /// A second free of an object of this rack fails, whichever thread, program or rack freed it
    /// first, unless the object was allocated again or its page moved in between. Frees of small
    /// objects of other racks are sent in batches: a double free among them is logged, not
    /// returned.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let addr = pool.alloc(64)?;
    /// pool.free(addr)?;
    /// assert!(pool.free(addr).is_err(), "it is free already");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`FreeError`]: the address is not the start of an object, the object is free, or its home
    /// does not answer. After the last of these the object may be freed later; else it stays as it
    /// was.
    #[inline]
    pub fn free(&self, addr: GlobalAddr) -> Result<(), FreeError> {
        let note = Keep(&self.permit);
        match window::take_back(&self.permit, addr, self.connection.holder, note) {
            TakeBackOutcome::Noted => Ok(()),
            TakeBackOutcome::Twice(class) => self.refuse_twice(addr, class),
            TakeBackOutcome::Unknown => self.free_any(addr),
        }
    }

    /// Another party took the object's mark first: removes this thread's note of the object.
    #[cold]
    fn refuse_twice(&self, addr: GlobalAddr, class: SizeClass) -> Result<(), FreeError> {
        magazines::withdraw(&self.permit, usize::from(class.index()), addr.raw());
        Err(FreeError::NotAllocated(addr))
    }

    #[cold]
    fn free_any(&self, addr: GlobalAddr) -> Result<(), FreeError> {
        self.with(|thread| {
            let at = thread.part_of(addr);
            let thread = thread.at(at);
            thread.poison(addr)?;
            thread.free(addr)
        })
        .map_err(AccessError::from)?
    }

    /// Reads `into.len()` bytes from `addr`. The range may cross pages within one object.
    ///
    /// A read of 1, 2, 4 or 8 bytes at an aligned address is atomic.
    ///
    /// Only the page is checked. A read of a freed object fails once its page is free; while the
    /// page holds other objects, the read succeeds and returns unspecified bytes.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let addr = pool.alloc(64)?;
    /// let mut bytes = [0; 8];
    /// pool.read(addr, &mut bytes)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AccessError`]: `into` is empty, nothing is allocated at the address, the range goes past
    /// the allocation, the page is lost, or a daemon does not answer. `into` then holds unspecified
    /// bytes.
    #[inline]
    pub fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), AccessError> {
        if window::read(&self.permit, addr, into) {
            return Ok(());
        }
        self.read_any(addr, into)
    }

    #[cold]
    fn read_any(&self, addr: GlobalAddr, into: &mut [u8]) -> Result<(), AccessError> {
        if window::read_slow_path(&self.permit, addr, into) {
            return Ok(());
        }
        self.with(|thread| {
            let at = thread.failover_for(addr, into.len(), AccessIntent::Read);
            thread.at(at).transfer_checked(addr, Bytes::Read(into))
        })?
    }

    /// Writes `from` to `addr`. The range may cross pages within one object.
    ///
    /// A write of 1, 2, 4 or 8 bytes at an aligned address is atomic.
    ///
    /// Only the page is checked, as in [`Pool::read`]: a write to a freed object whose page holds
    /// other objects may overwrite another owner's bytes.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let addr = pool.alloc(64)?;
    /// pool.write(addr, &7_u64.to_le_bytes())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::read`]. A write that is refused for its address or length changes nothing. After
    /// any other error, any part of the bytes may have been written or may be written later.
    #[inline]
    pub fn write(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), AccessError> {
        if window::write(&self.permit, addr, from) {
            return Ok(());
        }
        self.write_any(addr, from)
    }

    #[cold]
    fn write_any(&self, addr: GlobalAddr, from: &[u8]) -> Result<(), AccessError> {
        if window::write_slow_path(&self.permit, addr, from) {
            return Ok(());
        }
        self.with(|thread| {
            let at = thread.failover_for(addr, from.len(), AccessIntent::Write);
            thread.at(at).transfer_checked(addr, Bytes::Write(from))
        })?
    }

    /// Returns true if `addr` lies in the rack from which this pool is used; reading it then costs
    /// a memory access and no round trip. The answer is what the calling thread knows: after each
    /// access of the thread to the page it is correct, and a page that moves later makes it stale.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # let addr = pool.alloc(64)?;
    /// let costs = if pool.is_local(addr)? { "an access" } else { "a round trip" };
    /// println!("reading {addr} costs {costs}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AccessError`]: nothing is allocated at the address, the page is lost, or a daemon does not
    /// answer.
    pub fn is_local(&self, addr: GlobalAddr) -> Result<bool, AccessError> {
        self.with(|thread| {
            let at = thread.failover_for(addr, 1, AccessIntent::Read);
            thread.at(at).is_local(addr)
        })?
    }

    /// Returns true if `addr` lies in the memory of the daemon through which this pool is used
    /// ([`Self::rack`]). In a rack with one daemon that is [`Self::is_local`]; fixed memory can be
    /// pinned and read in place here.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let object = pool.alloc_fixed(64)?;
    /// assert!(pool.is_in_own_part(object)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::is_local`].
    pub fn is_in_own_part(&self, addr: GlobalAddr) -> Result<bool, AccessError> {
        self.with(|thread| thread.is_in_own_part(addr))?
    }

    /// Closes the pool. The daemon takes back all free objects that this program holds for reuse.
    /// Operations of other threads that still use the pool fail with [`DaemonError::Closed`].
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let addr = pool.alloc(64)?;
    /// pool.close();
    /// // The object is still there, and its address good for whoever opens the pool.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
