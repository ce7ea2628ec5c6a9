use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;

use rackpool_model::SizeClass;
use rackpool_ring::magazines;
use rackpool_shm::permit::Permit;
use rackpool_shm::window::{self, Taken};

use crate::connection::Connection;
use crate::thread::Thread;
use crate::transfer::Bytes;
use crate::{
    AccessError, AllocError, ClientOptions, DaemonError, FreeError, GlobalAddr, OpenError, RackId,
    keeper,
};

mod atomics;
mod batch;
mod questions;

pub use atomics::CompareAndSwap;
pub use batch::{ReadRequest, WriteRequest};

/// A pool of memory that spans racks, seen from one rack. Usable from many threads at once; every
/// call blocks until it is done.
///
/// Dropping the last reference closes it like [`Pool::close`]. Whatever was allocated stays: memory
/// belongs to the pool, not to the program that allocated it.
#[derive(Debug)]
pub struct Pool {
    id: NonZeroU64,
    /// The connection's; here, for each operation looks at it.
    permit: Permit,
    connection: Arc<Connection>,
}

thread_local! {
    /// The pools this thread uses. Almost always one.
    static THREADS: RefCell<Vec<Thread>> = const { RefCell::new(Vec::new()) };
    /// What this thread has borrowed of pools of which it has no slot of its own, and can't give
    /// back yet, for it has reservations.
    static BORROWED: RefCell<Vec<Thread>> = const { RefCell::new(Vec::new()) };
}

impl Pool {
    /// Opens the pool through the daemon of the rack this program runs in.
    ///
    /// ```no_run
    /// use rackpool_client::{ClientOptions, Pool, RackId};
    /// let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// # Ok::<(), rackpool_client::OpenError>(())
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]: no daemon there, one of another release or user, options out of their range, or
    /// no room for another client.
    pub fn open(options: ClientOptions) -> Result<Self, OpenError> {
        let connection = Arc::new(Connection::open(options)?);
        keeper::start(&connection)?;
        Ok(Self { id: connection.id, permit: connection.permit.clone(), connection })
    }

    /// The rack this pool is used from.
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

    /// The size of a page in bytes: the largest object that other sizes are carved from. Larger
    /// allocations take whole pages.
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

    /// The connection's, which its threads carry.
    pub(crate) const fn id(&self) -> NonZeroU64 {
        self.id
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

    /// Finds or makes this thread's state for this pool; `false`: all slots are other threads'.
    #[cold]
    fn bring_to_front(&self, threads: &mut Vec<Thread>) -> Result<bool, DaemonError> {
        let index = match threads.iter().position(|thread| thread.id == self.id) {
            Some(index) => index,
            // Its reservations belong to the slot that it has borrowed.
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

    /// Borrows a slot for the operation, or for as long as there are reservations in it.
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
            if thread.reservations.has_any() {
                all.push(thread);
            }
            Ok(result)
        })
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
    ///
    /// # Errors
    /// [`AllocError`]: 0 bytes, more than an object can have, no room in any rack that can be reached,
    /// or a daemon that does not answer.
    #[inline]
    pub fn alloc(&self, bytes: u64) -> Result<GlobalAddr, AllocError> {
        let prepare = |object| window::hand_out(&self.permit, GlobalAddr::from_raw(object));
        match magazines::take(&self.permit, SizeClass::index_for(bytes), prepare) {
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
    /// Freeing an object of this rack twice is an error, whichever thread, program or rack freed it
    /// first, as long as it was not handed out again and its page has not moved in between. Frees
    /// of small objects of other racks travel together: a double one among them is logged instead
    /// of returned.
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
    /// [`FreeError`]: the address is not the start of an object, or of one that is free, or its home
    /// can't be asked. The object stays as it was.
    #[inline]
    pub fn free(&self, addr: GlobalAddr) -> Result<(), FreeError> {
        let note = |class: SizeClass| {
            magazines::keep(&self.permit, usize::from(class.index()), addr.raw())
        };
        match window::take_back(&self.permit, addr, self.connection.holder, note) {
            Taken::Noted => Ok(()),
            Taken::Twice(class) => self.refuse_twice(addr, class),
            Taken::Unknown => self.free_any(addr),
        }
    }

    /// Somebody else took the object back before: this thread's note of it goes.
    #[cold]
    fn refuse_twice(&self, addr: GlobalAddr, class: SizeClass) -> Result<(), FreeError> {
        magazines::withdraw(&self.permit, usize::from(class.index()), addr.raw());
        Err(FreeError::NotAllocated(addr))
    }

    #[cold]
    fn free_any(&self, addr: GlobalAddr) -> Result<(), FreeError> {
        self.with(|thread| {
            thread.poison(addr)?;
            thread.free(addr)
        })
        .map_err(AccessError::from)?
    }

    /// Fills `into` from `addr` on. It may cross pages within one object.
    ///
    /// 1, 2, 4 or 8 bytes at an aligned address are read in one piece.
    ///
    /// What is checked is the page: a freed object is an error once its page is free. As long as
    /// other objects lie there, its bytes, which are anybody's, are read without one.
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
    /// [`AccessError`]: no byte asked for, an address where nothing is allocated, more bytes than lie
    /// there, a lost page, or a daemon that does not answer. What `into` holds then is unspecified.
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
        self.with(|thread| thread.transfer_checked(addr, Bytes::Read(into)))?
    }

    /// Stores `from` at `addr`. It may cross pages within one object.
    ///
    /// 1, 2, 4 or 8 bytes at an aligned address are written in one piece.
    ///
    /// What is checked is the page, as in [`Pool::read`]: a write to a freed object whose page
    /// holds others changes bytes that may be somebody else's by now.
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
    /// As [`Pool::read`]. What is refused for its address or length changes nothing; after other
    /// errors any part of the bytes may be written, or may yet be.
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
        self.with(|thread| thread.transfer_checked(addr, Bytes::Write(from)))?
    }

    /// Whether `addr` lies in the rack this pool is used from, so that reading it costs a memory
    /// access and no round trip. Pages may move: this is what the calling thread knows, which is
    /// true after each of its accesses to the page.
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
    /// [`AccessError`]: an address where nothing is allocated, a lost page, or a daemon that does not
    /// answer.
    pub fn is_local(&self, addr: GlobalAddr) -> Result<bool, AccessError> {
        self.with(|thread| thread.is_local(addr))?
    }

    /// Closes the pool: what this program holds for reuse goes back to the daemon. Other threads
    /// that still use it get [`DaemonError::Closed`].
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
