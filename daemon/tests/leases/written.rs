//! Writes into a page that moves, or for which there is no lease: each waits at the rack that will
//! be able to execute it, and is executed there.

use super::moving::{COMES, Moving, SWAP};
use super::*;

const ADD: u64 = 3;

impl Moving {
    fn write_goes(&mut self, cell: u8, batch: u64) -> Option<RackAnswer> {
        self.stand.write_in(cell, self.goes, batch)
    }

    /// The page can be read at its new home, and no dirty lines are missing there.
    fn leave(&mut self) {
        self.prefetch_lease();
        self.asked();
    }
}

/// A write of 8 B was sent to the other rack.
fn sent(requests: &[(EndpointId, u64, PeerRequest)], page: PageId) -> (EndpointId, u64) {
    let written = requests.iter().find_map(|(over, number, request)| match request {
        PeerRequest::Write { addr: at, bytes } if *at == addr(page) && bytes.len() == 8 => {
            Some((*over, *number))
        }
        _ => None,
    });
    written.unwrap_or_else(|| panic!("{requests:?}"))
}

#[test]
fn who_writes_a_page_that_goes_asks_once_and_has_it_written_at_its_new_home() {
    let mut moving = Moving::new();
    let goes = moving.goes;
    moving.commit();
    moving.asked();
    assert_eq!(moving.write_goes(2, 5), None, "it waits");
    assert_eq!(moving.write_goes(3, 5), Some(RackAnswer::Moved), "one after the other");
    assert_eq!(moving.write_goes(3, 6), Some(RackAnswer::Moved), "whatever the batch");
    let add = RackRequest::FetchAndAdd { addr: addr(goes), delta: ADD };
    assert_eq!(moving.stand.call(4, add), None);
    moving.prefetch_lease();
    let (requests, _) = moving.asked();
    let (over, number) = sent(&requests, goes);
    let added = requests.iter().find_map(|(over, number, request)| match request {
        PeerRequest::FetchAndAdd { delta: ADD, .. } => Some((*over, *number)),
        _ => None,
    });
    moving.stand.reply(added.unwrap(), &PeerReply::Value(40));
    assert_eq!(moving.stand.answer(4), Some(RackAnswer::Done(40)));
    assert_eq!(moving.stand.answer(2), None, "it waits there");
    moving.give_back_last(&requests);
    moving.stand.reply((over, number), &PeerReply::Written { moving: false });
    assert_eq!(moving.stand.answer(2), Some(RackAnswer::DoneAt(HOME)));
    let (requests, _) = moving.asked();
    let is_lookup = |request: &PeerRequest| matches!(*request, PeerRequest::Lookup { page, access: Access::Write, .. } if page == goes);
    let lookup = requests.iter().find(|(.., request)| is_lookup(request));
    let (over, number, _) = lookup.expect("the next write needs no message");
    moving.stand.reply((*over, *number), &location(1 << 41));
    assert_eq!(moving.write_goes(3, 8), None);
    assert!(moving.asked().0.is_empty(), "it goes under a lease");
}

#[test]
fn what_the_new_home_does_not_write_comes_again() {
    for reply in [PeerReply::Busy, PeerReply::NotHere] {
        let mut moving = Moving::new();
        let goes = moving.goes;
        moving.commit();
        assert_eq!(moving.write_goes(2, 5), None);
        moving.prefetch_lease();
        let asked = sent(&moving.asked().0, goes);
        moving.stand.reply(asked, &reply);
        assert_eq!(moving.stand.answer(2), Some(RackAnswer::Moved));
        assert_eq!(
            moving.write_goes(3, 5),
            Some(RackAnswer::Moved),
            "nothing of its batch is done"
        );
    }
}

#[test]
fn a_page_that_has_gone_lately_to_a_rack_that_lives_is_written_with_one_question_too() {
    for (later, lives) in [(0, true), (2_500, true), (0, false)] {
        let mut moving = Moving::new();
        let goes = moving.goes;
        moving.commit();
        moving.leave();
        moving.stand.step(later);
        if !lives {
            let dead = Member { alive: false, ..member(HOME) };
            moving.stand.plane.members(vec![dead, member(OTHER)]).unwrap();
            moving.stand.step(0);
        }
        moving.asked();
        let answer = moving.write_goes(2, 5);
        if lives && later == 0 {
            assert_eq!(answer, None);
            sent(&moving.asked().0, goes);
        } else {
            assert_eq!(
                answer,
                Some(RackAnswer::Moved),
                "it may be elsewhere by now: who asks is told"
            );
        }
    }
}

#[test]
fn what_another_rack_writes_in_a_page_that_comes_waits_until_its_old_home_has_left_it() {
    let mut moving = Moving::new();
    let theirs = moving.theirs;
    let waits = wait_at_new_home(&mut moving);
    for waits in waits {
        assert_eq!(moving.stand.replied(theirs, waits), None, "its old home may be read");
    }
    moving.tell(SwapMessage::Quiesced);
    let replies = waits.map(|waits| moving.stand.replied(theirs, waits).unwrap());
    let before = 0x0202_0202_0202_0202;
    assert_eq!(replies, [PeerReply::Written { moving: false }, PeerReply::Value(before)]);
}

#[test]
fn a_write_that_has_waited_for_a_lease_comes_again_and_is_not_done() {
    let mut moving = Moving::new();
    moving.doubt();
    assert_eq!(moving.write_goes(2, 5), None);
    moving.stand.step(2_500);
    assert_eq!(moving.stand.answer(2), Some(RackAnswer::Moved));
    assert_eq!(moving.write_goes(3, 5), Some(RackAnswer::Moved), "nor what comes after it");
    assert_eq!(moving.write_goes(3, 6), None, "but it may wait again");
}

#[test]
fn what_a_gone_client_wanted_done_is_not_done() {
    let mut moving = Moving::new();
    moving.commit();
    moving.asked();
    assert_eq!(moving.write_goes(2, 5), None);
    let add = RackRequest::FetchAndAdd { addr: addr(moving.goes), delta: ADD };
    assert_eq!(moving.stand.call(4, add), None);
    moving.stand.plane.kill(CLIENT).unwrap();
    moving.stand.step(0);
    moving.prefetch_lease();
    let (requests, _) = moving.asked();
    let changes = |request: &PeerRequest| {
        matches!(request, PeerRequest::Write { .. } | PeerRequest::FetchAndAdd { .. })
    };
    assert!(!requests.iter().any(|(.., request)| changes(request)), "{requests:?}");
}

/// Operations of another rack in an arriving page; returns the requests.
fn wait_at_new_home(moving: &mut Moving) -> [u64; 2] {
    moving.doubt();
    let write = PeerRequest::Write { addr: addr(COMES), bytes: vec![2; 8] };
    let add = PeerRequest::FetchAndAdd { addr: addr(COMES), delta: ADD };
    let waits = [write, add].map(|request| moving.stand.ask(moving.theirs, &request));
    moving.decide();
    waits
}

fn value(moving: &mut Moving) -> PeerReply {
    let read = PeerRequest::FetchAndAdd { addr: addr(COMES), delta: 0 };
    moving.stand.asks(moving.theirs, &read)
}

/// How a rack stops waiting for an answer.
#[derive(Clone, Copy)]
enum End {
    Disconnects,
    /// It connects again before this rack has noticed that the first endpoint has ended.
    ConnectsAgain,
    GivesUp,
}

/// A requester that is told there will be no answer continues; executing the operation later would
/// overwrite what it has done since.
#[test]
fn what_a_rack_wanted_done_that_does_not_wait_any_more_is_not_done() {
    for end in [End::Disconnects, End::ConnectsAgain, End::GivesUp] {
        let mut moving = Moving::new();
        let waits = wait_at_new_home(&mut moving);
        let theirs = moving.theirs;
        match end {
            End::Disconnects => moving.stand.plane.disconnect(theirs, DisconnectReason::PeerGone),
            End::ConnectsAgain => {}
            End::GivesUp => {
                for number in waits {
                    moving.stand.plane.message(theirs, &message::cancel(number));
                }
            }
        }
        moving.stand.step(0);
        if !matches!(end, End::GivesUp) {
            moving.theirs = moving.stand.plane.accept(HOME);
            moving.stand.step(0);
        }
        moving.tell(SwapMessage::Quiesced);
        assert_eq!(value(&mut moving), PeerReply::Value(0));
    }
}

/// The other rack may have cut this one off by then.
#[test]
fn who_has_stood_still_does_not_do_what_has_waited_for_too_long() {
    let mut moving = Moving::new();
    let waits = wait_at_new_home(&mut moving);
    let left = PeerRequest::Swap(Between { swap: SWAP, message: SwapMessage::Quiesced });
    moving.stand.asked += 1;
    let left = message::ask(moving.stand.asked, 0, None, &encode(&left).unwrap());
    moving.stand.plane.message(moving.theirs, &left);
    moving.stand.step(600);
    for waits in waits {
        assert_eq!(moving.stand.replied(moving.theirs, waits), Some(PeerReply::Busy));
    }
    assert_eq!(value(&mut moving), PeerReply::Value(0));
}

#[test]
fn a_lease_that_is_asked_for_is_not_asked_for_again() {
    let mut moving = Moving::new();
    let goes = moving.goes;
    moving.commit();
    assert_eq!(moving.write_goes(2, 5), None);
    moving.prefetch_lease();
    let (requests, _) = moving.asked();
    let asked = sent(&requests, goes);
    moving.give_back_last(&requests);
    assert_eq!(moving.translate(1, goes, Access::Write), None);
    let (requests, _) = moving.asked();
    let [(over, number, PeerRequest::Lookup { .. })] = requests[..] else { panic!("{requests:?}") };
    moving.stand.reply(asked, &PeerReply::Written { moving: false });
    assert_eq!(moving.stand.answer(2), Some(RackAnswer::DoneAt(HOME)));
    assert!(moving.asked().0.is_empty(), "who waits for the first answer would wait on");
    moving.stand.reply((over, number), &location(1 << 41));
    assert!(matches!(moving.stand.answer(1), Some(RackAnswer::Remote { home: HOME, .. })));
}

#[test]
fn a_long_write_in_one_message_is_no_request() {
    let mut moving = Moving::new();
    let bytes = vec![1; 4097];
    for addr in [addr(moving.goes), addr(COMES)] {
        let write = PeerRequest::Write { addr, bytes: bytes.clone() };
        assert!(matches!(moving.stand.asks(moving.theirs, &write), PeerReply::Invalid(_)));
    }
}
