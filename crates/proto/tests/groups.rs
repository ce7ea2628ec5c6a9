//! A group in a world of faults, and with planted bugs.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod plant;
mod stream;

use rackpool_proto::planted_bugs::Bug;
use stream::{Faults, Seen, World};

const SEEDS: u64 = 20_000;

#[test]
fn whatever_fails_the_survivors_have_the_same_messages() {
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        match World::new(seed, Faults::Some, None).run() {
            Ok(of_seed) => seen.add(&of_seed),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{seen:?}");
    let Seen { closed, agreed, caught_up, lost, left_out } = seen;
    for count in [closed, agreed, caught_up, lost, left_out] {
        assert!(count > 100, "the faults lead nowhere: {seen:?}");
    }
}

#[test]
fn without_faults_all_members_take_all_messages() {
    for seed in 0..2000 {
        let world = World::new(seed, Faults::None, None);
        let members = world.members();
        let seen = world.run().unwrap();
        assert_eq!((seen.closed, seen.lost), (members, 0), "seed {seed}");
    }
}

#[test]
fn all_members_survive_their_root() {
    for seed in 0..2000 {
        let world = World::new(seed, Faults::Root, None);
        let members = world.members();
        let seen = world.run().unwrap();
        assert_eq!(seen.closed + seen.agreed, members, "seed {seed}");
    }
}

/// Finds a planted bug, with a violation that contains this.
fn finds(bug: Bug, faults: Faults, expected: &str) {
    let run = |seed| World::new(seed, faults, Some(bug)).run().err();
    let (seed, violation) = (0..SEEDS).find_map(|seed| run(seed).map(|it| (seed, it))).unwrap();
    println!("{bug:?}: seed {seed}: {violation}");
    assert!(violation.contains(expected), "seed {seed}: {violation}");
}

#[test]
fn finds_an_overwritten_message() {
    finds(Bug::OverwriteUntaken, Faults::None, "is lost");
}

#[test]
fn finds_bytes_that_are_not_verified() {
    finds(Bug::CountUnverified, Faults::Some, "other bytes");
}

#[test]
fn finds_an_end_that_is_not_decided() {
    finds(Bug::EndUndecided, Faults::Some, "ends at");
}

#[test]
fn finds_a_decision_before_all_have_the_messages() {
    finds(Bug::DecideBeforeReading, Faults::Root, "is lost");
}

#[test]
fn finds_a_member_that_ends_though_it_is_left_out() {
    finds(Bug::EndThoughLeftOut, Faults::Some, "ends at");
}
