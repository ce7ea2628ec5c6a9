//! Each planted bug is found within the number of seeds that the table names.

mod planted_bug;

use planted_bug::table::PLANTED;
use planted_bug::{Planted, find};
use rackpool_sim::{Bug, run_with};

#[test]
fn every_planted_bug_is_found_by_a_seed_that_a_sound_world_survives() {
    for (bug, _, _) in PLANTED {
        find(bug);
    }
}

#[test]
fn a_failure_names_its_seed_and_replays_identically() {
    let failure = find(Bug::SkipQuiesce);
    assert!(failure.to_string().contains(&format!("cargo x sim --seed {}", failure.seed)));
    assert_eq!(run_with(failure.seed, Planted(Bug::SkipQuiesce)), Err(failure));
}
