//! Numbers as Redis reads and writes them.

use std::fmt;

/// An integer, written as it would be printed: no spaces, no `+`, no leading zeros.
#[must_use]
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut number: i64 = 0;
    for digit in digits {
        let digit = i64::from(digit.checked_sub(b'0').filter(|digit| *digit <= 9)?);
        number = number.checked_mul(10)?;
        number = if negative { number.checked_sub(digit) } else { number.checked_add(digit) }?;
    }
    Some(number)
}

/// Appends a number in decimal digits.
#[inline]
pub(crate) fn push_integer(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        let [digit, ..] = (rest % 10).to_le_bytes();
        at -= 1;
        digits[at] = b'0' + digit;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// A floating-point number: what C's `strtod` takes whole, but no NaN.
#[must_use]
pub(crate) fn parse_float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    if text.is_empty() || text.starts_with(char::is_whitespace) {
        return None;
    }
    let (is_negative, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(unsigned) => (text.starts_with('-'), unsigned),
        None => (false, text),
    };
    if let Some(digits) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        let number = parse_hexadecimal(digits)?;
        return Some(if is_negative { -number } else { number });
    }
    let number: f64 = text.parse().ok()?;
    // What is too large for one is no number; infinity itself has a name.
    let named = text.trim_start_matches(['+', '-']).starts_with(['i', 'I']);
    (!number.is_nan() && (number.is_finite() || named)).then_some(number)
}

/// A whole number in hexadecimal digits, if it is one that `f64` has.
fn parse_hexadecimal(digits: &str) -> Option<f64> {
    /// All of them in the 53 bits that are exact.
    const MOST: usize = 13;
    if digits.is_empty() || digits.len() > MOST || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let number = u64::from_str_radix(digits, 16).ok()?;
    #[expect(clippy::cast_precision_loss, reason = "below 2^52")]
    Some(number as f64)
}

/// A number in the fewest digits that give it back, with an exponent if it is very large or very
/// small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decimal(pub(crate) f64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        if number.is_infinite() {
            return f.write_str(if number > 0.0 { "inf" } else { "-inf" });
        }
        let size = number.abs();
        if size != 0.0 && !(1e-5..1e17).contains(&size) {
            let text = format!("{number:e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            return write!(f, "{digits}e{sign}{exponent:0>2}");
        }
        write!(f, "{number}")
    }
}

/// A decimal number with 17 digits behind the point, exact where `f64` is not: 0.1 and 0.2 make 0.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed(i128);

impl Fixed {
    const DIGITS: u32 = 17;
    const ONE: i128 = 10_i128.pow(Self::DIGITS);
    /// Digits before the point: two such numbers together stay below 2^127 / `ONE`.
    const WHOLE: i64 = 20;

    /// A number that without an exponent has at most 20 digits before the point and 17 behind it.
    #[must_use]
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] => (false, digits),
            digits => (false, digits),
        };
        let (digits, exponent) = match digits.iter().position(|byte| matches!(byte, b'e' | b'E')) {
            Some(at) => (&digits[..at], std::str::from_utf8(&digits[at + 1..]).ok()?.parse().ok()?),
            None => (digits, 0_i16),
        };
        let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
        let (whole, fraction) = (&digits[..point], digits.get(point + 1..).unwrap_or_default());
        let (before, behind) =
            (i64::try_from(whole.len()).ok()?, i64::try_from(fraction.len()).ok()?);
        let (most, all) = (Self::WHOLE + i64::from(Self::DIGITS), before + behind);
        // How many zeros have to be appended to the digits.
        let missing = i64::from(Self::DIGITS) + i64::from(exponent) - behind;
        if all == 0 || all > most || before + i64::from(exponent) > Self::WHOLE {
            return None;
        }
        let mut number: i128 = 0;
        for byte in whole.iter().chain(fraction) {
            let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
            number = number * 10 + i128::from(digit);
        }
        number *= 10_i128.checked_pow(u32::try_from(missing).ok()?)?;
        Some(Self(if negative { -number } else { number }))
    }

    /// Both together.
    #[must_use]
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.0.abs() / Self::ONE, self.0.abs() % Self::ONE);
        let sign = if self.0 < 0 { "-" } else { "" };
        let digits = format!("{fraction:017}");
        match digits.trim_end_matches('0') {
            "" => write!(f, "{sign}{whole}"),
            digits => write!(f, "{sign}{whole}.{digits}"),
        }
    }
}

/// The sum of two numbers as Redis writes it; `Err` if it is none.
pub(crate) fn add_floats(a: &[u8], b: &[u8]) -> Option<Result<String, NotFinite>> {
    let (first, second) = (parse_float(a)?, parse_float(b)?);
    if let (Some(first), Some(second)) = (Fixed::parse(a), Fixed::parse(b)) {
        return Some(Ok(first.plus(second).to_string()));
    }
    let sum = first + second;
    Some(if sum.is_finite() { Ok(format!("{sum}")) } else { Err(NotFinite) })
}

/// A sum that is infinite, or not even that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotFinite;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_strictly() {
        for number in [0, 1, -1, 10, i64::MAX, i64::MIN, -907] {
            let text = number.to_string();
            assert_eq!(parse_integer(text.as_bytes()), Some(number));
            let mut out = Vec::new();
            push_integer(&mut out, number);
            assert_eq!(out, text.as_bytes());
        }
        for text in ["", "-", "-0", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "1a"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn floats_are_written_shortly() {
        for (number, text) in [
            (0.0, "0"),
            (3.0, "3"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (1e17, "1e+17"),
            (1e-7, "1e-07"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(Decimal(number).to_string(), text);
        }
    }

    #[test]
    fn whole_numbers_may_have_hexadecimal_digits() {
        for (text, number) in [("0x10", 16.0), ("-0XfF", -255.0), ("+0x0", 0.0)] {
            assert_eq!(parse_float(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["0x", "0xg", "--0x1", "0x-1", "0x+1", "0x10000000000000", "0x1.8"] {
            assert_eq!(parse_float(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn sums_are_those_of_decimal_digits() {
        let sum = |a: &str, b: &str| add_floats(a.as_bytes(), b.as_bytes());
        assert_eq!(sum("0.1", "0.2"), Some(Ok("0.3".into())));
        assert_eq!(sum("10.50", "-0.5"), Some(Ok("10".into())));
        assert_eq!(sum("5.0e3", "2.0e2"), Some(Ok("5200".into())));
        assert_eq!(sum("9223372036854775807", "3e0"), Some(Ok("9223372036854775810".into())));
        assert_eq!(sum("1e-07", "-25E-1"), Some(Ok("-2.4999999".into())));
        assert_eq!(sum("0.1234567890123456789e+3", "0"), Some(Ok("123.4567890123456789".into())));
        assert_eq!(sum("1e300", "1"), Some(Ok(format!("{}", 1e300))));
        assert_eq!(sum("1e-300", "1"), Some(Ok("1".into())));
        assert_eq!(sum("1e99999", "1"), None);
        assert_eq!(sum("1e", "1"), None);
        assert_eq!(sum("-0.25", "0"), Some(Ok("-0.25".into())));
        assert_eq!(sum("9223372036854775807", "3"), Some(Ok("9223372036854775810".into())));
        let nines = "99999999999999999999.99999999999999999";
        assert_eq!(sum(nines, nines), Some(Ok("199999999999999999999.99999999999999998".into())));
        assert_eq!(sum("inf", "1"), Some(Err(NotFinite)));
        assert_eq!(sum("1e400", "1"), None);
        assert_eq!(sum("nan", "1"), None);
        assert_eq!(sum("", "1"), None);
    }
}
