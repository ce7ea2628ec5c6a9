//! The lengths that stand in a line of their own before each request and each argument.

/// The most digits of a length that [`short`] reads.
const SHORT: usize = 7;

/// A line that holds a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LengthLine {
    pub(super) length: usize,
    /// The offset of the next line.
    pub(super) next: usize,
}

/// Parses the length of up to 7 digits at `at`, which ends its line. `None` if the line is
/// incomplete or holds something else, like a number with a leading zero.
#[inline]
pub(super) fn short(bytes: &[u8], at: usize) -> Option<LengthLine> {
    let line = bytes.get(at..)?;
    let mut value = 0;
    for (index, byte) in line.iter().take(SHORT + 1).enumerate() {
        match byte {
            b'0'..=b'9' if value > 0 || index == 0 => value = value * 10 + usize::from(byte - b'0'),
            b'\r' if index > 0 && line.len() > index + 1 => {
                return Some(LengthLine { length: value, next: at + index + 2 });
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_with_short_numbers_are_lengths() {
        for (line, value) in [("0", 0), ("7", 7), ("10", 10), ("1234567", 1_234_567)] {
            let bytes = format!("${line}\r\n");
            assert_eq!(
                short(bytes.as_bytes(), 1),
                Some(LengthLine { length: value, next: bytes.len() })
            );
            for end in 0..bytes.len() - 1 {
                assert_eq!(short(&bytes.as_bytes()[..end + 1], 1), None, "{line}: {end}");
            }
        }
        for other in ["\r\n", "-1\r\n", "01\r\n", "00\r\n", "1x\r\n", "12345678\r\n"] {
            assert_eq!(short(other.as_bytes(), 0), None, "{other:?}");
        }
        assert_eq!(short(b"1", 5), None);
    }
}
