//! Numbers and the line below the heading.

use crate::figures::{Panel, Scale};
use rackpool_output::numbers::{grouped, rounded};

/// Formats a value with three significant digits: `0.183`, `2.41`, `41.7`, `1,240`.
pub(crate) fn number(value: f64) -> String {
    match value {
        v if v < 0.0 => format!("-{}", number(-v)),
        0.0 => "0".to_owned(),
        v if !(0.000_999_5..1e12).contains(&v) => format!("{v:.2e}"),
        v if v < 0.9995 => format!("{v:.3}"),
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => grouped(rounded(v)),
    }
}

/// Formats a number on an axis without superfluous digits.
pub(super) fn tick(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if !(0.9e-6..1e9).contains(&v) => format!("{v:.1e}"),
        v if v >= 1000.0 => grouped(rounded(v)),
        v => format!("{v:.7}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

/// Names what the y axis shows, and how.
pub(super) fn subtitle(panel: &Panel) -> String {
    let mut values = panel.series.iter().flat_map(|series| series.values.iter().flatten());
    let (scale, is_below) = match panel.scale {
        Scale::Linear => ("", values.any(|value| *value < 0.0)),
        Scale::Log => (", logarithmic", values.any(|value| *value <= 0.0)),
    };
    let below = if is_below { "; lower values stand at the foot" } else { "" };
    format!("{}{scale}{below}", panel.y_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits() {
        let texts = [0.0, 0.000_123_4, 0.1834, 2.414, 41.72, 1240.4, -2.5, 2e15].map(number);
        assert_eq!(texts, ["0", "1.23e-4", "0.183", "2.41", "41.7", "1,240", "-2.50", "2.00e15"]);
    }

    #[test]
    fn ticks_are_short() {
        let texts = [0.0, 2.5e-7, 1e-6, 0.2 + 0.1, 2.5, 200.0, 5e4, 1e9].map(tick);
        assert_eq!(texts, ["0", "2.5e-7", "0.000001", "0.3", "2.5", "200", "50,000", "1.0e9"]);
    }
}
