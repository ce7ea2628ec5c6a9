//! Programs of all kinds killed under load leave no more memory in use than the same load without
//! kills.

use std::sync::Arc;
use std::time::Duration;

use rackpool_kv::Table;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::leaks::{Campaign, Kind, run};
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service};

/// `cargo x leaks` runs longer campaigns.
#[test]
fn kills_of_every_kind_leave_no_more_in_use_than_a_run_without_kills() {
    let report = run(&Campaign {
        time: Duration::from_secs(8),
        kill_every: Duration::from_millis(400),
        seed: 1,
        kinds: Kind::ALL.to_vec(),
    });
    assert!(report.kills() > 0, "{report}");
    assert!(!report.has_failed(), "{report}");
}

#[test]
fn maps_that_a_killed_instance_has_left_go_soon_after_the_next_has_started() {
    let pool = TestPool::start(32 << 20, 256 << 10);
    let mut service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    for hash in 0..20 {
        let name = format!("hash {hash}");
        let mut words = vec!["HSET".to_owned(), name.clone()];
        words.extend((0..400).flat_map(|field| [format!("field {field}"), "v".repeat(40)]));
        assert_eq!(wire.ask(&words), Answer::Integer(400));
        // The sweep frees the map of its elements.
        assert_eq!(wire.ask(&["SET", &name, "in its place"]), Answer::ok());
    }
    service.kill();
    let own = Arc::new(pool.open(0));
    let nodes = own.root("kv/nodes").expect("a pool that answers").expect("a table");
    let mut nodes = Table::open(Arc::clone(&own), nodes).expect("a table").handle();
    service.restart();
    wait_until("the maps go", TIMEOUT, || nodes.count().expect("a whole table") == 0);
}
