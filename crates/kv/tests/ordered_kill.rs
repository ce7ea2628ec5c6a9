//! Changes of ordered maps and sorted sets, killed or stopped at each memory operation in turn: no
//! other client is harmed, and nothing is left once the map is destroyed.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::sync::Arc;

use rackpool_kv::Table;
use rackpool_kv::ordered::{Direction, OrderedError, OrderedMaps};
use rackpool_kv::sorted_set::{Score, ScoreRange, ScoreRule, SortedSet};
use support::heap::Heap;
use support::history::Op;
use support::maps::{MAP, fat_key, keys, new_map, nodes, perform, sweep, value_of};
use support::scheduler::{Fate, scheduler};
use support::small_table;

type Maps = OrderedMaps<Arc<Heap>>;

/// The key that the victim changes, in the middle of the others.
const KEY: u64 = 1000;
const NEW: u64 = 77;

/// An operation of the victim on a map with other keys.
struct Case {
    name: &'static str,
    /// The number of other keys on each side.
    others: u64,
    op: Op,
    before: Option<u64>,
    after: Option<u64>,
}

/// A leaf holds 6 fat entries; an inner node too.
fn cases() -> Vec<Case> {
    let put =
        |name, others| Case { name, others, op: Op::Put(NEW), before: None, after: Some(NEW) };
    vec![
        put("an insertion", 1),
        Case { before: Some(5), ..put("a replacement", 2) },
        put("the root's first split", 3),
        Case { name: "a removal", others: 4, op: Op::Delete, before: Some(5), after: None },
    ]
}

fn others(case: &Case) -> Vec<u64> {
    (KEY - case.others..KEY).chain(KEY + 1..=KEY + case.others).collect()
}

/// The others' work after the victim met its fate: it splits the victim's leaf and those beside it.
fn go_on(maps: &mut Maps, others: &[u64], label: &str) {
    for direction in [Direction::Forward, Direction::Backward] {
        let mut seen = keys(maps, direction);
        seen.retain(|key| *key != KEY);
        assert_eq!(seen, others, "{label}");
    }
    for key in (2000..2012).chain(0..6) {
        perform(maps, key, Op::Put(key));
    }
    for key in others {
        perform(maps, *key, Op::Put(key + 5000));
        assert_eq!(value_of(maps, *key), Some(key + 5000), "{label}");
    }
}

/// Runs a case with this fate. Returns whether the victim met it.
fn run(case: &Case, fate: Fate, label: &str) -> bool {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut first = new_map(&table);
    let others = others(case);
    for key in &others {
        perform(&mut first, *key, Op::Put(*key));
    }
    if let Some(value) = case.before {
        perform(&mut first, KEY, Op::Put(value));
    }
    let time = scheduler(1, &[fate, Fate::Lives]).never_switching();
    heap.schedule(Arc::clone(&time));
    let victim = || {
        perform(&mut OrderedMaps::new(table.handle()), KEY, case.op);
    };
    let resolve = || heap.recover(|client| client == Some(0), || {});
    let survivor = || {
        if matches!(fate, Fate::KilledAt(_)) {
            resolve();
        }
        let seen = value_of(&mut first, KEY);
        assert!(seen == case.before || seen == case.after, "{label}: {seen:?}");
        go_on(&mut first, &others, label);
    };
    let killed = time.run(vec![Box::new(victim), Box::new(survivor)])[0];
    let mut last = OrderedMaps::new(table.handle());
    if killed {
        resolve();
    } else {
        assert_eq!(value_of(&mut last, KEY), case.after, "{label}");
    }
    let all = keys(&mut last, Direction::Forward);
    assert_eq!(all, keys(&mut last, Direction::Backward), "{label}");
    last.map(MAP).destroy().unwrap();
    assert_eq!(nodes(&table), 0, "{label}: nodes are left");
    table.destroy().unwrap();
    assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
    let (Fate::KilledAt(at) | Fate::StoppedAt(at)) = fate else { return false };
    time.operations(0) >= at
}

/// Calls `run` with each operation of the victim in turn; returns the number of operations.
fn everywhere(mut run: impl FnMut(u64) -> bool) -> u64 {
    (1..).find(|at| !run(*at)).unwrap() - 1
}

#[test]
fn a_client_killed_anywhere_harms_nobody_and_leaves_nothing_behind() {
    for case in cases() {
        let count = everywhere(|at| {
            run(&case, Fate::KilledAt(at), &format!("{} killed at {at}", case.name))
        });
        assert!(count > 4, "{}", case.name);
    }
}

#[test]
fn a_client_stopped_anywhere_finishes_later() {
    for case in cases() {
        let count = everywhere(|at| {
            run(&case, Fate::StoppedAt(at), &format!("{} stopped at {at}", case.name))
        });
        assert!(count > 4, "{}", case.name);
    }
}

/// Ascending keys, so that the victim's insertion splits a leaf, its parent, and the root above.
#[test]
fn a_split_of_three_levels_killed_or_stopped_anywhere_is_finished_by_others() {
    let filled = |count: u64| {
        let heap = Arc::new(Heap::new(4 << 20));
        let table = small_table(&heap);
        let mut maps = new_map(&table);
        for key in 0..count {
            perform(&mut maps, 2 * key, Op::Put(key));
        }
        (heap, table, maps)
    };
    // The first insertion that creates a leaf, a node above it, and two below the root.
    let (_, table, mut maps) = filled(0);
    let mut before = nodes(&table);
    let count = (0..500).find(|key| {
        perform(&mut maps, 2 * key, Op::Put(*key));
        let more = nodes(&table) - std::mem::replace(&mut before, nodes(&table));
        more == 4
    });
    let count = count.expect("no such split");
    for fate in [Fate::KilledAt as fn(u64) -> Fate, Fate::StoppedAt] {
        let all = everywhere(|at| {
            let label = format!("{:?} of a split of three levels", fate(at));
            let (heap, table, mut first) = filled(count);
            let time = scheduler(1, &[fate(at), Fate::Lives]).never_switching();
            heap.schedule(Arc::clone(&time));
            let victim = || {
                perform(&mut OrderedMaps::new(table.handle()), 2 * count, Op::Put(count));
            };
            let resolve = || heap.recover(|client| client == Some(0), || {});
            let is_killed = matches!(fate(at), Fate::KilledAt(_));
            let survivor = || {
                is_killed.then(resolve);
                for key in 0..count {
                    perform(&mut first, 2 * key + 1, Op::Put(key));
                    assert_eq!(value_of(&mut first, 2 * key), Some(key), "{label}");
                }
            };
            time.run(vec![Box::new(victim), Box::new(survivor)]);
            is_killed.then(resolve);
            let mut last = OrderedMaps::new(table.handle());
            let mut seen = keys(&mut last, Direction::Backward);
            seen.retain(|key| *key != 2 * count);
            assert_eq!(seen, (0..2 * count).collect::<Vec<_>>(), "{label}");
            assert_eq!(sweep(&mut last), 0, "{label}");
            last.map(MAP).destroy().unwrap();
            assert_eq!(nodes(&table), 0, "{label}: nodes are left");
            table.destroy().unwrap();
            assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
            time.operations(0) >= at
        });
        assert!(all > 30, "{all}");
    }
}

#[test]
fn what_a_killed_client_put_for_a_split_of_an_inner_node_is_not_taken_for_what_came_later() {
    // Appends leaves; then inserts odd keys before the last one, up to `odd`.
    let filled = |count: u64, odd: u64| {
        let heap = Arc::new(Heap::new(4 << 20));
        let table = small_table(&heap);
        let mut maps = new_map(&table);
        let odds = (2 * count - 21..odd).step_by(2);
        for key in (0..count).map(|key| 2 * key).chain(odds) {
            perform(&mut maps, key, Op::Put(key));
        }
        (heap, table, maps)
    };
    // An insertion that creates a leaf and a node above it that is not below the root.
    let found = (40..90_u64).filter_map(|count| {
        let (_, table, mut maps) = filled(count, 0);
        (2 * count - 21..2 * count - 9).step_by(2).find_map(|odd| {
            let before = nodes(&table);
            perform(&mut maps, odd, Op::Put(odd));
            (nodes(&table) == before + 2).then_some((count, odd))
        })
    });
    for (count, odd) in found.take(3) {
        let all = everywhere(|at| {
            let label = format!("killed at {at}");
            let (heap, table, _) = filled(count, odd);
            let time = scheduler(1, &[Fate::KilledAt(at), Fate::Lives]).never_switching();
            heap.schedule(Arc::clone(&time));
            let victim = || {
                perform(&mut OrderedMaps::new(table.handle()), odd, Op::Put(odd));
            };
            let survivor = || {
                heap.recover(|client| client == Some(0), || {});
                // Separators short enough to fit into the node that was to be split.
                let mut maps = OrderedMaps::new(table.handle());
                for name in 0..4_u8 {
                    maps.map(MAP).insert(&[b'z', name], &[name; 700]).unwrap();
                }
                // Another client splits the node after all, and finds the half that the victim
                // stored.
                let mut maps = OrderedMaps::new(table.handle());
                for key in 2 * count..2 * count + 60 {
                    perform(&mut maps, key, Op::Put(key));
                    assert_eq!(value_of(&mut maps, key), Some(key), "{label}");
                    let found = maps.map(MAP).get(&[b'z', 3], &mut Vec::new());
                    assert!(found.unwrap(), "{label}");
                }
            };
            time.run(vec![Box::new(victim), Box::new(survivor)]);
            let mut last = OrderedMaps::new(table.handle());
            for key in (0..count).map(|key| 2 * key).chain(2 * count..2 * count + 60) {
                assert_eq!(value_of(&mut last, key), Some(key), "{label}");
            }
            time.operations(0) >= at
        });
        assert!(all > 30, "{all}");
    }
}

#[test]
fn what_a_killed_destroy_leaves_is_swept_and_a_stopped_insertion_too() {
    let filled = || {
        let heap = Arc::new(Heap::new(4 << 20));
        let table = small_table(&heap);
        let mut maps = new_map(&table);
        for key in 0..40 {
            perform(&mut maps, key, Op::Put(key));
        }
        (heap, table, maps)
    };
    let check = |at: u64, table: Table<Arc<Heap>>, heap: &Heap, label: &str| {
        let mut maps = OrderedMaps::new(table.handle());
        let _ = sweep(&mut maps);
        if maps.map(MAP).first().is_ok() {
            assert_eq!(at, 1, "{label}");
            maps.map(MAP).destroy().unwrap();
        }
        assert_eq!(nodes(&table), 0, "{label}: nodes are left");
        table.destroy().unwrap();
        assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
    };
    let mut at = 0;
    loop {
        at += 1;
        let (heap, table, _) = filled();
        let time = scheduler(1, &[Fate::KilledAt(at)]).never_switching();
        heap.schedule(Arc::clone(&time));
        let victim = || {
            OrderedMaps::new(table.handle()).map(MAP).destroy().unwrap();
        };
        let killed = time.run(vec![Box::new(victim)])[0];
        heap.recover(|client| client == Some(0), || {});
        let root_is_there = OrderedMaps::new(table.handle()).map(MAP).first().is_ok();
        check(if root_is_there { 1 } else { at }, table, &heap, &format!("killed at {at}"));
        if !killed {
            break;
        }
    }
    let inserted = everywhere(|at| {
        let (heap, table, mut maps) = filled();
        let time = scheduler(1, &[Fate::StoppedAt(at), Fate::Lives]).never_switching();
        heap.schedule(Arc::clone(&time));
        let victim = || {
            let mut maps = OrderedMaps::new(table.handle());
            let result = maps.map(MAP).insert(&fat_key(1000), &[1; 1500]);
            assert!(matches!(result, Ok(None) | Err(OrderedError::Gone { .. })), "{result:?}");
        };
        let destroyer = || {
            maps.map(MAP).destroy().unwrap();
        };
        time.run(vec![Box::new(victim), Box::new(destroyer)]);
        check(2, table, &heap, &format!("stopped at {at}"));
        time.operations(0) >= at
    });
    assert!(inserted > 10);
}

fn set(maps: &mut Maps) -> SortedSet<'_, Arc<Heap>> {
    SortedSet::new(maps.map(MAP))
}

fn score(number: u64) -> Score {
    Score::new(number as f64).unwrap()
}

/// A sorted set shows a member at one position only: the one of its score.
#[test]
fn a_change_of_a_sorted_set_killed_or_stopped_anywhere_is_whole_or_nothing() {
    let changes: [(&str, Option<u64>, Option<u64>); 3] =
        [("added", None, Some(50)), ("moved", Some(7), Some(50)), ("removed", Some(7), None)];
    for (name, before, after) in changes {
        for fate in [Fate::KilledAt as fn(u64) -> Fate, Fate::StoppedAt] {
            let count = everywhere(|at| {
                let label = format!("{name}, {:?}", fate(at));
                let heap = Arc::new(Heap::new(4 << 20));
                let table = small_table(&heap);
                let mut first = new_map(&table);
                for number in 0..20u64 {
                    let member = [number as u8; 30];
                    set(&mut first).add(&member, score(number * 10), ScoreRule::default()).unwrap();
                }
                let before = before.map(score);
                before.map(|at| set(&mut first).add(b"it", at, ScoreRule::default()).unwrap());
                let time = scheduler(1, &[fate(at), Fate::Lives]).never_switching();
                heap.schedule(Arc::clone(&time));
                let after = after.map(score);
                let victim = || {
                    let mut maps = OrderedMaps::new(table.handle());
                    match after {
                        Some(to) => {
                            set(&mut maps).add(b"it", to, ScoreRule::default()).unwrap();
                        }
                        None => assert!(set(&mut maps).remove(b"it").unwrap()),
                    }
                };
                let resolve = || heap.recover(|client| client == Some(0), || {});
                let is_killed = matches!(fate(at), Fate::KilledAt(_));
                let survivor = || {
                    is_killed.then(resolve);
                    check_set(&mut first, &[before, after], &label);
                };
                time.run(vec![Box::new(victim), Box::new(survivor)]);
                is_killed.then(resolve);
                let mut last = OrderedMaps::new(table.handle());
                check_set(&mut last, &[before, after], &label);
                // Whatever the victim left there, the member can be used as before.
                set(&mut last).add(b"it", score(60), ScoreRule::default()).unwrap();
                check_set(&mut last, &[Some(score(60))], &label);
                assert!(set(&mut last).remove(b"it").unwrap());
                check_set(&mut last, &[None], &label);
                assert_eq!(set(&mut last).remove_by_score(&ScoreRange::ALL).unwrap(), 20);
                assert!(set(&mut last).is_empty().unwrap(), "{label}");
                last.map(MAP).destroy().unwrap();
                table.destroy().unwrap();
                assert_eq!(heap.live(), Vec::<u64>::new(), "{label}: left");
                time.operations(0) >= at
            });
            assert!(count > 10, "{name}: {count}");
        }
    }
}

/// Checks that every read finds the member "it" with one of these scores.
fn check_set(maps: &mut Maps, expected: &[Option<Score>], label: &str) {
    let mut set = set(maps);
    let seen = set.score(b"it").unwrap();
    assert!(expected.contains(&seen), "{label}: {seen:?}");
    for reverse in [false, true] {
        let mut members = set.by_score(&ScoreRange::ALL, reverse, 0, u64::MAX).unwrap();
        assert_eq!(members.len() as u64, set.len().unwrap(), "{label}");
        members.retain(|(member, _)| member == b"it");
        let places: Vec<Score> = members.into_iter().map(|(_, score)| score).collect();
        assert_eq!(places, Vec::from_iter(seen), "{label}");
    }
}
