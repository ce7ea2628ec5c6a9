//! Clients of a sorted set that are switched, stopped and killed at every memory operation: no
//! change of a score is lost, and each member is at the position of its score.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rackpool_kv::ordered::OrderedMaps;
use rackpool_kv::sorted_set::{Score, ScoreOutcome, ScoreRange, ScoreRule, SortedSet};
use support::heap::Heap;
use support::interleaving::{Client, Replay, scheduler, seeds};
use support::maps::{MAP, new_map};
use support::scheduler::Fate;
use support::small_table;

const ROUNDS: u64 = 4;
const STAYS: u8 = 20;

fn score(number: u64) -> Score {
    Score::new(number as f64).unwrap()
}

/// Checks that a walk sees each member that no client changes exactly once, in order.
fn check_stays(set: &mut SortedSet<'_, Arc<Heap>>, reverse: bool) {
    let mut seen = set.by_score(&ScoreRange::ALL, reverse, 0, u64::MAX).unwrap();
    seen.retain(|(member, _)| member.len() == 30);
    if reverse {
        seen.reverse();
    }
    let stays = (0..STAYS).map(|number| (vec![number; 30], score(u64::from(number))));
    assert_eq!(seen, stays.collect::<Vec<_>>());
}

fn run(seed: u64, fates: &[Fate]) {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut first = new_map(&table);
    for number in 0..STAYS {
        let mut set = SortedSet::new(first.map(MAP));
        set.add(&[number; 30], score(u64::from(number)), ScoreRule::default()).unwrap();
    }
    let _replay = Replay(seed);
    let time = scheduler(seed, fates, 0);
    let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut clients: Vec<Client<'_>> = Vec::new();
    for number in 0..fates.len() as u64 {
        let (table, begun, done) = (&table, &begun, &done);
        clients.push(Box::new(move || {
            let mut maps = OrderedMaps::new(table.handle());
            let mut set = SortedSet::new(maps.map(MAP));
            for round in 0..ROUNDS {
                begun.fetch_add(1, Ordering::Relaxed);
                let outcome = set.increment(b"counter", score(1), ScoreRule::default()).unwrap();
                assert!(
                    matches!(outcome, ScoreOutcome::Added(_) | ScoreOutcome::Changed(_)),
                    "{outcome:?}"
                );
                done.fetch_add(1, Ordering::Relaxed);
                // A member that is added and removed, with scores that recur.
                match (seed + number + round) % 3 {
                    0 => drop(set.remove(b"guest").unwrap()),
                    place => {
                        set.add(b"guest", score(place * 7), ScoreRule::default()).unwrap();
                    }
                }
                if (seed + round).is_multiple_of(3) {
                    check_stays(&mut set, number.is_multiple_of(2));
                }
            }
        }));
    }
    support::interleaving::run(&heap, &time, clients, || {});
    let label = format!("seed {seed} {fates:?}");
    let mut last = OrderedMaps::new(table.handle());
    let mut set = SortedSet::new(last.map(MAP));
    check_stays(&mut set, false);
    let counter = set.score(b"counter").unwrap().map_or(0.0, Score::get);
    let counted = done.into_inner() as f64..=begun.into_inner() as f64;
    assert!(counted.contains(&counter), "{label}: {counter} of {counted:?}");
    let all = set.by_score(&ScoreRange::ALL, false, 0, u64::MAX).unwrap();
    assert_eq!(all.len() as u64, set.len().unwrap(), "{label}: {all:?}");
    for (member, at) in &all {
        assert_eq!(set.score(member).unwrap(), Some(*at), "{label}");
    }
    set.into_map().destroy().unwrap();
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
}

#[test]
fn no_increment_is_lost_and_every_member_stands_at_its_score() {
    for seed in seeds(15) {
        run(seed, &[Fate::Lives; 3]);
    }
}

#[test]
fn stopped_and_killed_clients_leave_every_member_at_its_score() {
    for seed in seeds(15) {
        let at = seed.wrapping_mul(97) % 500 + 1;
        let fate = if seed % 2 == 0 { Fate::StoppedAt(at) } else { Fate::KilledAt(at) };
        run(seed, &[fate, Fate::Lives, Fate::Lives]);
    }
}
