//! Numbers in the formats that Redis reads and writes.

use std::fmt;

/// Parses an integer in canonical form: no spaces, no `+`, no leading zeros.
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

/// Parses a floating-point number: all that C's `strtod` accepts as a whole, except NaN and numbers
/// that overflow or underflow.
#[must_use]
pub(crate) fn parse_float(text: &[u8]) -> Option<f64> {
    let number = strtod(text)?;
    let has_name = |text: &[u8]| text.first().is_some_and(|byte| matches!(byte, b'i' | b'I'));
    let is_exact_zero = |text: &[u8]| {
        let digits = text.iter().take_while(|byte| !matches!(byte, b'e' | b'E' | b'p' | b'P'));
        !digits.clone().any(|byte| (b'1'..=b'9').contains(byte) || byte.is_ascii_alphabetic())
    };
    let unsigned = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    let is_meant = if number.is_infinite() {
        has_name(unsigned)
    } else {
        number != 0.0 || is_exact_zero(hexadecimal(unsigned).unwrap_or(unsigned))
    };
    is_meant.then_some(number)
}

/// Parses one end of a range of scores: like [`parse_float`], but leading space is allowed, an
/// empty text is 0, and a number out of range becomes the nearest one.
#[must_use]
pub(crate) fn parse_bound(text: &[u8]) -> Option<f64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let begin = text.iter().position(|byte| !is_space(byte)).unwrap_or(0);
    if text.is_empty() { Some(0.0) } else { strtod(&text[begin..]) }
}

/// Parses what C's `strtod` accepts as a whole, except leading space and NaN.
fn strtod(text: &[u8]) -> Option<f64> {
    let (is_negative, unsigned) = match text {
        [b'-', unsigned @ ..] => (true, unsigned),
        [b'+', unsigned @ ..] => (false, unsigned),
        unsigned => (false, unsigned),
    };
    // A second sign is an error.
    if matches!(unsigned.first(), None | Some(b'+' | b'-')) {
        return None;
    }
    let size = match hexadecimal(unsigned) {
        Some(digits) => parse_hexadecimal(digits)?,
        None => std::str::from_utf8(unsigned).ok()?.parse().ok()?,
    };
    (!size.is_nan()).then_some(if is_negative { -size } else { size })
}

/// The digits of a hexadecimal number, without its prefix; `None` if it has none.
fn hexadecimal(unsigned: &[u8]) -> Option<&[u8]> {
    unsigned.strip_prefix(b"0x").or_else(|| unsigned.strip_prefix(b"0X"))
}

/// Parses hexadecimal digits with an optional point and an optional binary exponent, if `f64`
/// represents the number exactly.
fn parse_hexadecimal(text: &[u8]) -> Option<f64> {
    /// The most digits that fit into the 53 bits of a mantissa.
    const MOST: usize = 13;
    let text = std::str::from_utf8(text).ok()?;
    let (digits, exponent) = match text.split_once(['p', 'P']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i16>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = [whole, fraction].concat();
    let is_digit = |byte: u8| byte.is_ascii_hexdigit();
    if digits.is_empty() || digits.len() > MOST || !digits.bytes().all(is_digit) {
        return None;
    }
    let number = u64::from_str_radix(&digits, 16).ok()?;
    let exponent = i32::from(exponent) - 4 * i32::try_from(fraction.len()).ok()?;
    #[expect(clippy::cast_precision_loss, reason = "below 2^52")]
    Some(number as f64 * 2_f64.powi(exponent))
}

/// Formats a number as C's `%.17g`, which round-trips: 17 digits, and an exponent if it is very
/// large or very small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decimal(pub(crate) f64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: i32 = 17;
        let number = self.0;
        if number.is_infinite() {
            return f.write_str(if number > 0.0 { "inf" } else { "-inf" });
        }
        let text = format!("{number:.16e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if (-4..DIGITS).contains(&exponent) {
            let behind = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
            return f.write_str(short(&format!("{number:.behind$}")));
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(f, "{}e{sign}{:0>2}", short(digits), exponent.abs())
    }
}

/// Removes the trailing zeros of a fraction.
fn short(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// A decimal number with 17 digits behind the point. Its sums are exact where `f64` is not: 0.1
/// plus 0.2 is 0.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed(i128);

impl Fixed {
    const DIGITS: u32 = 17;
    const ONE: i128 = 10_i128.pow(Self::DIGITS);
    /// The most digits before the point: the sum of two such numbers is below 2^127 / `ONE`.
    const WHOLE: i64 = 20;

    /// Parses a number with at most 20 digits before the point and 17 behind it once its exponent
    /// is applied.
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
        // The number of zeros to append to the digits.
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

    /// The sum.
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

/// The sum of two numbers in the format of Redis; `None` if one cannot be parsed.
pub(crate) fn add_floats(a: &[u8], b: &[u8]) -> Option<Result<String, NotFinite>> {
    let (first, second) = (parse_float(a)?, parse_float(b)?);
    if let (Some(first), Some(second)) = (Fixed::parse(a), Fixed::parse(b)) {
        return Some(Ok(first.plus(second).to_string()));
    }
    let sum = first + second;
    Some(if sum.is_finite() { Ok(format!("{sum}")) } else { Err(NotFinite) })
}

/// The sum is infinite or NaN.
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

    /// The answers of Redis 7.0.15 to `ZSCORE`.
    #[test]
    fn floats_are_written_with_17_digits() {
        for (number, text) in [
            (0.0, "0"),
            (3.0, "3"),
            (-1.5, "-1.5"),
            (0.1, "0.10000000000000001"),
            (0.3, "0.29999999999999999"),
            (1.1, "1.1000000000000001"),
            (1e17, "1e+17"),
            (99_999_999_999_999_984.0, "99999999999999984"),
            (12_345_678_901_234_567_890.0, "1.2345678901234567e+19"),
            (1.234_567_890_1e-4, "0.00012345678901"),
            (3e-5, "3.0000000000000001e-05"),
            (1e-7, "9.9999999999999995e-08"),
            (1e300, "1.0000000000000001e+300"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(Decimal(number).to_string(), text);
        }
    }

    #[test]
    fn numbers_may_have_hexadecimal_digits() {
        for (text, number) in [
            ("0x10", 16.0),
            ("-0XfF", -255.0),
            ("+0x0", 0.0),
            ("0x1p3", 8.0),
            ("0x1.8", 1.5),
            ("0x.8P+1", 1.0),
        ] {
            assert_eq!(parse_float(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["0x", "0xg", "--0x1", "0x-1", "0x+1", "0x10000000000000", "0x1.8p", "0x1p9999"]
        {
            assert_eq!(parse_float(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn ends_of_ranges_are_read_leniently_and_scores_are_not() {
        for (text, number) in [
            ("", 0.0),
            (" 1", 1.0),
            ("\t\n-2", -2.0),
            ("1e400", f64::INFINITY),
            ("-1e400", f64::NEG_INFINITY),
            ("1e-400", 0.0),
        ] {
            assert_eq!(parse_bound(text.as_bytes()), Some(number), "{text:?}");
            assert_eq!(parse_float(text.as_bytes()), None, "{text:?}");
        }
        for (text, number) in [("0e5", 0.0), ("-0.00", 0.0), ("+inf", f64::INFINITY), ("5.", 5.0)] {
            assert_eq!(parse_float(text.as_bytes()), Some(number), "{text}");
            assert_eq!(parse_bound(text.as_bytes()), Some(number), "{text}");
        }
        for text in [" ", "1 ", "nan", "1_0", "+-1", "1e", "e5", "x"] {
            assert_eq!(parse_bound(text.as_bytes()), None, "{text:?}");
            assert_eq!(parse_float(text.as_bytes()), None, "{text:?}");
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
