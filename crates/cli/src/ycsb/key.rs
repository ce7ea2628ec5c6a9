//! Key names as YCSB builds them.

use super::generator::fnv_hash64;

/// A record's key: `user` and the FNV hash of its number in decimal digits.
///
/// YCSB's `buildKeyName` with its defaults `insertorder=hashed` and `zeropadding=1` (which pads
/// nothing).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyName {
    bytes: [u8; Self::MAX_BYTES],
    len: usize,
}

impl KeyName {
    const PREFIX: &'static [u8] = b"user";
    const MAX_DIGITS: usize = 20;
    const MAX_BYTES: usize = Self::PREFIX.len() + Self::MAX_DIGITS;

    /// The key of record `number` (counted from 0).
    pub fn new(number: u64) -> Self {
        let mut digits = [0; Self::MAX_DIGITS];
        let mut first = digits.len();
        let mut rest = fnv_hash64(number);
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[first..];
        let len = Self::PREFIX.len() + digits.len();
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..Self::PREFIX.len()].copy_from_slice(Self::PREFIX);
        bytes[Self::PREFIX.len()..len].copy_from_slice(digits);
        Self { bytes, len }
    }

    /// The key as the store sees it.
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
            assert_eq!(KeyName::new(number).as_bytes(), key.as_bytes());
            assert_eq!(KeyName::new(number).to_string(), key);
        }
    }
}
