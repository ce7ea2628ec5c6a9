//! The values of a panel as CSV (RFC 4180, with line feeds alone).

use super::Panel;

/// Returns a header of the x axis' name and the series' names, and a row for each place of the x
/// axis. Numbers have full precision; a value that was not measured is an empty cell.
pub(super) fn table(panel: &Panel) -> String {
    let names = panel.series.iter().map(|series| quoted(&series.name));
    let mut text = row(std::iter::once(quoted(&panel.x_name)).chain(names));
    for (place, label) in panel.x.iter().enumerate() {
        let values = panel.series.iter().map(|series| {
            let value = series.values.get(place).copied().flatten();
            value.map(|value| value.to_string()).unwrap_or_default()
        });
        text.push_str(&row(std::iter::once(quoted(label)).chain(values)));
    }
    text
}

fn row(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(",") + "\n"
}

/// Returns the text as a cell, in quotes where CSV needs them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
