//! A multicast in a world of faults, and with planted bugs.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod group;
mod plant;

use group::{Faults, Seen, World};
use rackpool_proto::planted_bugs::Bug;

const SEEDS: u64 = 4000;

#[test]
fn whatever_fails_the_survivors_get_the_object() {
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        match World::run(seed, None) {
            Ok(of_seed) => seen.add(&of_seed),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{seen:?}");
    let Seen { later_epochs, takeovers, stuck, without_root, no_plan, .. } = seen;
    for count in [later_epochs, takeovers, stuck, without_root, no_plan] {
        assert!(count > 20, "the faults lead nowhere: {seen:?}");
    }
}

#[test]
fn without_faults_each_member_reads_each_block_once() {
    for seed in 0..200 {
        let mut world = World::new(seed, None);
        world.multicast(Faults::None).unwrap();
        let group = world.group();
        let members = group.members.len() as u64 - 1;
        assert_eq!(world.blocks_read, members * u64::from(group.blocks), "seed {seed}");
    }
}

#[test]
fn a_second_multicast_sends_only_what_is_missing() {
    let mut resumed = 0;
    for seed in 0..500 {
        let mut world = World::new(seed, None);
        world.multicast(Faults::Some).unwrap();
        let racks = world.group().members.len();
        let blocks = world.group().blocks;
        let lacked: u32 = (1..racks).map(|rack| blocks - world.count_of(rack)).sum();
        world.restart();
        world.multicast(Faults::None).unwrap();
        assert_eq!(world.blocks_read, u64::from(lacked), "seed {seed}");
        resumed += u32::from(lacked > 0);
    }
    assert!(resumed > 50, "kills left something to do in {resumed} worlds");
}

/// Finds a planted bug, with a violation that begins like this.
fn finds(bug: Bug, expected: &[&str]) {
    let found = (0..SEEDS).find_map(|seed| World::run(seed, Some(bug)).err().map(|it| (seed, it)));
    let (seed, violation) = found.unwrap();
    println!("{bug:?}: seed {seed}: {violation}");
    assert!(expected.iter().any(|part| violation.contains(part)), "seed {seed}: {violation}");
    World::run(seed, None).unwrap();
}

#[test]
fn a_block_that_is_counted_before_its_bytes_are_there_is_found() {
    finds(Bug::CountBlockBeforeBytes, &["without its bytes"]);
}

#[test]
fn an_epoch_that_is_ignored_is_found() {
    finds(Bug::TakeAnyEpoch, &["twice", "has not ended", "runs and is given up"]);
}

#[test]
fn a_wedge_that_is_ignored_is_found() {
    finds(Bug::ReadWhileWedged, &["twice"]);
}

#[test]
fn an_object_that_is_shown_early_is_found() {
    finds(Bug::ShowEarly, &["published while"]);
}

#[test]
fn blocks_of_a_deleted_object_that_count_for_its_successor_are_found() {
    finds(Bug::ResumeAnyVersion, &["of another object"]);
}
