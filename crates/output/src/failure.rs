//! Errors of a program as text and as an exit status.

use std::error::Error;
use std::fmt;

/// The command line or the configuration asks for something impossible. Exit status 2, whichever
/// part of the program detects it.
#[derive(Debug)]
pub struct UsageError(Box<dyn Error + Send + Sync>);

impl UsageError {
    /// The exit status of a usage error, the same as `clap`'s.
    pub const STATUS: i32 = 2;

    /// Creates an error with this message.
    pub fn new(message: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for UsageError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Returns an error and its causes in one line. A cause that the text already contains is not
/// repeated.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Outer {
        #[error("can't open the store: {source}; choose another")]
        Says { source: std::io::Error },
        #[error("can't open the store")]
        Silent { source: std::io::Error },
    }

    #[test]
    fn a_cause_is_told_once() {
        let source = || std::io::Error::other("it is damaged");
        let says = Outer::Says { source: source() };
        assert_eq!(chain(&says), "can't open the store: it is damaged; choose another");
        let silent = Outer::Silent { source: source() };
        assert_eq!(chain(&silent), "can't open the store: it is damaged");
    }
}
