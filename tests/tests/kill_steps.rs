//! Clients and daemons killed at chosen instructions of their operations: nothing leaks, no object
//! is handed out twice, nothing is torn. `cargo x kill-steps` runs longer campaigns.

use std::time::Duration;

use rackpool_tests::pool::TestPool;
use rackpool_tests::steps::campaign::{Campaign, Report};
use rackpool_tests::steps::daemons;
use rackpool_tests::steps::plan::operations;
use rackpool_tests::steps::tracer::{At, Means, Victim, may_trace};

/// Distinct instructions of the product at which each operation is killed, from each rack.
const LEAST: usize = 3;

fn has_been_everywhere(report: &Report, least: usize) {
    let mut count = 0;
    for (name, _, racks) in operations() {
        for rack in racks {
            count += 1;
            let found = report.coverage.iter().find(|operation| operation.key == (name, *rack));
            let found = found.unwrap_or_else(|| panic!("{name} was left out:\n{report}"));
            assert!(found.rounds > least, "{name} of rack {rack} was hardly killed:\n{report}");
            assert!(found.hit >= least, "{name} of rack {rack} at few instructions:\n{report}");
        }
    }
    assert_eq!(report.coverage.len(), count);
}

#[test]
fn a_client_killed_at_any_step_of_any_operation_harms_nobody_and_leaves_nothing() {
    let means = may_trace();
    let least = if means == Means::Steps { LEAST } else { 0 };
    // Three quarters of the kills, give or take ten, are at an instruction of their own. The rest
    // are in libraries, in the kernel, or at an instruction that was hit before.
    let report = Campaign { rounds: 640, least, seed: 1, means }.run();
    has_been_everywhere(&report, least);
    if means == Means::Steps {
        assert!(report.distinct >= 300, "hardly any instruction was one to die at:\n{report}");
    }
}

#[test]
fn a_client_killed_at_any_time_inside_any_operation_harms_nobody_and_leaves_nothing() {
    let report = Campaign { rounds: 144, least: 0, seed: 2, means: Means::Times }.run();
    has_been_everywhere(&report, 0);
}

/// Regression: the client stayed stopped where tracing is allowed, so clients killed at a random
/// time had done nothing.
#[test]
fn a_client_that_is_let_run_for_a_time_gets_on() {
    let pool = TestPool::small();
    let arguments = ["ping", "64", "1", "0", "0"].map(str::to_owned);
    let mut victim = Victim::start(pool.dir(), 0, &arguments);
    assert!(victim.wait_for_mark().is_empty());
    assert_eq!(victim.run_for(Duration::from_secs(1)), At::Mark);
}

#[test]
fn a_daemon_killed_at_any_step_while_it_serves_loses_and_doubles_nothing() {
    let report = daemons::run(28, 1);
    if may_trace() == Means::Steps {
        assert!(report.traced && report.distinct >= 10, "hardly any instruction:\n{report}");
    }
}
