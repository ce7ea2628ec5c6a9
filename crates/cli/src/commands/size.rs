//! Sizes as people write and read them.

/// A number of bytes, with an optional suffix K, M, G or T (powers of 1024).
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let help = || format!("'{text}' is no size: write bytes, or a number with K, M, G or T");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        "T" | "t" | "TiB" => 40,
        _ => return Err(help()),
    };
    let number: u64 = digits.parse().map_err(|_| help())?;
    number.checked_mul(1 << shift).ok_or_else(help)
}

/// Bytes with the largest unit that keeps the number above 1.
pub(super) fn show(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..units.len()).rev().find(|unit| bytes >> (10 * unit) > 0).unwrap_or(0);
    let whole = bytes >> (10 * unit);
    let tenth = if unit == 0 { 0 } else { ((bytes >> (10 * (unit - 1))) & 1023) * 10 / 1024 };
    if tenth == 0 {
        format!("{whole} {}", units[unit])
    } else {
        format!("{whole}.{tenth} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        assert_eq!(parse("2M"), Ok(2 << 20));
        assert_eq!(
            parse("1.5G"),
            Err("'1.5G' is no size: write bytes, or a number with K, M, G or T".into())
        );
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(3 << 19), "1.5 MiB");
        assert_eq!(show(1 << 30), "1 GiB");
    }
}
