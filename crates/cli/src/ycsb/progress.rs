//! Progress on the terminal.

use std::fmt::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::text::{grouped, rounded};

/// Shows how far a run is, on standard error; nothing where that is no terminal.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    hidden: bool,
}

impl Progress {
    /// `quiet` shows nothing even on a terminal.
    pub fn new(quiet: bool) -> Self {
        Self { hidden: quiet }
    }

    /// A bar for `total` operations, gone when dropped.
    pub(super) fn bar(self, title: &str, total: u64) -> Bar {
        let target =
            if self.hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
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
        Bar(bar.with_message(title.to_owned()))
    }
}

/// One phase's progress.
#[derive(Debug)]
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn advance(&self, done: u64) {
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
