//! The hash that scatters record numbers.

/// FNV-1a (64 bits) over a number's 8 bytes, lowest first, read as a signed number without its
/// sign.
///
/// YCSB's `Utils.fnvhash64`, which takes `Math.abs` of a Java `long`.
pub(crate) fn fnv_hash64(number: u64) -> u64 {
    const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 1_099_511_628_211;
    number
        .to_le_bytes()
        .iter()
        .fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME))
        .cast_signed()
        .unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_definition() {
        for (number, hash) in [
            (0, 6_284_781_860_667_377_211),
            (1, 8_517_097_267_634_966_620),
            (3, 4_052_466_453_699_787_802),
            (999, 2_071_219_101_098_386_137),
            (99_999, 7_592_201_923_306_675_823),
            (123_456_789, 2_350_796_791_908_741_607),
            ((1 << 40) + 7, 6_089_181_255_519_459_853),
        ] {
            assert_eq!(fnv_hash64(number), hash, "of {number}");
        }
    }
}
