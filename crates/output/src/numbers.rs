//! Numbers as text for people.

/// Formats `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: `1 copy`, `1,234 copies`.
#[must_use]
pub fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { several })
}

/// Formats nanoseconds as microseconds with three significant digits: `0.183`, `2.41`, `41.7`,
/// `1,240`.
#[must_use]
pub fn micros(ns: f64) -> String {
    significant(ns / 1e3)
}

/// Formats nanoseconds with a suitable unit: `183 ns`, `2.41 µs`, `1.24 ms`, `3.00 s`.
#[must_use]
pub fn latency(ns: f64) -> String {
    // Compared after rounding to three digits, so that 999.9 ns reads 1.00 µs.
    let (scale, unit) = match ns {
        n if n < 999.5 => (1.0, "ns"),
        n if n < 999.5e3 => (1e3, "µs"),
        n if n < 999.5e6 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    if scale == 1.0 { format!("{ns:.0} ns") } else { format!("{} {unit}", significant(ns / scale)) }
}

fn significant(value: f64) -> String {
    match value {
        v if v >= 99.95 => grouped(rounded(v)),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.9995 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// Rounds a count or rate to the nearest whole number; negative values and NaN become 0.
#[expect(clippy::cast_possible_truncation, reason = "saturating is right for a number to be shown")]
#[must_use]
pub fn rounded(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        let texts = [0, 12, 999, 1000, 123_456, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "12", "999", "1,000", "123,456", "1,234,567"]);
    }

    #[test]
    fn one_of_a_kind_is_singular() {
        let texts = [0, 1, 2, 1234].map(|count| counted(count, "copy", "copies"));
        assert_eq!(texts, ["0 copies", "1 copy", "2 copies", "1,234 copies"]);
    }

    #[test]
    fn latencies_keep_three_digits() {
        let texts =
            [12.4, 183.0, 999.9, 2414.0, 41_720.0, 999_900.0, 1_240_000.0, 3e9].map(latency);
        assert_eq!(
            texts,
            ["12 ns", "183 ns", "1.00 µs", "2.41 µs", "41.7 µs", "1.00 ms", "1.24 ms", "3.00 s"]
        );
        let texts = [183.0, 2414.0, 41_720.0, 1_240_000.0].map(micros);
        assert_eq!(texts, ["0.183", "2.41", "41.7", "1,240"]);
    }
}
