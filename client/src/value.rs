//! Typed reads and writes.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{AccessError, GlobalAddr, Pool};

impl Pool {
    /// Reads a value of a plain-data type: every bit pattern is a valid value, and the type has no
    /// padding. Numbers are in the byte order of this machine; the types of
    /// `zerocopy::little_endian` have a fixed order.
    ///
    /// A value of 1, 2, 4 or 8 bytes at an aligned address is read atomically.
    ///
    /// ```no_run
    /// use rackpool_client::zerocopy::{FromBytes, Immutable, IntoBytes};
    /// use rackpool_client::{ClientOptions, Pool, RackId};
    ///
    /// #[derive(Clone, Copy, Debug, PartialEq, FromBytes, Immutable, IntoBytes)]
    /// #[repr(C)]
    /// struct Point {
    ///     x: f64,
    ///     y: f64,
    /// }
    ///
    /// let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let addr = pool.alloc(size_of::<Point>() as u64)?;
    /// pool.write_value(addr, &Point { x: 1.0, y: -1.0 })?;
    /// assert_eq!(pool.read_value::<Point>(addr)?, Point { x: 1.0, y: -1.0 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Pool::read`].
    pub fn read_value<T: FromBytes + IntoBytes>(&self, addr: GlobalAddr) -> Result<T, AccessError> {
        let mut value = T::new_zeroed();
        self.read(addr, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Stores a value of a plain-data type; see [`Pool::read_value`].
    ///
    /// # Errors
    /// As [`Pool::write`].
    pub fn write_value<T: IntoBytes + Immutable + ?Sized>(
        &self,
        addr: GlobalAddr,
        value: &T,
    ) -> Result<(), AccessError> {
        self.write(addr, value.as_bytes())
    }
}
