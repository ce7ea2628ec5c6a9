use core::time::Duration;

use rackpool_model::{Epoch, FrameId, RackId};

use super::*;
use crate::lease::LeaseId;

const PAGE: PageId = PageId(4);
const OVER: EndpointToken = EndpointToken(7);

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

fn lease(id: u64) -> Lease {
    let (home, frame, epoch) = (RackId(1), FrameId(2), Epoch::new(3));
    Lease { id: LeaseId(id), kind: LeaseKind::Write, home, endpoint: OVER, frame, epoch }
}

fn holder() -> LeaseHolder {
    LeaseHolder::new(Time::ZERO, LeaseRules::DEFAULT, 0, Sound)
}

fn granted(question: u64, id: u64) -> HolderEvent {
    HolderEvent::Granted { page: PAGE, question, lease: lease(id) }
}

const fn of(page: PageId, endpoint: EndpointToken, lease: LeaseId, users: Users) -> Revocation {
    Revocation { page, endpoint, lease, users }
}

#[test]
fn a_lease_is_good_from_the_question_on_not_from_the_answer() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    assert_eq!(holder.begin(at(1), PAGE, Access::Write), None);
    holder.handle(at(1500), granted(question, 1));
    assert_eq!(holder.begin(at(1999), PAGE, Access::Write), Some(lease(1)));
    assert_eq!(holder.begin(at(2000), PAGE, Access::Write), None);
}

#[test]
fn a_lease_in_use_is_renewed_in_time_and_one_at_rest_is_not() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), granted(question, 1));
    holder.begin(at(999), PAGE, Access::Write).unwrap();
    assert_eq!(holder.poll(), None, "it is good for as long again");
    holder.begin(at(1000), PAGE, Access::Write).unwrap();
    let renew = HolderAction::Renew(PAGE, RackId(1));
    assert_eq!(holder.poll(), Some(renew));
    let question = holder.ask(at(1000), PAGE);
    holder.begin(at(1049), PAGE, Access::Write).unwrap();
    assert_eq!(holder.poll(), None, "it has been asked for just now");
    holder.begin(at(1050), PAGE, Access::Write).unwrap();
    assert_eq!(holder.poll(), Some(renew), "the question may have been lost");
    holder.handle(at(1060), granted(question, 2));
    assert_eq!(holder.begin(at(2999), PAGE, Access::Write), Some(lease(2)));
    holder.handle(at(2999), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(2), Users::Everyone)));
    for _ in 0..4 {
        assert_eq!(holder.poll().filter(|action| *action != renew), None);
        holder.handle(at(3000), HolderEvent::OperationEnded(PAGE, OVER, Access::Write));
    }
    holder.poll();
    assert_eq!(holder.poll(), None, "one operation is still on its way");
    holder.handle(at(3000), HolderEvent::OperationEnded(PAGE, OVER, Access::Write));
    assert_eq!(
        holder.poll(),
        Some(HolderAction::Return(of(PAGE, OVER, LeaseId(2), Users::Everyone)))
    );
}

#[test]
fn a_forgotten_lease_goes_back_only_after_its_operations() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), granted(question, 1));
    holder.begin(at(2), PAGE, Access::Write).unwrap();
    holder.forget(PAGE);
    assert_eq!(holder.begin(at(2), PAGE, Access::Write), None);
    holder.handle(at(3), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(1), Users::Everyone)));
    assert_eq!(holder.poll(), None);
    holder.handle(at(4), HolderEvent::OperationEnded(PAGE, OVER, Access::Write));
    assert_eq!(
        holder.poll(),
        Some(HolderAction::Return(of(PAGE, OVER, LeaseId(1), Users::Everyone)))
    );
}

#[test]
fn a_lease_goes_back_when_the_last_operation_has_ended() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), granted(question, 1));
    holder.begin(at(2), PAGE, Access::Write).unwrap();
    holder.handle(at(3), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(1), Users::Everyone)));
    assert_eq!(holder.poll(), None);
    assert_eq!(holder.begin(at(3), PAGE, Access::Write), None, "no new operation");
    holder.handle(at(4), HolderEvent::OperationEnded(PAGE, OVER, Access::Write));
    assert_eq!(
        holder.poll(),
        Some(HolderAction::Return(of(PAGE, OVER, LeaseId(1), Users::Everyone)))
    );
}

#[test]
fn the_lease_of_a_page_that_has_come_goes_back_unasked_after_its_operations() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), granted(question, 1));
    holder.begin(at(2), PAGE, Access::Read).unwrap();
    let question = holder.ask(at(2), PAGE);
    holder.handle(at(3), HolderEvent::Arrived(PAGE));
    assert_eq!(holder.poll(), None);
    holder.handle(at(4), granted(question, 2));
    assert_eq!(holder.begin(at(4), PAGE, Access::Read), None, "it is used here from now on");
    holder.handle(at(4), HolderEvent::OperationEnded(PAGE, OVER, Access::Read));
    assert_eq!(
        holder.poll(),
        Some(HolderAction::Return(of(PAGE, OVER, LeaseId(1), Users::Everyone)))
    );
}

#[test]
fn nothing_goes_back_of_a_page_that_comes_and_was_not_leased() {
    let mut holder = holder();
    holder.handle(at(1), HolderEvent::Arrived(PAGE));
    assert_eq!(holder.poll(), None);
}

#[test]
fn operations_of_an_earlier_lease_of_the_page_are_waited_for_too() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), granted(question, 1));
    holder.begin(at(2), PAGE, Access::Write).unwrap();
    let question = holder.ask(at(2100), PAGE);
    holder.handle(at(2101), granted(question, 2));
    holder.handle(at(2102), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(2), Users::Everyone)));
    assert_eq!(holder.poll(), None);
}

#[test]
fn a_call_that_overtakes_its_grant_makes_the_grant_void() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(1), Users::Everyone)));
    assert_eq!(
        holder.poll(),
        Some(HolderAction::Return(of(PAGE, OVER, LeaseId(1), Users::Everyone)))
    );
    holder.handle(at(2), granted(question, 1));
    assert_eq!(holder.begin(at(2), PAGE, Access::Write), None);
}

#[test]
fn an_answer_to_an_earlier_life_does_not_count() {
    let mut earlier: LeaseHolder = LeaseHolder::new(at(0), LeaseRules::DEFAULT, 1 << 32, Sound);
    let question = earlier.ask(at(0), PAGE);
    let mut holder: LeaseHolder = LeaseHolder::new(at(1), LeaseRules::DEFAULT, 2 << 32, Sound);
    holder.ask(at(2), PAGE);
    holder.handle(at(3), granted(question, 1));
    assert_eq!(holder.begin(at(3), PAGE, Access::Write), None);
}

#[test]
fn an_answer_counts_once_and_an_ended_endpoint_takes_its_leases() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), granted(question, 1));
    holder.handle(at(2), HolderEvent::EndpointEnded(OVER));
    holder.handle(at(3), granted(question, 1));
    assert_eq!(holder.begin(at(3), PAGE, Access::Write), None);
}

#[test]
fn who_gives_the_right_to_write_back_reads_on_while_its_writes_end() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), granted(question, 1));
    holder.begin(at(2), PAGE, Access::Write).unwrap();
    holder.begin(at(2), PAGE, Access::Read).unwrap();
    holder.handle(at(3), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(1), Users::Writers)));
    assert_eq!(holder.poll(), None, "a write is on its way");
    assert_eq!(holder.begin(at(3), PAGE, Access::Write), None);
    let read = holder.begin(at(3), PAGE, Access::Read).unwrap();
    assert_eq!(read.kind, LeaseKind::Read);
    holder.handle(at(4), HolderEvent::OperationEnded(PAGE, OVER, Access::Write));
    let back = HolderAction::Return(of(PAGE, OVER, LeaseId(1), Users::Writers));
    assert_eq!(holder.poll(), Some(back), "reads are under way, and may be");
    holder.handle(at(5), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(1), Users::Everyone)));
    assert_eq!(holder.poll(), None);
    assert_eq!(holder.begin(at(5), PAGE, Access::Read), None);
}

#[test]
fn writes_of_an_earlier_lease_are_waited_for_when_the_present_one_is_for_reading() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    holder.handle(at(1), granted(question, 1));
    holder.begin(at(2), PAGE, Access::Write).unwrap();
    let question = holder.ask(at(2), PAGE);
    let lease = Lease { kind: LeaseKind::Read, ..lease(2) };
    holder.handle(at(3), HolderEvent::Granted { page: PAGE, question, lease });
    holder.handle(at(4), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(2), Users::Writers)));
    assert_eq!(holder.poll(), None);
    holder.handle(at(5), HolderEvent::OperationEnded(PAGE, OVER, Access::Write));
    let back = HolderAction::Return(of(PAGE, OVER, LeaseId(2), Users::Writers));
    assert_eq!(holder.poll(), Some(back));
}

#[test]
fn a_lease_of_another_home_does_not_save_a_grant_that_was_overtaken() {
    let mut holder = holder();
    let question = holder.ask(at(0), PAGE);
    let other = Lease { endpoint: EndpointToken(8), ..lease(90) };
    holder.handle(at(1), HolderEvent::Granted { page: PAGE, question, lease: other });
    let question = holder.ask(at(1), PAGE);
    holder.handle(at(2), HolderEvent::Revoked(of(PAGE, OVER, LeaseId(3), Users::Writers)));
    holder.handle(at(3), granted(question, 3));
    assert_eq!(holder.lease(at(3), PAGE), Some(other));
}
