//! One side of a swap, message by message; mostly the home's.

mod side;

use std::time::Duration;

use rackpool_model::{Epoch, FrameId, PageEvent, PageId, PageState, PageWord, RackId};
use rackpool_proto::Time;
use rackpool_proto::swap::{PeerAction, PeerEvent, Phase, Quiesce, RECORD_WORDS, SwapRules};
use rackpool_wire::swap::{Between, PageLife, PrepareRefusal, SwapId, SwapMessage, ToServer};
use side::{
    ASKS, COMMITS, Home, OFFERED, OUT, PAGE, REQUESTER, SWAP, decided, offer, peer_asks_to_copy,
    quiesces, sends, tells,
};

#[test]
fn a_committed_page_goes_and_the_other_is_written_when_its_old_home_has_left_it() {
    let mut home = Home::new();
    home.commit();
    let left = home.step(PeerEvent::Quiesced(SWAP, Quiesce::Holders));
    assert_eq!(left, [tells(SwapMessage::Quiesced), quiesces(Quiesce::Everyone)]);
    assert_eq!(home.got(SwapMessage::Quiesced), []);
    assert_eq!(
        home.memory.words[&FrameId(1)],
        PageWord::new(PageState::Live, Epoch::new(6), OFFERED)
    );
    assert!(home.rack.is_busy(OFFERED), "until the record is gone");
    home.step(PeerEvent::Quiesced(SWAP, Quiesce::Everyone));
    assert_eq!(home.state(0), (PageState::Free, PageId(2)));
    assert_eq!((home.rack.under_way(), home.records[4][0]), (0, 0));
}

#[test]
fn a_rack_says_that_it_has_left_when_the_leases_are_back_and_not_before() {
    let mut home = Home::new();
    home.doubt();
    assert_eq!(home.got(SwapMessage::IsQuiesced), COMMITS[1..], "or nobody would ask");
    assert_eq!(home.step(OUT), [sends(true)]);
    assert_eq!(home.got(SwapMessage::IsQuiesced), [sends(true)], "it can't be read there yet");
    home.got(SwapMessage::DirtyLinesApplied);
    assert_eq!(home.got(SwapMessage::IsQuiesced), [quiesces(Quiesce::Holders)]);
    assert_eq!(home.got(SwapMessage::IsQuiesced), []);
    home.step(PeerEvent::Quiesced(SWAP, Quiesce::Holders));
    assert_eq!(home.got(SwapMessage::IsQuiesced), [tells(SwapMessage::Quiesced)]);
    home.step(PeerEvent::Quiesced(SWAP, Quiesce::Everyone));
    home.got(SwapMessage::Quiesced);
    assert_eq!(home.rack.under_way(), 0);
    assert_eq!(home.got(SwapMessage::IsQuiesced), [tells(SwapMessage::Quiesced)], "it is over");
    assert_eq!(home.got(SwapMessage::Quiesced), [], "nobody answers an answer");
}

#[test]
fn readers_who_know_the_way_before_the_decision_are_turned_away_with_it() {
    let mut home = Home::new();
    home.doubt();
    assert_eq!(home.step(PeerEvent::LeasePrefetched(PAGE)), []);
    assert_eq!(home.state(0), (PageState::Frozen, PAGE));
    let leaves = [quiesces(Quiesce::Holders), COMMITS[2]];
    assert_eq!(home.got(SwapMessage::DirtyLinesApplied), leaves, "so it is committed");
    assert_eq!(home.state(0), (PageState::Leaving, PAGE));
}

#[test]
fn writers_do_not_wait_for_readers_who_do_not_find_the_way() {
    let mut home = Home::new();
    home.commit_while_read();
    home.now = home.rack.deadline().expect("it does not wait for ever");
    assert!(home.now <= Time::ZERO.after(SwapRules::DEFAULT.retry));
    let due = home.step(PeerEvent::DeadlinePassed);
    assert_eq!(due, [quiesces(Quiesce::Holders), tells(SwapMessage::IsQuiesced)]);

    let mut home = Home::new();
    home.commit_while_read();
    let closes = [quiesces(Quiesce::DirtyLoggers), tells(SwapMessage::IsQuiesced)];
    assert_eq!(home.restart(2), closes);
    assert_eq!(home.step(OUT), [sends(false)]);
    let leaves = [quiesces(Quiesce::Holders)];
    assert_eq!(home.got(SwapMessage::DirtyLinesApplied), leaves, "nobody asks for the lease");
}

#[test]
fn a_rack_with_a_damaged_record_does_not_say_that_it_has_left_what_it_does_not_know() {
    let mut home = Home::new();
    home.commit();
    home.records[4][2] = 0;
    home.restart(2);
    assert_eq!(home.got(SwapMessage::IsQuiesced), []);
}

#[test]
fn a_rack_with_a_damaged_record_knows_what_has_ended_since() {
    let mut home = Home::new();
    home.records[3] = [1; RECORD_WORDS];
    home.restart(2);
    home.commit();
    home.step(PeerEvent::Quiesced(SWAP, Quiesce::Holders));
    home.step(PeerEvent::Quiesced(SWAP, Quiesce::Everyone));
    home.got(SwapMessage::Quiesced);
    assert_eq!(home.got(SwapMessage::IsQuiesced), [tells(SwapMessage::Quiesced)]);
}

/// Regression: the words were stored and examined in one step, so they seemed correct and the page
/// stayed frozen.
#[test]
fn an_acceptance_that_comes_at_the_deadline_leaves_nothing_frozen() {
    let mut requester = Home::new();
    let before = requester.memory.words.clone();
    requester.begin(PageId(50));
    requester.now = Time::ZERO.after(SwapRules::DEFAULT.grace);
    let (frame, epoch) = (FrameId(7), Epoch::new(3));
    let ready = SwapMessage::Prepared { ticket: 1, frame, epoch, stale: false };
    assert!(requester.got(ready).contains(&tells(SwapMessage::Aborted)));
    assert_eq!((requester.memory.words, requester.records[0][0]), (before, 0));
    assert_eq!(requester.rack.under_way(), 0);
}

#[test]
fn the_left_of_another_swap_or_another_rack_does_not_thaw_the_page() {
    let mut home = Home::new();
    home.commit();
    let left = |swap| Between { swap, message: SwapMessage::Quiesced };
    home.step(PeerEvent::RackSent(REQUESTER, left(SwapId(76))));
    home.step(PeerEvent::RackSent(RackId(3), left(SWAP)));
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
    home.got(SwapMessage::Quiesced);
    assert_eq!(home.state(1), (PageState::Live, OFFERED));
}

#[test]
fn a_peer_that_does_not_say_that_it_has_left_is_asked_ever_less_often() {
    let mut home = Home::new();
    home.commit();
    let mut asked = 0;
    let end = home.now.after(Duration::from_secs(10));
    while let Some(next) = home.rack.deadline().filter(|next| *next <= end) {
        home.now = next;
        assert_eq!(home.step(PeerEvent::DeadlinePassed), [tells(SwapMessage::IsQuiesced)]);
        asked += 1;
    }
    assert!((20..60).contains(&asked), "{asked} times in 10 s");
}

#[test]
fn a_restart_does_not_forget_whom_it_waits_for_nor_who_waits_for_it() {
    let mut home = Home::new();
    home.commit();
    let actions = home.restart(2);
    assert_eq!(actions, [quiesces(Quiesce::Holders), tells(SwapMessage::IsQuiesced)]);
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
    home.got(SwapMessage::Quiesced);
    assert_eq!(home.state(1), (PageState::Live, OFFERED));
    // The page is written, and its record is still there.
    assert_eq!(home.restart(3), [quiesces(Quiesce::Holders)]);
    assert_eq!(home.state(1), (PageState::Live, OFFERED));
    home.step(PeerEvent::Quiesced(SWAP, Quiesce::Holders));
    home.step(PeerEvent::Quiesced(SWAP, Quiesce::Everyone));
    assert_eq!((home.rack.under_way(), home.phase()), (0, None));
}

#[test]
fn a_left_that_overtakes_the_decision_says_it_too() {
    let mut home = Home::new();
    home.doubt();
    assert_eq!(home.got(SwapMessage::Quiesced), COMMITS[1..]);
    assert_eq!(home.state(1), (PageState::Live, OFFERED));
}

#[test]
fn a_home_in_doubt_asks_when_the_requester_has_given_up() {
    let mut home = Home::new();
    let ticket = home.doubt();
    let peer_copied = home.got(peer_asks_to_copy(ticket));
    assert_eq!(peer_copied, [tells(SwapMessage::Copied)], "the answer may have been lost");
    assert_eq!(home.got(SwapMessage::Aborted), [ASKS]);
    home.step(decided(false));
    assert_eq!(home.state(0), (PageState::Live, PAGE));
}

#[test]
fn a_swap_that_was_given_up_leaves_everything_as_it_was() {
    let mut home = Home::new();
    let before = home.memory.words.clone();
    home.doubt();
    home.step(decided(false));
    assert_eq!(home.memory.words, before);
    assert_eq!(home.rack.under_way(), 0);
}

#[test]
fn an_open_swap_is_given_up_at_its_deadline_but_one_in_doubt_asks() {
    let mut home = Home::new();
    home.accept();
    home.now = Time::ZERO.after(Duration::from_millis(100));
    assert!(home.step(PeerEvent::DeadlinePassed).contains(&tells(SwapMessage::Aborted)));
    assert_eq!(home.state(0), (PageState::Live, PAGE));

    let mut home = Home::new();
    home.doubt();
    home.now = Time::ZERO.after(Duration::from_secs(100));
    assert_eq!(home.step(PeerEvent::DeadlinePassed), [ASKS]);
    assert_eq!(home.state(0), (PageState::Frozen, PAGE));
}

#[test]
fn a_restart_gives_an_open_swap_up_and_keeps_one_in_doubt() {
    let mut home = Home::new();
    home.accept();
    home.restart(2);
    assert_eq!(home.state(0), (PageState::Live, PAGE));

    let mut home = Home::new();
    home.doubt();
    home.restart(2);
    assert_eq!((home.state(0), home.phase()), ((PageState::Frozen, PAGE), Some(Phase::InDoubt)));
    home.step(decided(true));
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
}

#[test]
fn an_earlier_acceptance_of_the_same_swap_does_not_count() {
    let mut home = Home::new();
    let earlier = home.accept();
    home.restart(2);
    assert_ne!(home.accept(), earlier);
    let gone = home.got(peer_asks_to_copy(earlier));
    assert_eq!(gone, [tells(SwapMessage::Aborted)]);
}

#[test]
fn a_page_that_is_hotter_at_home_stays_and_may_be_cached_when_it_is_mostly_read() {
    let mut home = Home::new();
    home.memory.milli = 9000;
    let refused = home.got(offer());
    assert_eq!(refused, [tells(SwapMessage::Refused(PrepareRefusal::ReadHot))]);
    assert_eq!(home.rack.under_way(), 0);
}

/// A requester with two free frames: pages 2 and 3.
fn with_two_free_frames() -> Home {
    let mut requester = Home::new();
    requester.memory.words.insert(FrameId(2), PageWord::free(PageId(3)));
    requester
}

const ENDS: PeerAction = PeerAction::TellServer(ToServer::Abort { swap: SWAP });

/// The messages of a requester whose swap is granted, and whose offered page was cold when it was
/// chosen and is hot now.
fn says_at_the_beginning(mut requester: Home) -> Vec<PeerAction> {
    requester.memory.heats = true;
    requester.begin(OFFERED)
}

/// Regression: remaining hotness of its last use kept a free page from being offered, and the rack
/// from getting any page.
#[test]
fn a_free_page_is_given_however_hot_it_was() {
    let offered = PageLife { page: PageId(2), epoch: Epoch::ZERO };
    let offer = SwapMessage::Prepare {
        wanted: OFFERED,
        milli: 9000,
        read_hot: false,
        offered,
        live: false,
    };
    assert_eq!(says_at_the_beginning(with_two_free_frames()), [tells(offer)]);
}

#[test]
fn a_page_that_became_hot_since_it_was_offered_is_not_given() {
    assert_eq!(says_at_the_beginning(Home::new()), [ENDS]);
}

/// Regression: two requests at once each counted the free frame of the other as the one that stays.
/// The rack gave away both, and from then on neither got nor gave a page.
#[test]
fn two_requests_at_once_do_not_give_away_the_last_free_frame() {
    let mut requester = with_two_free_frames();
    let (first, second) = (requester.request(OFFERED).0, requester.request(PageId(10)).0);
    assert_eq!((first, second), (PageId(2), PAGE), "page 3 is the last free one");
}

#[test]
fn a_free_page_that_became_the_last_one_since_it_was_offered_is_not_given() {
    let mut requester = with_two_free_frames();
    let (offered, nonce) = requester.request(OFFERED);
    assert_eq!(offered, PageId(2));
    let live = PageWord::free(PageId(3)).apply(PageEvent::Allocated).expect("a free page");
    requester.memory.words.insert(FrameId(2), live);
    assert_eq!(requester.granted(nonce), [ENDS]);
}

#[test]
fn an_offer_of_a_page_that_cannot_be_is_refused() {
    let mut home = Home::new();
    let offered = PageLife { page: PageId(0), epoch: Epoch::ZERO };
    let live = true;
    let offer = SwapMessage::Prepare { wanted: PAGE, milli: 9000, read_hot: false, offered, live };
    let refused = home.got(offer);
    assert_eq!(refused, [tells(SwapMessage::Refused(PrepareRefusal::Unavailable))]);
    assert_eq!(home.state(0), (PageState::Live, PAGE));
}
