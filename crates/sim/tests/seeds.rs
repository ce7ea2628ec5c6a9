//! A few seeds of `cargo x sim`, and bugs that the simulator has found. The seeds that found them
//! give other runs today, so each bug is planted to check that it would be found again.

mod planted_bug;

use std::time::{Duration, Instant};

use planted_bug::find;
use rackpool_sim::{Bug, Seen, run};

fn holds(seed: u64) -> Seen {
    run(seed).unwrap_or_else(|failure| panic!("{failure}"))
}

/// `cargo x ci` runs a minute of seeds, in a release build.
#[test]
fn five_seconds_of_seeds_hold() {
    // On a busy host few seeds run in five seconds.
    const LEAST: u64 = 40;
    let start = Instant::now();
    let mut sum = Seen::default();
    for seed in 0.. {
        sum += holds(seed);
        if seed >= LEAST && start.elapsed() > Duration::from_secs(5) {
            break;
        }
    }
    // Runs without operations, swaps and faults would hold trivially.
    let Seen { acknowledged, moved, given_up, crashes, fenced, .. } = sum;
    let least = [acknowledged, moved, given_up, crashes, fenced, sum.damaged, sum.freed];
    let objects = [sum.allocated, sum.returned, sum.published, sum.resolved];
    let mut least = least.into_iter().chain([sum.expired, sum.named]).chain(objects);
    assert!(least.all(|count| count > 0), "{sum:?}");
}

#[test]
fn a_seed_replays_identically_and_another_seed_differs() {
    assert_eq!(holds(4), holds(4));
    assert_ne!(holds(4).trace, holds(5).trace);
}

/// Regression: two requests at once gave away both free frames of a rack, which neither got nor
/// gave a page from then on.
#[test]
fn a_rack_keeps_its_last_free_frame() {
    let failure = find(Bug::GiveLastFreeFrame);
    assert!(failure.what.contains("does not move"), "{failure}");
}

/// Regression: the words after word 0 were erased first, and a crash came in between.
#[test]
fn half_an_erased_record_is_no_record() {
    let failure = find(Bug::EraseFromTail);
    assert!(failure.what.contains("of a swap record says"), "{failure}");
}

/// Regression: a restarted holder returned a lease of its earlier incarnation, whose write was in
/// flight.
#[test]
fn nobody_gives_back_the_leases_of_the_dead() {
    let failure = find(Bug::AnswerForTheDead);
    assert!(failure.what.contains("a one-sided operation"), "{failure}");
}

/// Regression: the metadata server answered that a change which its disk had refused was not made.
/// After its restart some of it was durable.
#[test]
fn what_a_failing_disk_refused_may_be_there_all_the_same() {
    let failure = find(Bug::BelieveTheStore);
    assert!(failure.what.contains("no order explains"), "{failure}");
}

/// Regression: each answer to a question about a page triggered further questions.
#[test]
fn questions_do_not_multiply() {
    let failure = find(Bug::AskAtEachAnswer);
    assert!(failure.what.contains("talks without end"), "{failure}");
}

/// Regression: a client was stopped in a write to a page that moved. The swap was aborted. The next
/// swap counted only clients that had entered the live page as writers, so its copy lacked what
/// that client stored then.
#[test]
fn who_writes_since_an_earlier_swap_is_waited_for() {
    let failure = find(Bug::OverlookDirtyLoggers);
    assert!(failure.what.contains("Some(Leaving)"), "{failure}");
}
