//! Locks in a world of faults, and with planted bugs.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod lock_world;
mod plant;

use lock_world::{Faults, Seen, World};
use rackpool_proto::planted_bugs::Bug;

const SEEDS: u64 = 1_000;

#[test]
fn holders_exclude_each_other_whatever_fails() {
    let mut seen = Seen::default();
    for seed in
        std::env::var("SEED").map_or(0..SEEDS, |s| s.parse().map(|s: u64| s..s + 1).unwrap())
    {
        match World::new(seed, Faults::Some, None).run() {
            Ok(of_seed) => seen.add(&of_seed),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{seen:?}");
    let Seen { held, recovered, lost, moved, .. } = seen;
    for count in [held, recovered, lost, moved] {
        assert!(count > 100, "the faults lead nowhere: {seen:?}");
    }
}

#[test]
fn without_faults_no_lock_is_lost() {
    for seed in 0..SEEDS {
        let seen = World::new(seed, Faults::None, None).run().unwrap();
        assert_eq!((seen.recovered, seen.lost), (0, 0), "seed {seed}");
    }
}

/// Finds a planted bug, with a violation that contains this.
fn finds(bug: Bug, expected: &str) {
    let run = |seed| World::new(seed, Faults::Some, Some(bug)).run().err();
    let (seed, violation) = (0..SEEDS).find_map(|seed| run(seed).map(|it| (seed, it))).unwrap();
    println!("{bug:?}: seed {seed}: {violation}");
    assert!(violation.contains(expected), "seed {seed}: {violation}");
}
