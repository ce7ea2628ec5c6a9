use std::time::{SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What the bytes of a value mean. The table stores it with the value and gives it back; only
/// [`Kind::STRING`] has a meaning here: the operations that know of no kinds store and read that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kind(pub u8);

impl Kind {
    /// A value that is just its bytes.
    pub const STRING: Self = Self(0);
    /// The lock of a transaction: what an entry was, and what it may become.
    pub(crate) const LOCK: Self = Self(0xff);
    /// The record of a transaction: whether it committed.
    pub(crate) const RECORD: Self = Self(0xfe);

    /// Whether the table uses the kind itself.
    pub(crate) const fn is_reserved(self) -> bool {
        self.0 >= Self::RECORD.0
    }
}

/// What an entry is besides its key and its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// What the bytes of the value mean.
    pub kind: Kind,
    /// When the entry ends to be there, in milliseconds since 1970 (UTC); 0: never.
    pub expires_ms: u64,
}

impl Form {
    /// A string that stays.
    pub const PLAIN: Self = Self { kind: Kind::STRING, expires_ms: 0 };

    /// Whether its time is over.
    #[inline]
    #[must_use]
    pub fn is_over(self) -> bool {
        self.expires_ms != 0 && self.expires_ms <= now_ms()
    }
}

/// An entry's value, as a handle has read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its kind, and how long it is there.
    pub form: Form,
    /// Its bytes.
    pub value: &'a [u8],
}

/// Which of all the values that a key has had, one after the other, was read. Two are equal only if
/// the entry was not stored anew in between (but for a chance of 2^-32 if the same bytes were
/// stored, and of 2^-96 otherwise). The lock of a transaction that did not commit changes no
/// version.
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
}

/// What [`Handle::modify`](crate::Handle::modify) is to do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Leave it as it is.
    Keep,
    /// Store the new value in this form.
    Put(Form),
    /// Delete it.
    Delete,
}

/// Milliseconds since 1970 (UTC), as the clock of this machine says.
#[must_use]
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
