//! Random histories of the metadata machine, with failing commits and kills at any point, checked
//! against a model that tracks what is durable and what was answered.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod history;

use history::{Pool, Step, any_step};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold_in_every_history(steps in prop::collection::vec(any_step(), 1..120)) {
        let mut pool = Pool::new();
        for step in &steps {
            pool.step(step);
        }
        // Requests of the last boot are answered once the store works again.
        for _ in 0..5 {
            pool.step(&Step::Commit);
        }
        pool.check_nothing_is_unanswered();
    }
}

#[test]
fn histories_hold_swaps() {
    let mut runner = TestRunner::deterministic();
    let histories = prop::collection::vec(any_step(), 120);
    let mut swaps = 0;
    for _ in 0..100 {
        let mut pool = Pool::new();
        for step in histories.new_tree(&mut runner).unwrap().current() {
            pool.step(&step);
        }
        swaps += pool.swaps();
    }
    assert!(swaps > 10, "{swaps} swaps in 100 histories");
}
