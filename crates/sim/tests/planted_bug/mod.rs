//! Runs with one planted bug.

pub(crate) mod table;

use rackpool_sim::{Bug, Bugs, Failure, run, run_with};
use table::PLANTED;

/// Plants one bug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planted(pub(crate) Bug);

impl Bugs for Planted {
    fn has(self, bug: Bug) -> bool {
        self.0 == bug
    }
}

/// Finds the bug in one of the seeds that the table names for it. All of these seeds hold without
/// it.
pub(crate) fn find(bug: Bug) -> Box<Failure> {
    let row = PLANTED.iter().find(|(listed, _, _)| *listed == bug);
    let (_, from, within) = *row.unwrap_or_else(|| panic!("{bug:?} is not in the table"));
    let failure = (from..from + within)
        .find_map(|seed| run_with(seed, Planted(bug)).err())
        .unwrap_or_else(|| panic!("{bug:?} is not found by {within} seeds from {from} on"));
    let sound = run(failure.seed);
    assert!(sound.is_ok(), "{bug:?} is found by a seed that fails without it: {sound:?}");
    failure
}
