//! Locks in a world of faults, and with planted bugs.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod lock_world;
mod plant;

use lock_world::{Faults, Seen, World};
use rackpool_proto::planted_bugs::Bug;

const SEEDS: u64 = 1_000;
/// The longest wait of a writer among four readers, in steps: several times what a step of each
/// takes.
const FAIR: u64 = 1_000;

#[test]
fn holders_exclude_each_other_whatever_fails() {
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        match World::new(seed, Faults::Some, None).run() {
            Ok(of_seed) => seen.add(&of_seed),
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{seen:?}");
    let Seen { held, recovered, lost, moved, withdrawn, given_up, .. } = seen;
    for count in [held, recovered, lost, moved, withdrawn, given_up] {
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

/// The longest wait of a writer among readers, in steps.
fn longest_wait(seed: u64, bug: Option<Bug>) -> u64 {
    World::of_readers(seed, bug).run().map_or(u64::MAX, |seen| seen.longest_wait)
}

#[test]
fn readers_do_not_starve_a_writer() {
    for seed in 0..SEEDS {
        let waited = longest_wait(seed, None);
        assert!(waited < FAIR, "seed {seed}: {waited} steps");
    }
}

#[test]
fn finds_overtaken_requests() {
    let starves = |seed: &u64| longest_wait(*seed, Some(Bug::OvertakeWaitingLocks)) > 4 * FAIR;
    assert!((0..SEEDS).any(|seed| starves(&seed)));
}

/// The violation of a holder that is not alone.
const EXCLUSION: &str = "not exclusive";

/// Finds a planted bug, with a violation that contains this.
fn finds(bug: Bug, expected: &str) {
    let run = |seed| World::new(seed, Faults::Some, Some(bug)).run().err();
    let (seed, violation) = (0..SEEDS).find_map(|seed| run(seed).map(|it| (seed, it))).unwrap();
    println!("{bug:?}: seed {seed}: {violation}");
    assert!(violation.contains(expected), "seed {seed}: {violation}");
}

#[test]
fn finds_a_lost_wake_up() {
    finds(Bug::ForgetWaitingLocks, "waits since");
}

#[test]
fn finds_an_ended_writer_that_is_not_told_of() {
    finds(Bug::ForgetAbandonedLocks, EXCLUSION);
}

#[test]
fn finds_a_page_that_moves_under_a_lock() {
    finds(Bug::MoveUnderLocks, EXCLUSION);
}

#[test]
fn finds_a_lock_granted_that_an_earlier_daemon_had_granted() {
    finds(Bug::TrustInheritedLocks, EXCLUSION);
}

#[test]
fn finds_claims_read_without_a_barrier() {
    finds(Bug::ReadClaimsWithoutBarrier, EXCLUSION);
}

#[test]
fn finds_overlooked_readers() {
    finds(Bug::OverlookSharedClaims, EXCLUSION);
}

#[test]
fn finds_a_lost_lock_passed_on_under_an_access() {
    finds(Bug::PassLostLockAtOnce, EXCLUSION);
}

#[test]
fn finds_a_lock_used_after_its_endpoint() {
    finds(Bug::KeepLocksOfEndedEndpoints, "stale");
}

#[test]
fn finds_a_lock_passed_on_before_its_writer_has_written_back() {
    finds(Bug::ForgetLineCaches, "missing");
}

#[test]
fn finds_a_claim_used_again_before_its_lock_has_ended() {
    finds(Bug::ReuseEndingClaims, "missing");
}

#[test]
fn finds_a_cached_line_read_after_a_writer_got_in() {
    finds(Bug::PassWhileCached, "stale");
}

#[test]
fn finds_bytes_written_back_after_their_lock() {
    finds(Bug::WriteBackOfEndedLocks, "acknowledged");
}
