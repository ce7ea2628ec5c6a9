//! Progress on the terminal.

use std::fmt::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use rackpool_output::numbers::{grouped, rounded};

/// Shows the progress of a run on standard error, if that is a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    hidden: bool,
}

impl Progress {
    /// `quiet` shows nothing, even on a terminal.
    pub fn new(quiet: bool) -> Self {
        Self { hidden: quiet }
    }

    /// Returns a bar for `total` operations; it disappears when dropped.
    pub(super) fn bar(self, title: &str, total: u64) -> Bar {
        let target =
            if self.hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        Bar::on(target, title, total)
    }
}

/// The progress bar of one phase.
#[derive(Debug)]
pub(super) struct Bar(ProgressBar);

impl Bar {
    fn on(target: ProgressDrawTarget, title: &str, total: u64) -> Self {
        let template = "{msg:<12} {bar:32.cyan/dim} {percent:>3}%  {human_pos} of {human_len}  \
                        {rate} ops/s  {eta} left";
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
                // Writing to a terminal line's buffer cannot fail.
                let _ = out.write_str(&grouped(rounded(state.per_sec())));
            })
            .progress_chars("━╸─");
        let bar = ProgressBar::with_draw_target(Some(total), target).with_style(style);
        Self(bar.with_message(title.to_owned()))
    }

    pub(super) fn advance(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;

    #[test]
    fn a_bar_says_what_is_done_how_fast_and_how_long_it_takes_and_goes() {
        let terminal = InMemoryTerm::new(2, 120);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = Bar::on(target, "workload A", 2_000_000);
        bar.advance(500_000);
        let line = terminal.contents();
        assert_eq!(line.lines().count(), 1, "{line}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [title @ .., percent, done, "of", total, rate, "ops/s", left, "left"] = &words[..]
        else {
            panic!("{line}")
        };
        assert_eq!(title[..2], ["workload", "A"]);
        // A quarter of 32 places, including the tip.
        assert_eq!(title[2], format!("{}╸{}", "━".repeat(8), "─".repeat(23)));
        assert_eq!((*percent, *done, *total), ("25%", "500,000", "2,000,000"));
        assert!(rate.chars().all(|digit| digit.is_ascii_digit() || digit == ','), "{line}");
        assert!(left.ends_with('s'), "{line}");
        drop(bar);
        assert_eq!(terminal.contents(), "");
    }

    #[test]
    fn who_wants_quiet_sees_no_bar() {
        assert!(Progress::new(true).bar("workload A", 100).0.is_hidden());
    }
}
