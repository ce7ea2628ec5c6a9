//! Worlds with one bug, and what they show.

use rackpool_sim::{Bug, Bugs, Failure, run, run_with};

/// A world with one bug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planted(pub(crate) Bug);

impl Bugs for Planted {
    fn has(self, bug: Bug) -> bool {
        self.0 == bug
    }
}

/// Finds the bug in one of so many seeds, which all hold without it.
pub(crate) fn find(bug: Bug, from: u64, within: u64) -> Box<Failure> {
    let failure = (from..from + within)
        .find_map(|seed| run_with(seed, Planted(bug)).err())
        .unwrap_or_else(|| panic!("{bug:?} is not found by {within} seeds from {from} on"));
    let sound = run(failure.seed);
    assert!(sound.is_ok(), "{bug:?} is found by a seed that fails without it: {sound:?}");
    failure
}
