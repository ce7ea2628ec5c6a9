//! Pages swap as fast as possible between two racks, while processes are killed or stopped at
//! chosen steps, for less than a lease or for longer.

use rackpool_tests::swaps::campaign;
use rackpool_tests::swaps::report::Report;

/// Rounds of each test; `cargo x swap-rounds` runs longer campaigns.
const ROUNDS: usize = 12;

fn nothing_is_lost(seed: u64) -> Report {
    let report = campaign::run(ROUNDS, seed);
    assert!(report.problems.is_empty(), "{report}");
    assert_eq!(report.rounds, ROUNDS, "{report}");
    assert!(report.moved > 0 && report.moments > 0, "the rounds hit no swap: {report}");
    assert_eq!(report.emptied, 1, "{report}");
    report
}

#[test]
fn no_write_is_lost_and_no_word_torn_while_pages_swap_and_anyone_dies() {
    let report = nothing_is_lost(1);
    assert!(report.long_rounds > 0, "nobody was away for longer than a lease: {report}");
}

#[test]
fn no_write_is_lost_and_no_word_torn_while_pages_swap_and_anyone_dies_or_stops() {
    nothing_is_lost(2);
}
