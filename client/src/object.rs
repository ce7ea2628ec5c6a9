//! What is known of the object in which an address lies, and what a checked client looks at before
//! it uses an address.

use rackpool_shm::access::Intent;
use rackpool_shm::marks::Mark;
use rackpool_shm::metadata::PageUse;

use crate::thread::{Target, Thread};
use crate::transfer::Bytes;
use crate::translation::{Place, Translation};
use crate::{AccessError, FreeError, GlobalAddr, Pool};

/// What a checked client fills objects with before it frees them.
const POISON: u8 = 0xdb;

/// Where an object lies and how large it is: at least what was asked for, rounded up to a size that
/// the pool has.
///
/// ```
/// use rackpool_client::{AccessError, GlobalAddr, Object};
/// let object = Object::new(GlobalAddr::from_raw(0x20_0040), 64);
/// assert_eq!(object.at(16, 8)?, GlobalAddr::from_raw(0x20_0050));
/// assert!(matches!(object.at(60, 8), Err(AccessError::BeyondObject { available: 4, .. })));
/// # Ok::<(), AccessError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    addr: GlobalAddr,
    bytes: u64,
}

impl Object {
    /// `bytes` bytes from `addr` on, as the program knows it. [`Pool::object`] asks the pool.
    #[must_use]
    pub const fn new(addr: GlobalAddr, bytes: u64) -> Self {
        Self { addr, bytes }
    }

    /// Its first byte.
    #[must_use]
    pub const fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of `len` bytes in it, `offset` bytes from its begin.
    ///
    /// # Errors
    /// [`AccessError::BeyondObject`] unless all of them lie in the object.
    pub const fn at(&self, offset: u64, len: u64) -> Result<GlobalAddr, AccessError> {
        let available = self.bytes.saturating_sub(offset);
        let addr = GlobalAddr::from_raw(self.addr.raw().saturating_add(offset));
        if len > available {
            return Err(AccessError::BeyondObject { addr, len, available });
        }
        Ok(addr)
    }
}

impl Pool {
    /// The object in which `addr` lies. What is checked is the page, as in [`Pool::read`]; with
    /// [`ClientOptions::checked`](crate::ClientOptions::checked) the object as well.
    ///
    /// ```no_run
    /// # use rackpool_client::{ClientOptions, Pool, RackId};
    /// # let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// // 10 records of 48 B each.
    /// let records = pool.object(pool.alloc(480)?)?;
    /// pool.write(records.at(9 * 48, 48)?, &[0; 48])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AccessError`]: nothing is allocated there, a lost page, or a daemon that does not answer.
    pub fn object(&self, addr: GlobalAddr) -> Result<Object, AccessError> {
        self.with(|thread| {
            thread.check(addr, 1)?;
            thread.object(addr)
        })?
    }
}

impl Thread {
    /// Whether each access is checked first.
    pub(crate) fn is_checked(&self) -> bool {
        self.connection.options.checked
    }

    fn object(&mut self, addr: GlobalAddr) -> Result<Object, AccessError> {
        let target = self.target(addr, 1)?;
        let known = self.translate(&target, Intent::Read)?;
        self.object_at(&target, &known).ok_or(AccessError::NotAllocated(addr))
    }

    fn object_at(&self, target: &Target, known: &Translation) -> Option<Object> {
        let size = self.connection.page_size;
        match known.page_use(size) {
            PageUse::Unused => None,
            PageUse::Slab(class) => {
                let within = target.offset & (class.bytes() - 1);
                let addr = GlobalAddr::from_raw(target.addr.raw() - within);
                Some(Object::new(addr, class.bytes()))
            }
            PageUse::Run { index, pages } => {
                let within = u64::from(index) * size.bytes() + target.offset;
                let addr = target.addr.raw().checked_sub(within)?;
                Some(Object::new(GlobalAddr::from_raw(addr), u64::from(pages) * size.bytes()))
            }
        }
    }

    /// In a checked client: whether `len` bytes from `addr` on lie in one object, which has not
    /// been freed as far as this rack knows.
    #[inline]
    pub(crate) fn check(&mut self, addr: GlobalAddr, len: usize) -> Result<(), AccessError> {
        if self.is_checked() { self.check_object(addr, len) } else { Ok(()) }
    }

    #[cold]
    fn check_object(&mut self, addr: GlobalAddr, len: usize) -> Result<(), AccessError> {
        let target = self.target(addr, len)?;
        // What is remembered of the page may be of what it was used for before.
        if self.known(target.page).is_some_and(|known| !self.is_there(&known)) {
            self.forget(target.page);
        }
        let known = self.translate(&target, Intent::Read)?;
        let Some(object) = self.object_at(&target, &known) else {
            return Err(AccessError::NotAllocated(addr));
        };
        object.at(addr.raw() - object.addr.raw(), len as u64)?;
        if self.is_freed(&object, &known) { Err(AccessError::NotAllocated(addr)) } else { Ok(()) }
    }

    /// Whether no program has the object. `false` for an object in another rack, and for one whose
    /// page moves just now: this rack does not know.
    fn is_freed(&self, object: &Object, known: &Translation) -> bool {
        let (Place::Local { frame, word }, PageUse::Slab(class)) =
            (known.place, known.page_use(self.connection.page_size))
        else {
            return false;
        };
        let is_nobodys = self.check_allocated(object.addr, known, class).is_err()
            || self.with_mark(object.addr, (frame, word), class, Mark::is_with_program)
                == Some(false);
        // The bits were this page's if it is still there.
        is_nobodys && self.is_there(known)
    }

    /// In a checked client: overwrites an object of this rack that is about to be freed. If `addr`
    /// is not the start of an object nothing is written, and the free refuses it.
    pub(crate) fn poison(&mut self, addr: GlobalAddr) -> Result<(), FreeError> {
        /// Bytes that are written at once.
        const PIECE: usize = 64 << 10;

        if !self.is_checked() {
            return Ok(());
        }
        match self.check_object(addr, 1) {
            Err(AccessError::NotAllocated(addr)) => return Err(FreeError::NotAllocated(addr)),
            checked => checked?,
        }
        let object = self.object(addr)?;
        // Of another rack's object this rack does not know whether it is still the same.
        if object.addr != addr || !self.is_local(addr)? {
            return Ok(());
        }
        let mut offset = 0;
        while offset < object.bytes {
            let len = (object.bytes - offset).min(PIECE as u64);
            let piece = object.at(offset, len)?;
            #[expect(clippy::cast_possible_truncation, reason = "at most PIECE")]
            self.transfer(piece, Bytes::Write(&[POISON; PIECE][..len as usize]))?;
            offset += len;
        }
        Ok(())
    }
}
