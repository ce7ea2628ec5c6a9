//! The object that contains an address, and the checks of a checked client.

use rackpool_model::FrameWord;
use rackpool_shm::access::AccessIntent;
use rackpool_shm::marks::Mark;
use rackpool_shm::metadata::PageUse;

use crate::thread::{Target, Thread};
use crate::transfer::Bytes;
use crate::translation::{Place, Translation};
use crate::{AccessError, FreeError, GlobalAddr, Pool};

/// Byte with which a checked client fills objects before it frees them.
const POISON: u8 = 0xdb;

/// Address and size of an object. The size is the requested one, rounded up to a size class or to
/// whole pages.
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
    /// Describes `bytes` bytes from `addr` on, without asking the pool. [`Pool::object`] looks the
    /// size up.
    #[must_use]
    pub const fn new(addr: GlobalAddr, bytes: u64) -> Self {
        Self { addr, bytes }
    }

    /// The address of the object's first byte.
    #[must_use]
    pub const fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// The object's size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of the `len` bytes that begin `offset` bytes into the object.
    ///
    /// # Errors
    /// [`AccessError::BeyondObject`] unless all `len` bytes lie in the object.
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
    /// Returns the object that contains `addr`. Like [`Pool::read`], it checks that the page is in
    /// use; with [`ClientOptions::checked`](crate::ClientOptions::checked) it also checks that the
    /// object is.
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
    /// [`AccessError`]: no object is allocated there, the page is lost, or the daemon does not
    /// answer.
    pub fn object(&self, addr: GlobalAddr) -> Result<Object, AccessError> {
        self.with(|thread| {
            thread.check(addr, 1)?;
            thread.object(addr)
        })?
    }
}

impl Thread {
    /// Returns true in a checked client.
    pub(crate) fn is_checked(&self) -> bool {
        self.connection.options.checked
    }

    fn object(&mut self, addr: GlobalAddr) -> Result<Object, AccessError> {
        let target = self.target(addr, 1)?;
        let known = self.translate(&target, AccessIntent::Read)?;
        self.object_at(&target, &known).ok_or(AccessError::NotAllocated(addr))
    }

    fn object_at(&self, target: &Target, known: &Translation) -> Option<Object> {
        let size = self.connection.page_size;
        match known.page_use(size) {
            PageUse::Unused => None,
            PageUse::Slab(class) | PageUse::Fixed(class) => {
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

    /// In a checked client, fails unless `len` bytes from `addr` on lie in one object that, as far
    /// as this rack knows, has not been freed. Does nothing in an unchecked client.
    #[inline]
    pub(crate) fn check(&mut self, addr: GlobalAddr, len: usize) -> Result<(), AccessError> {
        if self.is_checked() { self.check_object(addr, len) } else { Ok(()) }
    }

    #[cold]
    fn check_object(&mut self, addr: GlobalAddr, len: usize) -> Result<(), AccessError> {
        let target = self.target(addr, len)?;
        // The remembered use of the page is stale if the page word has changed since.
        if self.known(target.page).is_some_and(|known| !self.is_there(&known)) {
            self.forget(target.page);
        }
        let known = self.translate(&target, AccessIntent::Read)?;
        if let Place::Sibling { .. } = known.place
            && let Some(at) = self.part_of(addr)
        {
            return self.siblings[at].check_object(addr, len);
        }
        let Some(object) = self.object_at(&target, &known) else {
            return Err(AccessError::NotAllocated(addr));
        };
        object.at(addr.raw() - object.addr.raw(), len as u64)?;
        if self.is_freed(&object, &known) { Err(AccessError::NotAllocated(addr)) } else { Ok(()) }
    }

    /// Returns true if no program has the object. Returns false for an object in another rack and
    /// for one whose page is moving: this rack does not know its state.
    fn is_freed(&self, object: &Object, known: &Translation) -> bool {
        let usage = known.page_use(self.connection.page_size);
        let (Place::Local { frame, word }, Some(class)) = (known.place, usage.class()) else {
            return false;
        };
        // Programs that have pinned a retired object still read it.
        let is_nobodys = self.check_allocated(object.addr, known, class).is_err()
            || matches!(usage, PageUse::Slab(_))
                && self.with_mark(
                    object.addr,
                    FrameWord { frame, word },
                    class,
                    Mark::is_with_program,
                ) == Some(false);
        // Bit and mark were read without a guard. They belong to this page only if its word is
        // unchanged.
        is_nobodys && self.is_there(known)
    }

    /// In a checked client, overwrites an object of this rack that is about to be freed. If `addr`
    /// is not the start of an object, writes nothing; the caller's free then fails.
    pub(crate) fn poison(&mut self, addr: GlobalAddr) -> Result<(), FreeError> {
        /// Bytes per write.
        const PIECE: usize = 64 << 10;

        if !self.is_checked() {
            return Ok(());
        }
        match self.check_object(addr, 1) {
            Err(AccessError::NotAllocated(addr)) => return Err(FreeError::NotAllocated(addr)),
            checked => checked?,
        }
        let object = self.object(addr)?;
        let target = self.target(addr, 1)?;
        let known = self.translate(&target, AccessIntent::Read)?;
        // Programs that have pinned a fixed object still read it.
        if matches!(known.page_use(self.connection.page_size), PageUse::Fixed(_)) {
            return Ok(());
        }
        // For an object of another rack this rack cannot tell whether it has been freed and
        // allocated again.
        if object.addr != addr || !self.is_in_own_part(addr)? {
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
