//! Small traces whose outcome can be computed by hand.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeMap;
use std::time::Duration;

use rackpool_model::{Access, HeatRules, PageId, RackId};
use rackpool_trace::{Accessed, Costs, Outcome, Policy, RackFrames, ReplayError, Trace, replay};

const MS: u64 = 1_000_000;

fn pool(free: u32) -> Trace {
    let rack =
        |rack, first| RackFrames { rack: RackId(rack), first: PageId(first), frames: 8, free };
    Trace {
        page_bytes: 65536,
        racks: vec![rack(0, 1), rack(1, 9)],
        homes: BTreeMap::new(),
        accesses: Vec::new(),
    }
}

fn uses(trace: &mut Trace, rack: u16, page: u32, from_ms: u64, count: u64) {
    let access = Access::Write;
    let one =
        |n| Accessed { at_ns: (from_ms + n) * MS, page: PageId(page), rack: RackId(rack), access };
    trace.accesses.extend((0..count).map(one));
    trace.accesses.sort_by_key(|access| access.at_ns);
}

fn run(trace: &Trace, policy: Policy) -> Outcome {
    replay(trace, &policy, &Costs::DEFAULT).unwrap()
}

#[test]
fn a_page_that_one_rack_alone_uses_moves_there_once() {
    let mut trace = pool(4);
    uses(&mut trace, 0, 9, 10, 100);
    let outcome = run(&trace, Policy::DEFAULT);
    assert_eq!((outcome.swaps, outcome.moves, outcome.returns), (1, 1, 0), "{outcome:?}");
    // The fourth access makes the page hotter than 4. Accesses are local once the copy, which takes
    // 21 us, is done.
    assert_eq!((outcome.accesses, outcome.local), (100, 96), "{outcome:?}");
    assert_eq!(outcome.bytes_moved, 65536, "a free frame came for it, nothing had to be copied");
    assert_eq!(outcome.refused.all(), 0);
    assert_eq!(outcome.time, 96 * Costs::DEFAULT.local + 4 * Costs::DEFAULT.remote);
    let without = run(&trace, Policy { swaps: false, ..Policy::DEFAULT });
    assert_eq!((without.local, without.swaps), (0, 0));
    assert!(without.time > outcome.time);
}

#[test]
fn without_free_frames_to_give_a_cold_page_goes_the_other_way() {
    let mut trace = pool(1);
    uses(&mut trace, 0, 9, 10, 100);
    let outcome = run(&trace, Policy::DEFAULT);
    assert_eq!((outcome.swaps, outcome.local), (1, 96), "{outcome:?}");
    assert_eq!(outcome.bytes_moved, 2 * 65536);
}

#[test]
fn a_page_that_is_hotter_at_home_stays() {
    let mut trace = pool(4);
    uses(&mut trace, 1, 9, 0, 400);
    uses(&mut trace, 0, 9, 100, 100);
    let outcome = run(&trace, Policy::DEFAULT);
    assert_eq!((outcome.moves, outcome.local), (0, 400), "{outcome:?}");
    assert!(outcome.refused.hotter > 0 && outcome.asked >= outcome.refused.hotter);
}

#[test]
fn two_racks_that_take_turns_do_not_play_ping_pong() {
    let mut trace = pool(4);
    for turn in 0..100 {
        uses(&mut trace, u16::from(turn % 2 == 0), 9, turn * 100, 100);
    }
    let eager = HeatRules { decay: 50.0, rest: Duration::ZERO, ..HeatRules::DEFAULT };
    let swap = rackpool_proto::swap::SwapRules { pause: Duration::ZERO, ..Policy::DEFAULT.swap };
    let outcome = run(&trace, Policy { heat: eager, swap, swaps: true });
    assert!(outcome.returns > 50, "without rest it follows each turn: {outcome:?}");
    let rests = HeatRules { rest: Duration::from_secs(1), ..eager };
    let rested = run(&trace, Policy { heat: rests, swap, swaps: true });
    assert!(rested.returns < 8 && rested.refused.rests > 0, "{rested:?}");
}

#[test]
fn a_rack_without_a_frame_to_spare_asks_for_nothing() {
    let mut trace = pool(0);
    uses(&mut trace, 0, 9, 10, 100);
    let outcome = run(&trace, Policy::DEFAULT);
    assert_eq!((outcome.asked, outcome.moves, outcome.local), (0, 0, 0), "{outcome:?}");
    assert!(outcome.refused.nothing_to_offer > 0, "{outcome:?}");
}

#[test]
fn a_page_that_had_moved_before_is_found_where_it_was() {
    let mut trace = pool(4);
    trace.homes.insert(PageId(9), RackId(0));
    uses(&mut trace, 0, 9, 0, 10);
    uses(&mut trace, 1, 9, 100, 500);
    let outcome = run(&trace, Policy::DEFAULT);
    assert_eq!(outcome.moves, 1, "{outcome:?}");
    assert!(outcome.local > 10);
}

#[test]
fn rules_that_can_not_be_meant_are_refused() {
    let trace = pool(1);
    let cold = HeatRules { hot: 0.0, ..HeatRules::DEFAULT };
    let wrong = replay(&trace, &Policy { heat: cold, ..Policy::DEFAULT }, &Costs::DEFAULT);
    assert!(matches!(wrong, Err(ReplayError::Rules(_))));
    let still = Costs { copy_bytes_per_s: 0.0, ..Costs::DEFAULT };
    let wrong = replay(&trace, &Policy::DEFAULT, &still);
    assert!(matches!(wrong, Err(ReplayError::Bandwidth(_))));
}
