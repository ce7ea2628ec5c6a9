//! Tables that fit a terminal: the least important columns are left out.

use rackpool_output::Style;

/// Spaces between two columns.
const GAP: usize = 2;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Columns of higher rank are left out first if room is short; rank 0 always stays.
    rank: u8,
    /// Words are left-aligned, numbers right-aligned.
    is_words: bool,
}

impl Column {
    /// A column of numbers.
    pub(super) const fn new(name: &'static str, rank: u8) -> Self {
        Self { name, rank, is_words: false }
    }

    /// A column of words.
    pub(super) const fn words(name: &'static str, rank: u8) -> Self {
        Self { name, rank, is_words: true }
    }
}

/// A row of a table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    /// The sort key of each cell.
    pub(super) keys: Vec<f64>,
    /// Text in place of missing cells.
    pub(super) rest: Option<String>,
    /// Whether the row is highlighted.
    pub(super) is_bad: bool,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_descending: bool,
}

impl Sort {
    /// Sorts rows. Rows without the column come last.
    pub(super) fn apply(self, rows: &mut [Row]) {
        let key = |row: &Row| row.keys.get(self.column).copied();
        rows.sort_by(|one, other| match (key(one), key(other)) {
            (Some(one), Some(other)) if self.is_descending => other.total_cmp(&one),
            (Some(one), Some(other)) => one.total_cmp(&other),
            (one, other) => one.is_none().cmp(&other.is_none()),
        });
    }

    const fn mark(self) -> char {
        if self.is_descending { '\u{2193}' } else { '\u{2191}' }
    }
}

/// A line of the screen.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    text: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Default)]
enum Kind {
    #[default]
    Plain,
    Heading,
    Bad,
}

impl Line {
    pub(super) const fn plain(text: String) -> Self {
        Self { text, kind: Kind::Plain }
    }

    pub(super) const fn heading(text: String) -> Self {
        Self { text, kind: Kind::Heading }
    }

    /// Returns the line cut to `width`, coloured if the style is.
    pub(super) fn within(&self, width: usize, style: Style) -> String {
        let text: String = self.text.chars().take(width).collect();
        let text = text.trim_end();
        match self.kind {
            Kind::Plain => text.to_owned(),
            Kind::Heading => style.bold(text),
            Kind::Bad => style.red(text),
        }
    }
}

/// Lays out a table with headings. Columns that do not fit are left out, those of the highest rank
/// first, but never the column that the rows are sorted by.
pub(super) fn table(
    columns: &[Column],
    rows: &[Row],
    sort: Option<Sort>,
    width: usize,
) -> Vec<Line> {
    let headings: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| match sort {
            Some(sort) if sort.column == index => format!("{}{}", column.name, sort.mark()),
            _ => column.name.to_owned(),
        })
        .collect();
    let cells = |row: &Row| row.cells.clone();
    let all: Vec<Vec<String>> = std::iter::once(headings).chain(rows.iter().map(cells)).collect();
    let width_of = |index: usize| {
        let cells = all.iter().filter_map(|row| row.get(index));
        // Includes room for the sort mark, so that columns do not shift with it.
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(columns[index].name.len() + 1)
    };
    let mut shown: Vec<(usize, usize)> = (0..columns.len()).map(|at| (at, width_of(at))).collect();
    let rank = |index: usize| match sort {
        Some(sort) if sort.column == index => 0,
        _ => columns[index].rank,
    };
    while shown.iter().map(|(_, width)| width + GAP).sum::<usize>() > width + GAP {
        let last =
            shown.iter().enumerate().max_by_key(|(place, (index, _))| (rank(*index), *place));
        match last {
            Some((place, (index, _))) if rank(*index) > 0 => shown.remove(place),
            _ => break,
        };
    }
    let rest = std::iter::once(None).chain(rows.iter().map(|row| row.rest.as_deref()));
    let mut lines: Vec<Line> =
        all.iter().zip(rest).map(|(row, rest)| line(columns, row, rest, &shown)).collect();
    lines[0].kind = Kind::Heading;
    for (line, row) in lines.iter_mut().skip(1).zip(rows) {
        if row.is_bad {
            line.kind = Kind::Bad;
        }
    }
    lines
}

fn line(
    columns: &[Column],
    cells: &[String],
    rest: Option<&str>,
    shown: &[(usize, usize)],
) -> Line {
    let mut text = String::new();
    for (place, &(index, width)) in shown.iter().enumerate() {
        let Some(cell) = cells.get(index) else { break };
        if place > 0 {
            text += &" ".repeat(GAP);
        }
        let space = " ".repeat(width.saturating_sub(cell.chars().count()));
        // The first column names the row.
        let is_left = place == 0 || columns[index].is_words;
        text += &if is_left { format!("{cell}{space}") } else { format!("{space}{cell}") };
    }
    if let Some(rest) = rest {
        text += &format!("{}{rest}", " ".repeat(GAP));
    }
    Line::plain(text)
}
