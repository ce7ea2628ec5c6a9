//! The value of an entry that names a large string.

use std::fmt;

use rackpool_kv::{Entry, ValueKind};

/// The kind of an entry that names a large string.
pub const LARGE_STRING: ValueKind = ValueKind(7);

/// The id of a large string: 128 random bits, used once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StringId([u8; Self::BYTES]);

impl StringId {
    /// The length of an id in bytes.
    pub const BYTES: usize = 16;

    /// A new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The id with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes of the id.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0
    }
}

impl fmt::Debug for StringId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StringId({:032x})", u128::from_be_bytes(self.0))
    }
}

/// A large string as the entry of its key names it: id (16 B), length u64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeString {
    /// The id under which the node table has its bytes.
    pub id: StringId,
    /// Its length in bytes.
    pub len: u64,
}

impl LargeString {
    const BYTES: usize = StringId::BYTES + 8;

    /// The value of an entry that names the string.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut value = [0; Self::BYTES];
        value[..StringId::BYTES].copy_from_slice(&self.id.0);
        value[StringId::BYTES..].copy_from_slice(&self.len.to_le_bytes());
        value
    }

    /// The string that a value of this kind names; `None` if it names none.
    #[must_use]
    pub fn decode(kind: ValueKind, value: &[u8]) -> Option<Self> {
        if kind != LARGE_STRING {
            return None;
        }
        let (id, len) = value.split_first_chunk()?;
        let len = u64::from_le_bytes(len.try_into().ok()?);
        Some(Self { id: StringId(*id), len })
    }

    /// The string that an entry names; `None` if it names none.
    #[must_use]
    pub fn of(entry: Entry<'_>) -> Option<Self> {
        Self::decode(entry.form.kind, entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_as_it_went() {
        let large = LargeString { id: StringId::random(), len: 512 << 20 };
        let value = large.encode();
        assert_eq!(LargeString::decode(LARGE_STRING, &value), Some(large));
        assert_eq!(LargeString::decode(ValueKind::STRING, &value), None);
        assert_eq!(LargeString::decode(LARGE_STRING, &value[1..]), None);
        assert_eq!(LargeString::decode(LARGE_STRING, &[&value[..], b"x"].concat()), None);
    }
}
