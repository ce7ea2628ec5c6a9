//! Emphasis on a terminal.

use std::io::IsTerminal;

/// Whether text may use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Text only.
    Plain,
    /// Terminal escapes for bold, dim and red.
    Coloured,
}

impl Style {
    /// Returns the style for standard output: colours on a terminal, unless `NO_COLOR` is set
    /// (<https://no-color.org>).
    #[must_use]
    pub fn of_stdout() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if wanted && std::io::stdout().is_terminal() { Self::Coloured } else { Self::Plain }
    }

    /// For headings.
    #[must_use]
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// For rules and notes.
    #[must_use]
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// For problems.
    #[must_use]
    pub fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    fn paint(self, escape: &str, text: &str) -> String {
        match self {
            Self::Plain => text.to_owned(),
            Self::Coloured => format!("\x1b[{escape}m{text}\x1b[0m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_written_only_in_colour() {
        assert_eq!(Style::Plain.red("bad"), "bad");
        assert_eq!(Style::Coloured.red("bad"), "\x1b[31mbad\x1b[0m");
    }
}
