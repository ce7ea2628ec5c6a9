//! Lists of numbers on a command line.

use std::str::FromStr;

/// Numbers to try one after the other: `1,2,4`, or `8..64` for 8, 16, 32 and 64.
///
/// ```
/// use rackpool_numa::NumberList;
/// assert_eq!("1,8..64".parse(), Ok(NumberList(vec![1, 8, 16, 32, 64])));
/// # Ok::<(), rackpool_numa::NumberListError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberList(pub Vec<u32>);

/// The text is not a list of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no list of numbers: write 1,2,4, or 8..4096 for each doubling of the first number up to the \
     last one, which is included; a range starts at 1 or more"
)]
pub struct NumberListError;

impl FromStr for NumberList {
    type Err = NumberListError;

    fn from_str(text: &str) -> Result<Self, NumberListError> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            match part.split_once("..") {
                None => numbers.push(number(part)?),
                Some((first, last)) => doublings(number(first)?, number(last)?, &mut numbers)?,
            }
        }
        Ok(Self(numbers))
    }
}

fn number(text: &str) -> Result<u32, NumberListError> {
    text.trim().parse().map_err(|_| NumberListError)
}

/// Appends `first` and its doublings up to `last`, and `last` itself.
fn doublings(first: u32, last: u32, into: &mut Vec<u32>) -> Result<(), NumberListError> {
    if first == 0 || first > last {
        return Err(NumberListError);
    }
    let double = |number: &u32| number.checked_mul(2).filter(|double| *double < last);
    into.extend(std::iter::successors(Some(first).filter(|first| *first < last), double));
    into.push(last);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<u32>, NumberListError> {
        text.parse().map(|NumberList(numbers)| numbers)
    }

    #[test]
    fn lists_and_ranges_are_read() {
        assert_eq!(parsed("8"), Ok(vec![8]));
        assert_eq!(parsed("0,4, 48"), Ok(vec![0, 4, 48]));
        assert_eq!(parsed("1..24"), Ok(vec![1, 2, 4, 8, 16, 24]));
        assert_eq!(parsed("64..64"), Ok(vec![64]));
        assert_eq!(parsed("2147483648..4294967295"), Ok(vec![1 << 31, u32::MAX]));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1,", "a", "-1", "0..8", "8..4", "1..", "1...4", "4294967296"] {
            assert_eq!(parsed(text), Err(NumberListError), "{text}");
        }
    }
}
