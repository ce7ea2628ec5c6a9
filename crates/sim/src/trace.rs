//! A hash of all events, to compare two runs.

use std::hash::Hasher;

use crate::rng::mix;

/// Hashes a word at a time. The hashers of the standard library are slower and may change between
/// releases.
#[derive(Debug, Default)]
pub(crate) struct Trace(u64);

impl Hasher for Trace {
    fn finish(&self) -> u64 {
        mix(self.0)
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    /// The discriminant of an enum.
    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}
