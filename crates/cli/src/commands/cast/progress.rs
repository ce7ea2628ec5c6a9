use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rackpool_model::RackId;
use rackpool_objects::CastProgress;

/// Shows on standard error how much of an object has come to the racks, if that is a terminal.
#[derive(Debug)]
pub(super) struct Bar {
    bar: ProgressBar,
    racks: BTreeMap<RackId, u32>,
    targets: u64,
}

impl Bar {
    /// For this number of racks.
    pub(super) fn new(targets: usize, target: ProgressDrawTarget) -> Self {
        let template = "{bar:32.cyan/dim} {percent:>3}%  {msg}";
        let style = ProgressStyle::with_template(template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("━╸─");
        let bar = ProgressBar::with_draw_target(Some(1), target).with_style(style);
        Self { bar, racks: BTreeMap::new(), targets: targets as u64 }
    }

    pub(super) fn tell(&mut self, CastProgress { rack, blocks, of_blocks }: CastProgress) {
        self.racks.insert(rack, blocks);
        let done = self.racks.values().filter(|blocks| **blocks == of_blocks).count();
        self.bar.set_length(u64::from(of_blocks) * self.targets);
        self.bar.set_position(self.racks.values().map(|blocks| u64::from(*blocks)).sum());
        self.bar.set_message(format!("{done} of {} racks have it", self.targets));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;

    #[test]
    fn the_bar_counts_blocks_and_racks() {
        let terminal = InMemoryTerm::new(2, 100);
        let mut bar = Bar::new(2, ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        let progress = |rack, blocks| CastProgress { rack: RackId(rack), blocks, of_blocks: 4 };
        for (rack, blocks) in [(1, 2), (2, 1), (1, 4)] {
            bar.tell(progress(rack, blocks));
        }
        bar.bar.force_draw();
        let shown = terminal.contents();
        assert!(shown.contains("62%") && shown.contains("1 of 2 racks have it"), "{shown}");
        drop(bar);
        assert_eq!(terminal.contents(), "");
    }
}
