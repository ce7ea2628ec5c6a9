//! Key names as YCSB builds them.

use super::generator::fnv_hash64;

/// A record's key: `user` and the record's number, or its FNV hash, in decimal digits.
///
/// YCSB's `buildKeyName`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyName {
    bytes: [u8; Self::MAX_BYTES],
    len: usize,
}

/// The form of keys (YCSB: `insertorder`, `zeropadding`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyStyle {
    /// Whether numbers are hashed, so that the order of keys is not that of inserts.
    pub hashed: bool,
    /// The least number of digits, padded with leading zeros; at most [`KeyStyle::MAX_DIGITS`].
    pub digits: usize,
}

impl KeyStyle {
    /// The most digits that a key may be padded to.
    pub const MAX_DIGITS: usize = 59;
}

impl Default for KeyStyle {
    /// YCSB's default: hashed, not padded.
    fn default() -> Self {
        Self { hashed: true, digits: 1 }
    }
}

impl KeyName {
    const PREFIX: &'static [u8] = b"user";
    const MAX_BYTES: usize = Self::PREFIX.len() + KeyStyle::MAX_DIGITS + 1;

    /// Returns the key of record `number` (counted from 0).
    pub fn new(number: u64, style: KeyStyle) -> Self {
        let mut digits = [b'0'; KeyStyle::MAX_DIGITS];
        let mut first = digits.len();
        let mut rest = if style.hashed { fnv_hash64(number) } else { number };
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let first = first.min(digits.len() - style.digits.min(KeyStyle::MAX_DIGITS));
        let digits = &digits[first..];
        let len = Self::PREFIX.len() + digits.len();
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..Self::PREFIX.len()].copy_from_slice(Self::PREFIX);
        bytes[Self::PREFIX.len()..len].copy_from_slice(digits);
        Self { bytes, len }
    }

    /// Parses a key that a store returned; `None` if it cannot be one.
    pub(super) fn from_bytes(key: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX_BYTES];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        key.starts_with(Self::PREFIX).then_some(Self { bytes, len: key.len() })
    }

    /// The bytes of the key in the store.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl std::fmt::Display for KeyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_ycsb() {
        for (number, key) in [
            (0, "user6284781860667377211"),
            (1, "user8517097267634966620"),
            (2, "user1820151046732198393"),
            (42, "user55488592825689361"),
            (100_000, "user2382277743992889674"),
        ] {
            assert_eq!(KeyName::new(number, KeyStyle::default()).as_bytes(), key.as_bytes());
            assert_eq!(KeyName::new(number, KeyStyle::default()).to_string(), key);
        }
    }

    #[test]
    fn ordered_keys_are_filled_up_as_wanted() {
        let key = |number, digits| KeyName::new(number, KeyStyle { hashed: false, digits });
        assert_eq!(key(42, 1).to_string(), "user42");
        assert_eq!(key(42, 0).to_string(), "user42");
        assert_eq!(key(42, 8).to_string(), "user00000042");
        assert_eq!(key(7, 500).to_string().len(), 4 + KeyStyle::MAX_DIGITS);
    }

    #[test]
    fn keys_come_back_from_bytes() {
        let key = KeyName::new(42, KeyStyle::default());
        assert_eq!(KeyName::from_bytes(key.as_bytes()), Some(key));
        assert_eq!(KeyName::from_bytes(b"other"), None);
        assert_eq!(KeyName::from_bytes(&[b'u'; 100]), None);
    }
}
