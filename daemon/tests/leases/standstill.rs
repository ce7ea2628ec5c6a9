//! A daemon that was itself stopped: by its clock the other racks were silent for that time.

use rackpool_fabric::DisconnectReason;
use rackpool_model::Access;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use super::{HOME, REMOTE, Stand, location};

/// Longer than a lease.
const LONG_MS: u64 = 3_000;

/// A client looks up a page; the page's home receives the lookup and then cuts off this rack, which
/// was stopped.
fn has_stood_still() -> Stand {
    let mut stand = Stand::new();
    assert_eq!(stand.call(0, RackRequest::Translate { page: REMOTE, access: Access::Read }), None);
    stand.plane.connect(Some(HOME)).unwrap();
    stand.step(0);
    let (endpoint, _, _) = stand.request().unwrap();
    stand.plane.disconnect(endpoint, DisconnectReason::PeerGone);
    stand.step(LONG_MS);
    stand
}

#[test]
fn who_has_stood_still_takes_nobody_else_for_dead() {
    let mut stand = has_stood_still();
    assert_eq!(stand.answer(0), None, "the home lives, and can answer now");
    stand.step(100);
    stand.plane.connect(Some(HOME)).unwrap();
    stand.step(5);
    let (endpoint, call, _) = stand.request().unwrap();
    stand.reply((endpoint, call), &location(7));
    assert_eq!(stand.answer(0), Some(RackAnswer::Remote { home: HOME, usage: 9 }));
}

#[test]
fn who_has_stood_still_says_in_time_that_a_rack_does_not_answer() {
    let mut stand = has_stood_still();
    for _ in 0..19 {
        stand.step(100);
        assert_eq!(stand.answer(0), None);
    }
    stand.step(200);
    assert_eq!(stand.answer(0), Some(RackAnswer::RackUnavailable(HOME)));
}

#[test]
fn a_daemon_that_hardly_runs_keeps_its_clients_waiting_twice_at_most() {
    let mut stand = has_stood_still();
    stand.step(LONG_MS);
    assert_eq!(stand.answer(0), Some(RackAnswer::RackUnavailable(HOME)));
}
