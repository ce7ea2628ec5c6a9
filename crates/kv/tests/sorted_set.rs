//! Sorted sets, small and large, against a model; and bytes that are not a set.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use rackpool_kv::ordered::{MapId, OrderedError, OrderedMaps};
use rackpool_kv::sorted_set::{
    Existing, Score, ScoreOrder, ScoreOutcome, ScoreRange, ScoreRule, Scored, SmallSet, SortedSet,
};
use support::heap::Heap;
use support::small_table;

#[derive(Clone, Debug)]
enum Step {
    Add(u8, f64, ScoreRule),
    Increment(u8, f64, ScoreRule),
    Remove(u8),
    Look(u8),
    ByScore(ScoreRange, bool, u64, u64),
    ByIndex(i64, i64, bool),
    RemoveByScore(ScoreRange),
}

fn any_score() -> impl Strategy<Value = f64> {
    prop_oneof![
        5 => (-4..4i8).prop_map(|score| f64::from(score) / 2.0),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
        1 => any::<f64>().prop_filter("a number", |score| !score.is_nan()),
    ]
}

fn any_rule() -> impl Strategy<Value = ScoreRule> {
    let existing = prop_oneof![
        4 => Just(Existing::Any), 1 => Just(Existing::OnlyNew), 1 => Just(Existing::OnlyOld),
    ];
    let order = prop_oneof![4 => Just(ScoreOrder::Any), 1 => Just(ScoreOrder::Greater), 1 => Just(ScoreOrder::Less)];
    (existing, order).prop_map(|(existing, order)| ScoreRule { existing, order })
}

fn any_range() -> impl Strategy<Value = ScoreRange> {
    let bound = || {
        (any_score(), 0..3u8).prop_map(|(at, kind)| match kind {
            0 => Bound::Unbounded,
            1 => Bound::Included(score(at)),
            _ => Bound::Excluded(score(at)),
        })
    };
    (bound(), bound()).prop_map(|(min, max)| ScoreRange { min, max })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<u8>(), any_score(), any_rule()).prop_map(|(m, s, r)| Step::Add(m, s, r)),
        3 => (any::<u8>(), any_score(), any_rule()).prop_map(|(m, s, r)| Step::Increment(m, s, r)),
        2 => any::<u8>().prop_map(Step::Remove),
        2 => any::<u8>().prop_map(Step::Look),
        2 => (any_range(), any::<bool>(), 0..9u64, 0..300u64)
            .prop_map(|(range, back, offset, limit)| Step::ByScore(range, back, offset, limit)),
        1 => (-300..300i64, -300..300i64, any::<bool>())
            .prop_map(|(start, stop, back)| Step::ByIndex(start, stop, back)),
        1 => any_range().prop_map(Step::RemoveByScore),
    ]
}

fn score(score: f64) -> Score {
    Score::new(score).unwrap()
}

fn member(number: u8) -> Vec<u8> {
    [&b"m\0\0"[..usize::from(number) % 4], &[number / 3; 40][..usize::from(number) % 40]].concat()
}

type Model = HashMap<Vec<u8>, f64>;

/// `ZADD` as in Redis's documentation.
fn set(model: &mut Model, member: Vec<u8>, to: f64, adds: bool, rule: ScoreRule) -> ScoreOutcome {
    let Some(old) = model.get(&member).copied() else {
        if rule.existing == Existing::OnlyOld {
            return ScoreOutcome::Refused;
        }
        model.insert(member, to);
        return ScoreOutcome::Added(score(to));
    };
    let new = if adds { old + to } else { to };
    if rule.existing == Existing::OnlyNew {
        return ScoreOutcome::Refused;
    }
    let Some(new_score) = Score::new(new) else { return ScoreOutcome::NotANumber };
    if (rule.order == ScoreOrder::Greater && new <= old)
        || (rule.order == ScoreOrder::Less && new >= old)
    {
        return ScoreOutcome::Refused;
    }
    model.insert(member, new);
    if new == old { ScoreOutcome::Same(new_score) } else { ScoreOutcome::Changed(new_score) }
}

fn sorted(model: &Model, range: &ScoreRange, reverse: bool) -> Vec<Scored> {
    let members = model.iter().map(|(member, at)| (member.clone(), score(*at)));
    let mut members: Vec<_> = members.filter(|(_, score)| range.contains(*score)).collect();
    members.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    if reverse {
        members.reverse();
    }
    members
}

fn by_index(model: &Model, start: i64, stop: i64, reverse: bool) -> Vec<Scored> {
    let members = sorted(model, &ScoreRange::ALL, reverse);
    let len = members.len() as i64;
    let at = |at: i64| if at < 0 { at + len } else { at };
    let within = |index: i64| index >= at(start) && index <= at(stop);
    (0..len).zip(members).filter(|(index, _)| within(*index)).map(|(_, scored)| scored).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn both_kinds_behave_like_a_sorted_set(steps in vec(step(), 1..400)) {
        let heap = Arc::new(Heap::new(32 << 20));
        let table = small_table(&heap);
        let mut maps = OrderedMaps::new(table.handle());
        let id = MapId::random();
        maps.create(id, b"owner").unwrap();
        let mut large = SortedSet::new(maps.map(id));
        let mut small = SmallSet::default();
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Add(number, to, rule) => {
                    let expected = set(&mut model, member(number), to, false, rule);
                    prop_assert_eq!(large.add(&member(number), score(to), rule).unwrap(), expected);
                    prop_assert_eq!(small.add(&member(number), score(to), rule), expected);
                }
                Step::Increment(number, by, rule) => {
                    let expected = set(&mut model, member(number), by, true, rule);
                    let outcome = large.increment(&member(number), score(by), rule).unwrap();
                    prop_assert_eq!(outcome, expected);
                    prop_assert_eq!(small.increment(&member(number), score(by), rule), expected);
                }
                Step::Remove(number) => {
                    let expected = model.remove(&member(number)).is_some();
                    prop_assert_eq!(large.remove(&member(number)).unwrap(), expected);
                    prop_assert_eq!(small.remove(&member(number)), expected);
                }
                Step::Look(number) => {
                    let member = member(number);
                    let expected = model.get(&member).map(|at| score(*at));
                    prop_assert_eq!(large.score(&member).unwrap(), expected);
                    prop_assert_eq!(small.score(&member), expected);
                    for back in [false, true] {
                        let all = sorted(&model, &ScoreRange::ALL, back);
                        let rank = all.iter().position(|scored| scored.0 == member);
                        let rank = rank.map(|rank| rank as u64);
                        prop_assert_eq!(large.rank(&member, back).unwrap(), rank);
                        prop_assert_eq!(small.rank(&member, back), rank);
                    }
                }
                Step::ByScore(range, back, offset, limit) => {
                    let all = sorted(&model, &range, back);
                    prop_assert_eq!(large.count(&range).unwrap(), all.len() as u64);
                    prop_assert_eq!(small.count(&range), all.len() as u64);
                    let some: Vec<_> =
                        all.into_iter().skip(offset as usize).take(limit as usize).collect();
                    prop_assert_eq!(&large.by_score(&range, back, offset, limit).unwrap(), &some);
                    prop_assert_eq!(&small.by_score(&range, back, offset, limit), &some);
                }
                Step::ByIndex(start, stop, back) => {
                    let expected = by_index(&model, start, stop, back);
                    prop_assert_eq!(&large.by_index(start, stop, back).unwrap(), &expected);
                    prop_assert_eq!(&small.by_index(start, stop, back), &expected);
                }
                Step::RemoveByScore(range) => {
                    let before = model.len();
                    model.retain(|_, at| !range.contains(score(*at)));
                    let removed = (before - model.len()) as u64;
                    prop_assert_eq!(large.remove_by_score(&range).unwrap(), removed);
                    prop_assert_eq!(small.remove_by_score(&range), removed);
                }
            }
            prop_assert_eq!(large.len().unwrap(), model.len() as u64);
            let mut bytes = Vec::new();
            small.encode(&mut bytes);
            prop_assert!(SmallSet::decode(&bytes).is_some_and(|read| read == small));
        }
        // Each member has one truth and one order entry; nothing else is left.
        let mut map = large.into_map();
        let entries = map.count(&rackpool_kv::ordered::KeyRange::ALL).unwrap();
        prop_assert_eq!(entries, 2 * model.len() as u64);
        map.destroy().unwrap();
        table.destroy().unwrap();
        prop_assert_eq!(heap.live(), Vec::<u64>::new());
    }

    #[test]
    fn any_bytes_are_a_small_set_or_refused(bytes in vec(any::<u8>(), 0..60)) {
        if let Some(set) = SmallSet::decode(&bytes) {
            let mut again = Vec::new();
            set.encode(&mut again);
            prop_assert_eq!(SmallSet::decode(&again), Some(set));
        }
    }
}

#[test]
fn small_sets_say_when_they_have_become_large() {
    let mut set = SmallSet::default();
    for number in 0..64u8 {
        assert!(set.fits());
        set.add(&[number], score(1.0), ScoreRule::default());
    }
    assert!(set.fits());
    set.add(b"one more", score(1.0), ScoreRule::default());
    assert!(!set.fits());
    let mut set = SmallSet::default();
    set.add(&[1; 1100], score(1.0), ScoreRule::default());
    assert!(!set.fits());
}

#[test]
fn bytes_that_another_program_wrote_for_a_large_set_are_errors() {
    let heap = Arc::new(Heap::new(1 << 20));
    let table = small_table(&heap);
    let mut maps = OrderedMaps::new(table.handle());
    let id = MapId::random();
    maps.create(id, b"owner").unwrap();
    maps.map(id).insert(b"\0member", b"no score").unwrap();
    maps.map(id).insert(b"\x01no place", &[1]).unwrap();
    let mut set = SortedSet::new(maps.map(id));
    assert!(set.score(b"member").unwrap_err().to_string().contains("damaged"));
    assert!(set.by_index(0, 5, false).unwrap_err().to_string().contains("damaged"));
}

#[test]
fn a_walk_ends_at_its_limit_and_changes_work_without_one() {
    let heap = Arc::new(Heap::new(4 << 20));
    let table = small_table(&heap);
    let mut maps = OrderedMaps::new(table.handle());
    let id = MapId::random();
    maps.create(id, b"").unwrap();
    for member in 0..2000_u32 {
        let mut set = SortedSet::new(maps.map(id));
        set.add(&member.to_be_bytes(), score(f64::from(member)), ScoreRule::default()).unwrap();
    }
    let limited = |maps: &mut OrderedMaps<_>, leaves| {
        maps.limit_leaves(leaves);
        let mut set = SortedSet::new(maps.map(id));
        let added = set.add(b"one more", score(0.0), ScoreRule::default()).unwrap();
        assert!(matches!(added, ScoreOutcome::Added(_)), "one element needs no walk");
        assert!(set.remove(b"one more").unwrap());
        [
            set.len(),
            set.count(&ScoreRange::ALL),
            set.by_index(0, -1, true).map(|all| all.len() as u64),
        ]
    };
    for walk in limited(&mut maps, Some(8)) {
        assert!(matches!(walk, Err(OrderedError::LeafLimit { map }) if map == id), "{walk:?}");
    }
    // The limit is for all walks together, not for each.
    maps.limit_leaves(Some(8));
    let first = |maps: &mut OrderedMaps<_>| SortedSet::new(maps.map(id)).by_index(0, 9, false);
    let walks = (0..10).take_while(|_| first(&mut maps).is_ok()).count();
    assert!((4..=8).contains(&walks), "{walks} walks");
    for walk in limited(&mut maps, None) {
        assert_eq!(walk.unwrap(), 2000);
    }
    maps.limit_leaves(Some(0));
    assert!(maps.map(id).destroy().is_ok(), "what destroys a map is no walk");
}
