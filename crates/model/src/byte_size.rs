use core::fmt;
use core::str::FromStr;

/// A number of bytes, parsed and printed with binary units.
///
/// ```
/// use rackpool_model::ByteSize;
/// assert_eq!("2M".parse(), Ok(ByteSize(2 << 20)));
/// assert_eq!(ByteSize(3 << 19).to_string(), "1.5 MiB");
/// # Ok::<(), rackpool_model::ByteSizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// The text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no size: write bytes, or a whole number with K, M, G or T (powers of 1024)")]
pub struct ByteSizeError;

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "" | "B" => 0,
            "K" | "k" | "KiB" => 10,
            "M" | "m" | "MiB" => 20,
            "G" | "g" | "GiB" => 30,
            "T" | "t" | "TiB" => 40,
            _ => return Err(ByteSizeError),
        };
        let number: u64 = digits.parse().map_err(|_| ByteSizeError)?;
        number.checked_mul(1 << shift).map(Self).ok_or(ByteSizeError)
    }
}

impl fmt::Display for ByteSize {
    /// Prints the number in the largest unit in which it is at least 1, with one decimal if it is
    /// not a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = (0..UNITS.len()).rev().find(|unit| self.0 >> (10 * unit) > 0).unwrap_or(0);
        let whole = self.0 >> (10 * unit);
        let below = if unit == 0 { 0 } else { (self.0 >> (10 * (unit - 1))) & 1023 };
        match below * 10 / 1024 {
            0 => write!(f, "{whole} {}", UNITS[unit]),
            tenth => write!(f, "{whole}.{tenth} {}", UNITS[unit]),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!("4096".parse(), Ok(ByteSize(4096)));
        assert_eq!("1GiB".parse(), Ok(ByteSize(1 << 30)));
        for bad in ["", "M", "1.5G", "12X", "-1", "99999999999999999999T", "20000000T"] {
            assert_eq!(bad.parse::<ByteSize>(), Err(ByteSizeError), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        let shown = |bytes| ByteSize(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1 << 30), "1 GiB");
        assert_eq!(shown((1 << 30) + (1 << 29)), "1.5 GiB");
    }
}
