//! A stopped rack is cut off before the pages it writes to are used for anything else.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::time::{Duration, Instant};

use rackpool_model::FabricKind;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rackpool_tests::skip::skipped;
use rackpool_tests::wait::wait_until;

const ROUNDS: u64 = 6;
/// Half a second until a rack is cut off that does not give a lease back, and what a busy machine
/// may add.
const FENCED: Duration = Duration::from_secs(30);
/// How long bytes that were on the way have to do harm once their sender goes on.
const LATE: Duration = Duration::from_millis(300);

#[test]
fn writes_of_a_stopped_rack_do_not_land_in_pages_that_were_freed() {
    late_writes_do_not_land(FabricKind::Tcp);
}

/// Here the device goes on with what the stopped rack has posted.
#[test]
fn writes_of_a_stopped_rack_do_not_land_over_verbs() {
    // `cargo x lab` sets it; elsewhere there is no RDMA port.
    if std::env::var_os("RACKPOOL_RDMA_ADDRESS").is_none() {
        return skipped("RACKPOOL_RDMA_ADDRESS does not name the address of an RDMA port");
    }
    late_writes_do_not_land(FabricKind::Verbs);
}

fn late_writes_do_not_land(fabric: FabricKind) {
    let mut pool = TestPool::over(fabric);
    // An empty page may stay with each of the two sizes that small objects and pages have here.
    let pages = pool.status(0).frames - 2;
    let len = 32 * PAGE;
    for round in 0..ROUNDS {
        pool.wait_until_racks_serve();
        let own = pool.open(0);
        let object = own.alloc(len).unwrap();
        let addr = format!("{:x}", object.raw());
        let mut writer = pool.client(1, &["copy", &addr, &len.to_string()]);
        writer.wait_for_lines(1);
        std::thread::sleep(Duration::from_micros(700 * round));
        pool.stop_daemon(1);
        // What it has posted is on its way; nobody posts it again.
        writer.kill();
        own.free(object).unwrap();
        wait_until("the rack is cut off", FENCED, || pool.status(0).free_frames >= pages);
        let others: Vec<_> = (0..pages).map(|_| own.alloc(PAGE).unwrap()).collect();
        others.iter().for_each(|page| contents::write(&own, *page, PAGE));
        pool.resume_daemon(1);
        let began = Instant::now();
        while began.elapsed() < LATE {
            others.iter().for_each(|page| contents::check(&own, *page, PAGE));
        }
        others.iter().for_each(|page| own.free(*page).unwrap());
        own.close();
        pool.wait_allocated("all is freed", FENCED, [0, 0]);
    }
}
