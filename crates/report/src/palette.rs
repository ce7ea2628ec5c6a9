//! The colours of plots and page.
//!
//! In dark mode the page's style sheet (`style.css`) replaces each colour of the plots by its
//! value; a test checks that it covers all of them.

use plotters::style::RGBColor;

/// The background.
pub(super) const PAPER: RGBColor = RGBColor(0xFF, 0xFF, 0xFF);
/// Titles and values.
pub(super) const INK: RGBColor = RGBColor(0x1D, 0x27, 0x33);
/// Labels and units.
pub(super) const MUTED: RGBColor = RGBColor(0x62, 0x6F, 0x7E);
/// The base line of bars.
pub(super) const AXIS: RGBColor = RGBColor(0xA9, 0xB3, 0xBE);
/// Grid lines.
pub(super) const GRID: RGBColor = RGBColor(0xE4, 0xE8, 0xEC);

/// One colour for each result, distinguishable with colour-vision deficiency.
const SERIES: [RGBColor; 8] = [
    RGBColor(0x2B, 0x5D, 0x8A),
    RGBColor(0x3E, 0x9C, 0x9A),
    RGBColor(0x97, 0xB8, 0x5C),
    RGBColor(0xE0, 0xA4, 0x3A),
    RGBColor(0xC2, 0x58, 0x3F),
    RGBColor(0x85, 0x67, 0x9B),
    RGBColor(0xD9, 0x8B, 0xB0),
    RGBColor(0x7A, 0x5C, 0x45),
];

/// Light to dark: p50, p95, p99, p99.9.
pub(super) const PERCENTILES: [RGBColor; 4] = [
    RGBColor(0x9F, 0xC4, 0xE2),
    RGBColor(0x5B, 0x93, 0xC1),
    RGBColor(0x2E, 0x68, 0x9C),
    RGBColor(0x12, 0x3B, 0x63),
];

/// Cold to hot, for the heat map.
pub(super) const HEAT: [RGBColor; 6] = [
    RGBColor(0xED, 0xEF, 0xF2),
    RGBColor(0xFB, 0xE3, 0xC0),
    RGBColor(0xF7, 0xBE, 0x84),
    RGBColor(0xEC, 0x89, 0x57),
    RGBColor(0xCB, 0x4B, 0x38),
    RGBColor(0x8A, 0x1C, 0x2B),
];

/// The colour of the result at `index`.
pub(super) fn series(index: usize) -> RGBColor {
    SERIES[index % SERIES.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_and_all_six_workloads_have_colours_of_their_own() {
        let mut seen: Vec<RGBColor> = Vec::new();
        for index in 0..7 {
            assert!(!seen.contains(&series(index)), "{index}");
            seen.push(series(index));
        }
    }

    #[test]
    fn the_dark_mode_replaces_every_colour() {
        let style = include_str!("style.css");
        let plain = [PAPER, INK, MUTED, AXIS, GRID];
        for RGBColor(red, green, blue) in
            plain.into_iter().chain(SERIES).chain(PERCENTILES).chain(HEAT)
        {
            let selector = format!("[fill=\"#{red:02X}{green:02X}{blue:02X}\"]");
            assert!(style.contains(&selector), "{selector}");
        }
    }
}
