//! An input read as a scenario.

/// The rest of an input. Beyond its end everything reads as 0, so any bytes are a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The whole input.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns true if nothing is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// The next two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes.
    pub fn half(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `end` from the next byte.
    pub fn below(&mut self, end: u8) -> u8 {
        self.byte() % end.max(1)
    }

    /// A number whose magnitude is uniformly distributed: a byte with the number of bytes that
    /// follow.
    pub fn number(&mut self) -> u64 {
        let length = usize::from(self.below(9));
        let mut array = [0; 8];
        let taken = self.bytes(length);
        array[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(array)
    }

    /// The next `count` bytes, fewer at the end.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
