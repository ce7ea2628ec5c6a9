use std::collections::VecDeque;
use std::io::{self, Write};

use crate::large::StringView;

/// Large strings among the bytes of answers. Their own bytes are sent from where they lie.
#[derive(Debug, Default)]
pub struct Views {
    all: VecDeque<PlacedView>,
    /// How much of the first one is sent.
    sent: usize,
}

#[derive(Debug)]
struct PlacedView {
    /// How many bytes of answers come before it.
    at: usize,
    view: StringView,
}

impl Views {
    /// Adds a string behind the first `at` bytes of answers.
    pub fn push(&mut self, at: usize, view: StringView) {
        self.all.push_back(PlacedView { at, view });
    }

    /// How many bytes of answers come before the first string; `None` if there is no string.
    #[inline]
    #[must_use]
    pub fn first_at(&self) -> Option<usize> {
        self.all.front().map(|first| first.at)
    }

    /// Whether there is no string.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The bytes of the strings that are not sent yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let all = self.all.iter().map(|placed| placed.view.as_slice().len()).sum::<usize>();
        all.saturating_sub(self.sent)
    }

    /// Removes the strings that come after more than `len` bytes of answers.
    pub fn truncate(&mut self, len: usize) {
        while self.all.back().is_some_and(|last| last.at > len) {
            self.all.pop_back();
        }
        if self.all.is_empty() {
            self.sent = 0;
        }
    }

    /// Accounts for the removal of the first `len` bytes of answers.
    pub fn shift(&mut self, len: usize) {
        self.all.iter_mut().for_each(|placed| placed.at = placed.at.saturating_sub(len));
    }

    /// Appends the strings of answers that come after the first `at` bytes.
    pub fn append(&mut self, at: usize, others: Self) {
        self.all.extend(
            others
                .all
                .into_iter()
                .map(|PlacedView { at: more, view }| PlacedView { at: at + more, view }),
        );
    }

    /// Writes at most `most` bytes of the first string; returns how many.
    ///
    /// # Errors
    /// That of the stream.
    pub fn send(&mut self, stream: &mut impl Write, most: usize) -> io::Result<usize> {
        let Some(first) = self.all.front() else { return Ok(0) };
        let rest = first.view.as_slice().get(self.sent..).unwrap_or_default();
        let written = stream.write(&rest[..rest.len().min(most)])?;
        self.sent += written;
        if written == rest.len() {
            self.all.pop_front();
            self.sent = 0;
        }
        Ok(written)
    }
}
