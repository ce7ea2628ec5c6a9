/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014): numbers that follow from a seed, the same on every computer. Not for secrets.
///
/// ```
/// use rackpool_sync::SplitMix64;
/// assert_eq!(SplitMix64::new(1234567).draw(), 6457827717110365317);
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws the next number. A sequence contains each number once before it repeats.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Self::mix(self.0)
    }

    /// Mixes the bits of a number; different numbers give different results.
    #[must_use]
    pub const fn mix(mut number: u64) -> u64 {
        number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }
}
