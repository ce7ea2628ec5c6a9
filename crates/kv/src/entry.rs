use std::time::{SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The type of a value. The table stores the kind with the value and returns it. Only
/// [`ValueKind::STRING`] has a meaning to the table: the operations without a kind parameter store
/// and read strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ValueKind(pub u8);

impl ValueKind {
    /// A byte string.
    pub const STRING: Self = Self(0);
    /// The start of an object that owns extents: its value begins with the bytes that the object
    /// and its extents take together, u64. Only [`Handle::insert_extended`] stores it.
    ///
    /// [`Handle::insert_extended`]: crate::Handle::insert_extended
    pub const EXTENDED: Self = Self(0xfd);
    /// A lock of an optimistic transaction: the old and the new entry.
    pub(crate) const LOCK: Self = Self(0xff);
    /// The record of an optimistic transaction, which has its state.
    pub(crate) const RECORD: Self = Self(0xfe);

    /// Whether an operation may store an entry of this kind with a value of its caller.
    pub(crate) const fn is_free(self) -> bool {
        self.0 < Self::EXTENDED.0
    }

    /// Whether the kind is for the table's own entries.
    pub(crate) const fn is_reserved(self) -> bool {
        self.0 >= Self::RECORD.0
    }
}

/// The metadata of an entry: its kind and its expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// The type of the value.
    pub kind: ValueKind,
    /// When the entry expires, in milliseconds since 1970 (UTC); 0: never.
    pub expires_ms: u64,
}

impl Form {
    /// A string without expiry.
    pub const PLAIN: Self = Self { kind: ValueKind::STRING, expires_ms: 0 };

    /// Whether the entry has expired, by this host's clock.
    #[inline]
    #[must_use]
    pub fn is_over(self) -> bool {
        self.expires_ms != 0 && self.expires_ms <= now_ms()
    }
}

/// The entry that a handle has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its kind and expiry.
    pub form: Form,
    /// The bytes of the value.
    pub value: &'a [u8],
}

/// Identifies one of the successive values of a key. Two versions are equal only if the entry was
/// not stored again in between (but for a probability of 2^-32 if the same bytes were stored, and
/// of 2^-96 otherwise). A lock of a transaction that does not commit changes no version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub(crate) lot: u32,
    pub(crate) content: u64,
}

impl Version {
    /// The version of an entry whose object has this lot.
    pub(crate) fn of(lot: u32, form: Form, value: &[u8]) -> Self {
        let seed = u64::from(form.kind.0) << 56 ^ form.expires_ms;
        Self { lot, content: xxh3_64_with_seed(value, seed) }
    }

    /// The version as bytes, to be stored.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.lot.to_le_bytes());
        bytes[4..].copy_from_slice(&self.content.to_le_bytes());
        bytes
    }

    /// The version that has these bytes.
    ///
    /// ```
    /// use rackpool_kv::Version;
    /// assert_eq!(Version::from_bytes([7; 12]).to_bytes(), [7; 12]);
    /// ```
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 12]) -> Self {
        let [l0, l1, l2, l3, content @ ..] = bytes;
        Self { lot: u32::from_le_bytes([l0, l1, l2, l3]), content: u64::from_le_bytes(content) }
    }
}

/// The decision of the closure passed to [`Handle::modify`](crate::Handle::modify).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// Leave the entry unchanged.
    Keep,
    /// Store the new value with this form.
    Put(Form),
    /// Delete the entry.
    Delete,
}

/// Milliseconds since 1970 (UTC), by this host's clock.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
