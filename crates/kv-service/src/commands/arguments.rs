use crate::failure::{Failure, NOT_AN_INTEGER};
use crate::number::parse_integer;

/// Whether an argument is this word, in any case.
pub(super) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// The first 128 bytes of an argument, in lower case.
pub(super) fn lower(argument: &[u8]) -> String {
    String::from_utf8_lossy(&argument[..argument.len().min(128)]).to_ascii_lowercase()
}

/// An argument that must be an integer.
pub(super) fn integer(argument: &[u8]) -> Result<i64, Failure> {
    parse_integer(argument).ok_or(NOT_AN_INTEGER)
}

/// The range of `len` elements from `start` to `stop`, both included; negative ones count from the
/// end.
pub(super) fn slice(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let count = i64::try_from(len).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at.saturating_add(count) } else { at };
    let start = from_end(start).max(0);
    let stop = from_end(stop).min(count - 1);
    if start > stop || start >= count {
        return 0..0;
    }
    let index = |at: i64| usize::try_from(at).unwrap_or_default();
    index(start)..index(stop) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_from_both_ends() {
        for (start, stop, len, wanted) in [
            (0, -1, 5, 0..5),
            (-3, -2, 5, 2..4),
            (1, 100, 5, 1..5),
            (3, 1, 5, 0..0),
            (-100, 1, 5, 0..2),
            (5, 9, 5, 0..0),
            (0, -1, 0, 0..0),
            (0, -100, 5, 0..0),
            (i64::MIN, i64::MAX, 5, 0..5),
        ] {
            assert_eq!(slice(start, stop, len), wanted, "{start} {stop} {len}");
        }
    }
}
