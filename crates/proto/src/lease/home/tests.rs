use core::time::Duration;

use super::*;

const PAGE: PageId = PageId(4);
const A: EndpointToken = EndpointToken(1);
const B: EndpointToken = EndpointToken(2);
const C: EndpointToken = EndpointToken(3);

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

fn home(restarted: bool) -> LeaseHome {
    LeaseHome::new(Time::ZERO, LeaseRules::DEFAULT, LeaseId(1), restarted, Sound)
}

fn step(home: &mut LeaseHome, ms: u64, event: HomeEvent) -> Vec<HomeAction> {
    home.handle(at(ms), event);
    core::iter::from_fn(|| home.poll()).collect()
}

fn granted(home: &mut LeaseHome, ms: u64, over: EndpointToken) -> LeaseId {
    home.grant(at(ms), PAGE, over, LeaseKind::Write).unwrap().id
}

const fn of(page: PageId, endpoint: EndpointToken, lease: LeaseId, users: Users) -> Revocation {
    Revocation { page, endpoint, lease, users }
}

#[test]
fn a_page_is_clean_when_every_lease_is_back() {
    let mut home = home(false);
    let (a, b) = (granted(&mut home, 0, A), granted(&mut home, 0, B));
    let asked = [
        HomeAction::Revoke(of(PAGE, A, a, Users::Everyone)),
        HomeAction::Revoke(of(PAGE, B, b, Users::Everyone)),
    ];
    assert_eq!(step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Everyone)), asked);
    assert_eq!(
        home.grant(at(2), PAGE, A, LeaseKind::Write),
        None,
        "no new lease while the page is needed"
    );
    assert_eq!(step(&mut home, 2, HomeEvent::Returned(of(PAGE, A, a, Users::Everyone))), []);
    let clean = step(&mut home, 3, HomeEvent::Returned(of(PAGE, B, b, Users::Everyone)));
    assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
    assert_eq!(home.deadline(), None);
}

#[test]
fn a_silent_holder_is_asked_again_then_fenced_and_the_page_is_clean_when_its_endpoint_ended() {
    let mut home = home(false);
    let lease = granted(&mut home, 0, A);
    step(&mut home, 0, HomeEvent::PageNeeded(PAGE, Users::Everyone));
    assert_eq!(home.deadline(), Some(at(50)));
    let again = step(&mut home, 50, HomeEvent::DeadlinePassed);
    assert_eq!(again, [HomeAction::Revoke(of(PAGE, A, lease, Users::Everyone))]);
    assert_eq!(step(&mut home, 500, HomeEvent::DeadlinePassed), [HomeAction::Fence(A)]);
    assert_eq!(step(&mut home, 600, HomeEvent::DeadlinePassed), [], "fenced once");
    let clean = step(&mut home, 700, HomeEvent::EndpointEnded(A));
    assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
}

#[test]
fn an_old_return_does_not_end_a_newer_lease() {
    let mut home = home(false);
    let old = granted(&mut home, 0, A);
    let new = granted(&mut home, 1, A);
    step(&mut home, 2, HomeEvent::Returned(of(PAGE, A, old, Users::Everyone)));
    let asked = step(&mut home, 3, HomeEvent::PageNeeded(PAGE, Users::Everyone));
    assert_eq!(asked, [HomeAction::Revoke(of(PAGE, A, new, Users::Everyone))]);
}

#[test]
fn a_restarted_home_waits_for_the_leases_of_its_earlier_life() {
    let mut home = home(true);
    assert_eq!(step(&mut home, 0, HomeEvent::PageNeeded(PAGE, Users::Everyone)), []);
    assert_eq!(home.deadline(), Some(at(2502)), "2 s, a thousandth more, and 500 ms of flight");
    let clean = step(&mut home, 2502, HomeEvent::DeadlinePassed);
    assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
}

#[test]
fn a_lease_that_has_run_out_is_called_back_like_any_other() {
    let mut home = home(false);
    let lease = granted(&mut home, 0, A);
    let asked = step(&mut home, 60_000, HomeEvent::PageNeeded(PAGE, Users::Everyone));
    assert_eq!(
        asked,
        [HomeAction::Revoke(of(PAGE, A, lease, Users::Everyone))],
        "a rack at rest is not cut off"
    );
    let clean = step(&mut home, 60_001, HomeEvent::Returned(of(PAGE, A, lease, Users::Everyone)));
    assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
}

#[test]
fn grace_for_a_silent_holder_does_not_begin_anew_when_the_page_was_spared() {
    let mut home = home(false);
    granted(&mut home, 0, A);
    step(&mut home, 0, HomeEvent::PageNeeded(PAGE, Users::Everyone));
    step(&mut home, 100, HomeEvent::PageSpared(PAGE));
    assert_eq!(
        step(&mut home, 600, HomeEvent::PageNeeded(PAGE, Users::Everyone)),
        [HomeAction::Fence(A)]
    );
}

#[test]
fn a_page_that_is_spared_can_be_leased_again() {
    let mut home = home(false);
    granted(&mut home, 0, A);
    step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Everyone));
    assert_eq!(step(&mut home, 2, HomeEvent::PageSpared(PAGE)), []);
    assert!(home.grant(at(3), PAGE, B, LeaseKind::Write).is_some());
}

#[test]
fn when_writers_have_to_go_readers_stay_and_new_ones_may_come() {
    let mut home = home(false);
    let write = granted(&mut home, 0, A);
    let GrantedLease { id: read, kind } = home.grant(at(0), PAGE, B, LeaseKind::Read).unwrap();
    assert_eq!(kind, LeaseKind::Read);
    let asked = step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Writers));
    assert_eq!(asked, [HomeAction::Revoke(of(PAGE, A, write, Users::Writers))]);
    let most = home.grant(at(1), PAGE, C, LeaseKind::Write).map(|granted| granted.kind);
    assert_eq!(most, Some(LeaseKind::Read));
    let back = HomeEvent::Returned(of(PAGE, A, write, Users::Writers));
    assert_eq!(step(&mut home, 2, back), [HomeAction::Clean(PAGE, Users::Writers)]);
    let all = step(&mut home, 3, HomeEvent::PageNeeded(PAGE, Users::Everyone));
    assert_eq!(
        all[..2],
        [
            HomeAction::Revoke(of(PAGE, A, write, Users::Everyone)),
            HomeAction::Revoke(of(PAGE, B, read, Users::Everyone)),
        ]
    );
    assert_eq!(all.len(), 3);
}

#[test]
fn a_lease_for_reading_does_not_make_the_home_forget_one_for_writing() {
    let mut home = home(false);
    let write = granted(&mut home, 0, A);
    step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Writers));
    let read = home.grant(at(2), PAGE, A, LeaseKind::Write).unwrap().id;
    let again = step(&mut home, 51, HomeEvent::DeadlinePassed);
    assert_eq!(again, [HomeAction::Revoke(of(PAGE, A, read, Users::Writers))]);
    assert_eq!(home.deadline(), Some(at(101)));
    // The answer to the first call back is enough.
    let back = HomeEvent::Returned(of(PAGE, A, write, Users::Writers));
    assert_eq!(step(&mut home, 52, back), [HomeAction::Clean(PAGE, Users::Writers)]);
}

#[test]
fn a_copy_outlives_its_endpoint_as_long_as_its_lease() {
    for users in [Users::Writers, Users::Everyone] {
        let mut home = home(false);
        let share = LeaseKind::Share(crate::share::SharingId(1));
        let id = home.grant(at(0), PAGE, A, share).unwrap().id;
        home.grant(at(100), PAGE, B, share).unwrap();
        step(&mut home, 101, HomeEvent::PageNeeded(PAGE, users));
        // One holder returns its lease, the other does not answer: its rack may be cut off.
        step(&mut home, 102, HomeEvent::Returned(of(PAGE, A, id, users)));
        assert_eq!(step(&mut home, 103, HomeEvent::EndpointEnded(B)), []);
        let end = home.deadline().unwrap();
        assert_eq!(end, at(100).after(LeaseRules::DEFAULT.copy_good_at_home()));
        home.handle(end, HomeEvent::DeadlinePassed);
        assert_eq!(home.poll(), Some(HomeAction::Clean(PAGE, users)));
    }
}

#[test]
fn when_copies_have_to_go_other_racks_read_on() {
    let mut home = home(false);
    let share = LeaseKind::Share(crate::share::SharingId(1));
    let id = home.grant(at(0), PAGE, A, share).unwrap().id;
    home.grant(at(0), PAGE, B, LeaseKind::Read).unwrap();
    let asked = step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Writers));
    assert_eq!(asked, [HomeAction::Revoke(of(PAGE, A, id, Users::Writers))]);
    let most = home.grant(at(2), PAGE, C, share).map(|granted| granted.kind);
    assert_eq!(most, Some(LeaseKind::Read), "a rack that does not answer stops no others");
    // That rack is cut off; its replica is read until its lease has ended.
    assert_eq!(step(&mut home, 501, HomeEvent::DeadlinePassed), [HomeAction::Fence(A)]);
    let clean = step(&mut home, 502, HomeEvent::EndpointEnded(A));
    assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Writers)], "its time is over");
}

#[test]
fn a_restarted_home_gives_leases_for_reading_while_copies_of_its_earlier_life_end() {
    let mut home = home(true);
    assert_eq!(step(&mut home, 0, HomeEvent::PageNeeded(PAGE, Users::Writers)), []);
    let most = home.grant(at(1), PAGE, A, LeaseKind::Write).map(|granted| granted.kind);
    assert_eq!(most, Some(LeaseKind::Read));
    let clean = step(&mut home, 2502, HomeEvent::DeadlinePassed);
    assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Writers)]);
}

#[test]
fn a_renewed_lease_for_reading_does_not_make_the_home_forget_a_copy() {
    let mut home = home(false);
    let share = LeaseKind::Share(crate::share::SharingId(1));
    home.grant(at(0), PAGE, A, share).unwrap();
    let read = home.grant(at(1), PAGE, A, LeaseKind::Read).unwrap().id;
    let asked = step(&mut home, 2, HomeEvent::PageNeeded(PAGE, Users::Writers));
    assert_eq!(asked, [HomeAction::Revoke(of(PAGE, A, read, Users::Writers))]);
}

#[test]
fn who_wants_everyone_out_does_not_wait_for_the_writers_first() {
    let mut home = home(false);
    let lease = granted(&mut home, 0, A);
    step(&mut home, 1, HomeEvent::PageNeeded(PAGE, Users::Writers));
    let asked = step(&mut home, 2, HomeEvent::PageNeeded(PAGE, Users::Everyone));
    assert_eq!(asked, [HomeAction::Revoke(of(PAGE, A, lease, Users::Everyone))]);
    assert_eq!(step(&mut home, 3, HomeEvent::PageNeeded(PAGE, Users::Writers)), []);
    assert_eq!(step(&mut home, 4, HomeEvent::Returned(of(PAGE, A, lease, Users::Writers))), []);
    let clean = step(&mut home, 5, HomeEvent::Returned(of(PAGE, A, lease, Users::Everyone)));
    assert_eq!(clean, [HomeAction::Clean(PAGE, Users::Everyone)]);
}
