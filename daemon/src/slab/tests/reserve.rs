//! Tests of frames without memory.

use std::time::{Duration, Instant};

use super::*;

const PAGE: u64 = 64 << 10;

#[test]
fn only_frames_that_have_memory_are_given_away() {
    let mut fixture = Fixture::new();
    fixture.slab.reserve_on_demand();
    assert_eq!((fixture.slab.free_frames(), fixture.alloc(64)), (FRAMES, None));
    assert_eq!(fixture.slab.spare(), None, "no page comes into a frame without memory");
    let ordered = fixture.slab.order_for(64, false);
    assert!(!ordered.is_empty() && fixture.slab.is_reserving());
    assert!(!fixture.slab.order_for(64, false).iter().any(|frame| ordered.contains(frame)));
    assert_eq!(fixture.alloc(64), None);
    fixture.slab.reserved(ordered[0], false);
    assert_eq!(fixture.alloc(64), None, "there was no memory");
    fixture.slab.reserved(ordered[1], true);
    assert!(fixture.alloc(64).is_some());
    assert_eq!(fixture.slab.free_frames(), FRAMES - 1);
}

#[test]
fn what_a_run_lacks_is_reserved() {
    let mut fixture = Fixture::new();
    fixture.slab.reserve_on_demand();
    let stock = fixture.slab.order_stock(2);
    stock.iter().for_each(|frame| fixture.slab.reserved(*frame, true));
    assert!(!fixture.slab.lacks_stock(2));
    let rest = fixture.slab.order_for(5 * PAGE, false);
    assert_eq!(rest.len(), 3);
    rest.iter().for_each(|frame| fixture.slab.reserved(*frame, true));
    assert!(fixture.alloc(5 * PAGE).is_some());
    assert!(fixture.slab.order_for(99 * PAGE, false).is_empty(), "more than there are");
}

#[test]
fn frames_that_are_free_for_long_are_given_back_but_for_the_stock() {
    let mut fixture = Fixture::new();
    let long = Duration::from_secs(5);
    let start = Instant::now();
    assert!(fixture.slab.free_for(start, long, 4, 99).is_empty());
    let used = fixture.alloc(PAGE).unwrap();
    let due = fixture.slab.free_for(start + long, long, 4, 99);
    assert_eq!(due.len(), FRAMES as usize - 1 - 4);
    let given = fixture.slab.order_release(&due);
    assert_eq!(given.len(), due.len());
    assert_eq!(fixture.slab.free_frames(), FRAMES - 1);
    given.iter().for_each(|frame| fixture.slab.reserved(*frame, false));
    fixture.free(used).unwrap();
    fixture.slab.close_empty_pages().unwrap();
    fixture.drain();
    let again = fixture.slab.free_for(start + long, long, 4, 99);
    assert!(again.len() <= 1, "it was used meanwhile: {again:?}");
    assert!(fixture.alloc(12 * PAGE).is_none(), "what was given back has no memory");
}
