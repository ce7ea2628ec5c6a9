//! The steps of retired objects.

use std::time::Duration;

use rackpool_model::GlobalAddr;
use rackpool_proto::Time;
use rackpool_proto::retirement::{Retirements, SCAN};

const MS: Duration = Duration::from_millis(1);

fn addr(number: u64) -> GlobalAddr {
    GlobalAddr::from_raw(number * 64)
}

fn at(ms: u32) -> Time {
    Time::ZERO.after(MS * ms)
}

/// Looks at what is due; returns the objects that are free. `None`: nothing was due.
fn look(retired: &mut Retirements, now: Time, pinned: &[u64]) -> Option<Vec<GlobalAddr>> {
    let scan = retired.begin_scan(now)?;
    Some(retired.scanned(now, scan, |object| pinned.iter().any(|number| addr(*number) == object)))
}

#[test]
fn what_no_pin_names_is_free_after_one_scan() {
    let mut retired = Retirements::default();
    assert_eq!((retired.deadline(), look(&mut retired, at(0), &[])), (None, None));
    retired.retired(addr(1));
    retired.retired(addr(2));
    assert_eq!(retired.deadline(), Some(Time::ZERO), "at once");
    assert_eq!(look(&mut retired, at(5), &[7]), Some(vec![addr(1), addr(2)]));
    assert!(retired.is_empty() && retired.deadline().is_none());
}

#[test]
fn what_a_pin_names_is_looked_at_again_less_and_less_often() {
    let mut retired = Retirements::default();
    retired.retired(addr(1));
    let mut now = 3;
    for wait in [10, 20, 40, 80, 100, 100] {
        assert_eq!(look(&mut retired, at(now), &[1]), Some(vec![]));
        assert_eq!(retired.deadline(), Some(at(now + wait)));
        assert_eq!(look(&mut retired, at(now + wait - 1), &[]), None, "not before its time");
        now += wait;
    }
    assert_eq!(look(&mut retired, at(now + 50), &[]), Some(vec![addr(1)]));
    assert!(retired.is_empty());
}

#[test]
fn a_new_object_does_not_wait_for_those_that_are_pinned() {
    let mut retired = Retirements::default();
    retired.retired(addr(1));
    assert_eq!(look(&mut retired, at(0), &[1]), Some(vec![]));
    retired.retired(addr(2));
    assert_eq!(retired.len(), 2);
    assert_eq!(look(&mut retired, at(1), &[1]), Some(vec![addr(2)]), "only the new one was due");
    assert_eq!(retired.deadline(), Some(at(10)));
}

/// The shell frees the objects of a scan without serving requests in between.
#[test]
fn a_scan_has_a_bound_and_the_next_one_follows_at_once() {
    let mut retired = Retirements::default();
    let all = 2 * SCAN as u64 + 3;
    (1..=all).for_each(|number| retired.retired(addr(number)));
    let mut free = Vec::new();
    for expected in [SCAN, SCAN, 3] {
        let scan = retired.begin_scan(at(0)).unwrap();
        assert_eq!(scan.objects().count(), expected);
        free.extend(retired.scanned(at(0), scan, |_| false));
    }
    assert_eq!(free, (1..=all).map(addr).collect::<Vec<_>>());
    assert!(retired.is_empty());
}

/// Pinned objects that are due take part in each scan, however many new ones there are.
#[test]
fn new_objects_do_not_keep_pinned_ones_waiting() {
    let mut retired = Retirements::default();
    retired.retired(addr(1));
    assert_eq!(look(&mut retired, at(0), &[1]), Some(vec![]));
    (2..4 + SCAN as u64).for_each(|number| retired.retired(addr(number)));
    let free = look(&mut retired, at(10), &[]).unwrap();
    assert_eq!((free.first(), free.len()), (Some(&addr(1)), SCAN));
}
