//! Clients and daemons killed at chosen instructions of their operations: nothing leaks, no object
//! is handed out twice, nothing is torn. `cargo x kill-steps` runs longer campaigns.

use std::time::Duration;

use rackpool_tests::client::program;
use rackpool_tests::pool::TestPool;
use rackpool_tests::steps::campaign::{Campaign, Report};
use rackpool_tests::steps::daemons;
use rackpool_tests::steps::executable::Executable;
use rackpool_tests::steps::plan::operations;
use rackpool_tests::steps::symbols::Symbols;
use rackpool_tests::steps::tracer::{At, Means, Target, Victim, may_trace};

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
    let report = Campaign { rounds: 640, least, seed: 1, means, is_one_rack: false }.run();
    has_been_everywhere(&report, least);
    if means == Means::Steps {
        assert!(report.distinct >= 300, "hardly any instruction was one to die at:\n{report}");
    }
}

#[test]
fn a_client_killed_at_any_time_inside_any_operation_harms_nobody_and_leaves_nothing() {
    let (means, is_one_rack) = (Means::Times, false);
    let report = Campaign { rounds: 144, least: 0, seed: 2, means, is_one_rack }.run();
    has_been_everywhere(&report, 0);
}

#[test]
fn a_client_killed_at_any_step_in_the_part_of_another_daemon_of_its_rack_harms_nobody() {
    let means = may_trace();
    let report = Campaign { rounds: 160, least: 0, seed: 3, means, is_one_rack: true }.run();
    has_been_everywhere(&report, 0);
}

/// Regression: the client stayed stopped where tracing is allowed, so clients killed at a random
/// time had done nothing.
#[test]
fn a_client_that_is_let_run_for_a_time_gets_on() {
    let pool = TestPool::small();
    let arguments = ["ping", "64", "1", "0", "0"].map(str::to_owned);
    let client = Executable::open(&program("rackpool-test-client"));
    let mut victim = Victim::start(&client, pool.dir(), 0, &arguments);
    assert!(victim.wait_for_mark().is_empty());
    assert_eq!(victim.run_for(Duration::from_secs(1)), At::Mark);
}

/// Regression: a build replaced the client in the middle of a campaign. Breakpoints at offsets of
/// the old program changed instructions of the new one, which ended by SIGSEGV.
#[test]
fn a_client_that_is_built_anew_while_it_is_traced_is_started_as_it_was() {
    let pool = TestPool::small();
    let built = program("rackpool-test-client");
    // A link of this test's own to the client's file. A build, too, removes the link.
    let folder = tempfile::tempdir_in(built.parent().expect("a folder")).expect("a folder");
    let path = folder.path().join("client");
    std::fs::hard_link(&built, &path).expect("a link in one file system");
    let client = Executable::open(&path);
    let symbols = Symbols::of(&client.path());
    let start = || {
        let arguments = ["ping", "64", "1", "0", "0"].map(str::to_owned);
        let mut victim = Victim::start(&client, pool.dir(), 0, &arguments);
        assert!(victim.wait_for_mark().is_empty());
        victim
    };
    let mut before = start();
    std::fs::remove_file(&path).expect("a file to remove");
    std::fs::write(&path, "another build").expect("a folder to write to");
    let mut after = start();
    if may_trace() == Means::Times {
        assert_eq!(after.run_for(Duration::from_secs(1)), At::Mark);
        return;
    }
    while !symbols.is_product(before.at()) {
        assert_eq!(before.step(), At::Step);
    }
    let at = before.at();
    assert_eq!(after.run_to(Target { step: 0, at, times: 1, more: 0 }), At::Step);
    assert_eq!(after.at(), at);
}

#[test]
fn a_daemon_killed_at_any_step_while_it_serves_loses_and_doubles_nothing() {
    let report = daemons::run(28, 1);
    if may_trace() == Means::Steps {
        assert!(report.traced && report.distinct >= 10, "hardly any instruction:\n{report}");
    }
}
