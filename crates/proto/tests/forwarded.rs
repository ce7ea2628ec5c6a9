//! Writes while a page moves, message by message: the home executes forwarded writes of its page,
//! and its copy of the offered page lacks what the requester writes.

mod side;

use std::time::Duration;

use rackpool_model::{Epoch, FrameId, PageId, PageState, RackId};
use rackpool_proto::Time;
use rackpool_proto::swap::{PeerAction, PeerEvent, Phase, Quiesce, Record, SwapRules};
use rackpool_wire::swap::{Between, SwapId, SwapMessage};
use side::{
    ASKS, COMMITS, Home, OFFERED, OUT, PAGE, REQUESTER, SWAP, decided, offer, peer_asks_to_copy,
    quiesces, sends, tells,
};

const WANTED: PeerEvent = PeerEvent::WriteWanted(PAGE);

const fn dirty_lines(known: bool) -> PeerEvent {
    PeerEvent::DirtyLinesReceived { from: REQUESTER, swap: SWAP, theirs: FrameId(7), known }
}

const MERGES: PeerAction = PeerAction::ApplyDirtyLines { swap: SWAP, frame: FrameId(1) };

/// A home in doubt whose peer has recorded that its copy is incomplete.
fn forwarding() -> Home {
    let mut home = Home::new();
    home.doubt();
    assert_eq!(home.step(WANTED), [tells(SwapMessage::CopyIncomplete)]);
    home.got(SwapMessage::IncompleteNoted);
    home
}

/// Whether clients may write the page themselves.
fn is_dirty_logged(home: &Home) -> bool {
    home.memory.words[&FrameId(0)].is_dirty_logged()
}

/// A home in doubt whose copy of the offered page is incomplete.
fn stale() -> Home {
    let mut home = Home::new();
    home.doubt();
    assert_eq!(home.got(SwapMessage::CopyIncomplete), [tells(SwapMessage::IncompleteNoted)]);
    home
}

#[test]
fn a_page_is_written_from_when_its_new_home_knows_until_the_commit() {
    let mut home = Home::new();
    home.doubt();
    assert!(!is_dirty_logged(&home));
    assert_eq!(home.step(WANTED), [tells(SwapMessage::CopyIncomplete)]);
    assert_eq!(home.step(WANTED), [], "it was asked for");
    assert!(!is_dirty_logged(&home), "its peer may not know of it");
    home.got(SwapMessage::IncompleteNoted);
    assert!(is_dirty_logged(&home));
    assert_eq!(home.state(0), (PageState::Frozen, PAGE));
    assert_eq!(home.step(WANTED), [], "it is written");
    assert_eq!(home.step(decided(true)), COMMITS);
    assert!(!is_dirty_logged(&home));
    let mut late = Home::new();
    late.doubt();
    late.step(WANTED);
    late.step(decided(true));
    late.got(SwapMessage::IncompleteNoted);
    assert!(!is_dirty_logged(&late), "it is committed");
}

/// A home after the commit whose page is closed and without writers.
fn closed() -> Home {
    let mut home = forwarding();
    home.step(decided(true));
    assert_eq!(home.step(OUT), [sends(true)]);
    home
}

#[test]
fn clients_write_a_page_from_the_freeze_on_if_somebody_will() {
    let mut home = Home::new();
    let SwapMessage::Prepare { wanted, milli, offered, live, .. } = offer() else { unreachable!() };
    home.got(SwapMessage::Prepare { wanted, milli, read_hot: false, offered, live });
    assert!(is_dirty_logged(&home), "who asks for it writes it");
    assert!(ready(&mut home) && is_dirty_logged(&home));

    let mut home = Home::new();
    home.memory.hot = true;
    home.got(offer());
    assert!(is_dirty_logged(&home), "it is written here");

    let mut home = Home::new();
    home.got(offer());
    assert!(!is_dirty_logged(&home));
    assert_eq!(home.step(WANTED), []);
    assert!(is_dirty_logged(&home));
    assert!(ready(&mut home), "nobody copies it without a word of that");
    assert!(is_dirty_logged(&home));
    let repeated = home.got(offer());
    assert!(matches!(
        repeated[..],
        [PeerAction::TellRack(
            _,
            Between { message: SwapMessage::Prepared { stale: true, .. }, .. }
        )]
    ));

    let mut home = Home::new();
    home.got(offer());
    assert!(!ready(&mut home) && !is_dirty_logged(&home));
    assert_eq!(home.step(WANTED), [tells(SwapMessage::CopyIncomplete)]);
}

#[test]
fn nothing_is_handed_over_before_those_who_write_are_out() {
    let mut home = forwarding();
    assert_eq!(home.step(decided(true)), COMMITS);
    assert!(!is_dirty_logged(&home), "nobody begins");
    assert_eq!(home.got(SwapMessage::IsQuiesced), []);
    assert_eq!(home.step(OUT), [sends(true)]);
    assert_eq!(home.step(OUT), [], "that was said");
    assert!(!is_dirty_logged(&home));
}

#[test]
fn nobody_waits_for_a_writer_who_is_stopped() {
    let mut home = forwarding();
    home.step(decided(true));
    home.got(SwapMessage::Quiesced);
    let retry = SwapRules::DEFAULT.retry;
    let mut open_for = Duration::ZERO;
    for _ in 0..3 {
        let closed_at = home.now;
        home.now = home.rack.deadline().expect("it waits");
        assert!(home.now <= closed_at.after(retry));
        assert_eq!(home.step(PeerEvent::DeadlinePassed), []);
        assert!(is_dirty_logged(&home), "others go on");
        assert_eq!(home.step(OUT), [], "they are in it again");
        let opened_at = home.now;
        home.now = home.rack.deadline().expect("it tries again");
        assert!(home.now.since(opened_at) > open_for, "ever less often");
        open_for = home.now.since(opened_at);
        assert_eq!(home.step(PeerEvent::DeadlinePassed), [quiesces(Quiesce::DirtyLoggers)]);
        assert!(!is_dirty_logged(&home));
    }
    assert_eq!(home.step(OUT), [sends(true)]);
}

#[test]
fn a_page_that_was_closed_when_its_home_restarted_is_not_opened() {
    let mut home = Home::new();
    home.doubt();
    home.step(WANTED);
    home.restart(2);
    assert_eq!(home.step(decided(true)), COMMITS);
    home.now = home.rack.deadline().expect("it waits");
    home.step(PeerEvent::DeadlinePassed);
    assert!(!is_dirty_logged(&home), "its new home may not know that it lacks something");
}

/// The home lets the requester copy the page. Returns whether it announces writers.
fn ready(home: &mut Home) -> bool {
    let quiesced = home.step(PeerEvent::Quiesced(SWAP, Quiesce::Writers));
    match quiesced[..] {
        [PeerAction::TellRack(_, Between { message: SwapMessage::Prepared { stale, .. }, .. })] => {
            stale
        }
        _ => panic!("{quiesced:?}"),
    }
}

#[test]
fn a_page_that_is_written_is_copied_when_that_is_noted() {
    let mut home = Home::new();
    let ticket = home.accept();
    let SwapMessage::Copy { frame, .. } = peer_asks_to_copy(ticket) else { unreachable!() };
    home.got(SwapMessage::Copy { ticket, frame, stale: true });
    home.step(PeerEvent::Copied { swap: SWAP, whole: true });
    home.restart(2);
    home.step(decided(true));
    assert_eq!(home.state(1), (PageState::Arriving, OFFERED), "a restart does not forget it");
    home.step(dirty_lines(false));
    home.step(PeerEvent::Copied { swap: SWAP, whole: true });
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
}

#[test]
fn an_requester_says_with_its_first_pull_that_its_page_is_written() {
    let mut requester = Home::new();
    requester.begin(OFFERED);
    let (ticket, frame, epoch) = (8, FrameId(7), Epoch::new(5));
    requester.got(SwapMessage::Prepared { ticket, frame, epoch, stale: true });
    assert_eq!(requester.state(0), (PageState::Frozen, PAGE));
    assert_eq!(requester.step(WANTED), []);
    let peer_asks_to_copy = SwapMessage::Copy { ticket, frame: FrameId(0), stale: true };
    let quiesced = requester.step(PeerEvent::Quiesced(SWAP, Quiesce::Writers));
    assert_eq!(quiesced, [tells(peer_asks_to_copy)]);
    assert!(is_dirty_logged(&requester));
    let record = Record::from_words(&requester.records[0]).expect("a whole record").expect("one");
    assert!(record.stale, "{record:?}");
}

#[test]
fn what_the_other_rack_was_told_of_the_commit_counts() {
    let mut home = forwarding();
    assert_eq!(home.got(SwapMessage::Committed), COMMITS[1..], "and nobody is told again");
    assert_eq!(home.got(SwapMessage::Committed), []);
    let mut open = Home::new();
    open.accept();
    open.got(SwapMessage::Committed);
    assert_eq!(open.phase(), Some(Phase::Open), "it can't be committed");
    assert_eq!(Home::new().got(SwapMessage::Committed), [], "it is over");
}

#[test]
fn nobody_writes_a_page_at_its_old_home_when_it_is_committed() {
    let mut home = Home::new();
    home.commit();
    assert_eq!(home.step(WANTED), []);
    assert!(!is_dirty_logged(&home));
}

#[test]
fn a_message_without_an_answer_is_repeated() {
    let mut home = Home::new();
    home.doubt();
    home.step(WANTED);
    home.now = home.rack.deadline().expect("it does not wait for ever");
    assert!(home.now <= Time::ZERO.after(SwapRules::DEFAULT.retry));
    assert!(home.step(PeerEvent::DeadlinePassed).contains(&tells(SwapMessage::CopyIncomplete)));
}

#[test]
fn what_was_written_stays_where_it_was_when_the_swap_is_given_up() {
    let mut home = forwarding();
    home.step(decided(false));
    assert_eq!(home.state(0), (PageState::Live, PAGE));
    assert_eq!(home.rack.under_way(), 0);
}

#[test]
fn a_page_is_not_left_before_its_new_home_has_what_was_written() {
    let mut home = closed();
    home.step(PeerEvent::LeasePrefetched(PAGE));
    assert_eq!(home.state(0), (PageState::Frozen, PAGE), "it can be read nowhere else");
    assert_eq!(home.got(SwapMessage::IsQuiesced), [sends(true)], "it asks for what it lacks");
    let applied = Between { swap: SWAP, message: SwapMessage::DirtyLinesApplied };
    home.step(PeerEvent::RackSent(RackId(3), applied));
    assert_eq!(home.state(0), (PageState::Frozen, PAGE), "that was another rack");
    assert_eq!(home.got(SwapMessage::DirtyLinesApplied), [quiesces(Quiesce::Holders)]);
    assert_eq!(home.state(0), (PageState::Leaving, PAGE));
}

#[test]
fn what_was_written_is_sent_again_ever_less_often() {
    let mut home = closed();
    home.got(SwapMessage::Quiesced);
    let (mut sent, end) = (0, home.now.after(Duration::from_secs(10)));
    while let Some(next) = home.rack.deadline().filter(|next| *next <= end) {
        home.now = next;
        assert_eq!(home.step(PeerEvent::DeadlinePassed), [sends(true)]);
        sent += 1;
    }
    assert!((20..60).contains(&sent), "{sent} times in 10 s");
}

#[test]
fn a_restarted_home_knows_that_it_has_written_and_not_where() {
    let mut home = forwarding();
    assert_eq!(home.restart(2), [ASKS]);
    assert_eq!(home.step(WANTED), []);
    assert!(is_dirty_logged(&home), "it is written: the whole page will be copied once more");
    assert_eq!(home.step(decided(true)), COMMITS);
    assert_eq!(home.step(OUT), [sends(false)]);
    let again = [quiesces(Quiesce::DirtyLoggers), tells(SwapMessage::IsQuiesced)];
    assert_eq!(home.restart(3), again, "who began in an earlier life may be there still");
    assert_eq!(home.step(OUT), [sends(false)]);
    home.got(SwapMessage::DirtyLinesApplied);
    assert_eq!(home.state(0), (PageState::Leaving, PAGE));
    assert_eq!(
        home.restart(4),
        [quiesces(Quiesce::Holders), tells(SwapMessage::IsQuiesced)],
        "it was applied, or it would not be leaving"
    );
}

#[test]
fn a_stale_copy_is_read_when_it_has_what_it_lacks() {
    let mut home = stale();
    assert_eq!(home.step(decided(true)), COMMITS[..2]);
    assert_eq!(home.state(1), (PageState::Arriving, OFFERED));
    assert_eq!(home.step(dirty_lines(true)), [MERGES, tells(SwapMessage::DirtyLinesApplied)]);
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
    assert_eq!(
        home.step(dirty_lines(true)),
        [tells(SwapMessage::DirtyLinesApplied)],
        "the answer was lost"
    );
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
}

#[test]
fn what_a_copy_lacks_says_that_the_swap_is_committed() {
    let mut home = stale();
    assert_eq!(home.step(dirty_lines(true)), [MERGES, COMMITS[1], COMMITS[2]]);
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
    assert_eq!(home.step(decided(true)), [], "it is known");
}

#[test]
fn a_page_of_which_it_is_not_known_what_was_written_is_copied_once_more() {
    let mut home = stale();
    home.step(decided(true));
    let copies =
        PeerAction::Copy { swap: SWAP, from: REQUESTER, theirs: FrameId(7), ours: FrameId(1) };
    assert_eq!(home.step(dirty_lines(false)), [copies]);
    assert_eq!(home.step(dirty_lines(false)), [], "it is under way");
    assert_eq!(home.step(dirty_lines(true)), [], "what would be applied now is overwritten");
    home.step(PeerEvent::Copied { swap: SWAP, whole: false });
    assert_eq!(home.state(1), (PageState::Arriving, OFFERED));
    assert_eq!(home.step(dirty_lines(false)), [copies]);
    let copied = home.step(PeerEvent::Copied { swap: SWAP, whole: true });
    assert_eq!(copied, [tells(SwapMessage::DirtyLinesApplied)]);
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
}

#[test]
fn a_restart_does_not_forget_that_a_copy_is_stale() {
    let mut home = stale();
    home.restart(2);
    home.step(decided(true));
    assert_eq!(home.state(1), (PageState::Arriving, OFFERED));
    home.now = home.rack.deadline().expect("it asks for the rest");
    let due = home.step(PeerEvent::DeadlinePassed);
    assert!(due.contains(&tells(SwapMessage::IsQuiesced)), "{due:?}");
}

#[test]
fn a_copy_that_lacks_nothing_is_read_at_once() {
    let mut home = Home::new();
    home.doubt();
    assert_eq!(home.step(decided(true)), COMMITS);
    assert_eq!(home.state(1), (PageState::Frozen, OFFERED));
    assert_eq!(home.got(SwapMessage::CopyIncomplete), [], "too late: nothing will be written");
    assert_eq!(home.step(dirty_lines(true)), [tells(SwapMessage::DirtyLinesApplied)]);
}

#[test]
fn what_only_a_memory_that_is_no_more_had_is_lost_and_not_read_without() {
    let mut home = stale();
    home.step(decided(true));
    assert!(!home.rack.is_lost(OFFERED));
    home.got(SwapMessage::Quiesced);
    assert!(home.rack.is_lost(OFFERED) && !home.rack.is_lost(PAGE));
    assert_eq!(home.state(1), (PageState::Arriving, OFFERED));
    let later = home.rack.deadline();
    assert!(later.is_none_or(|at| at > home.now), "it waits for nothing: {later:?}");
    home.restart(2);
    home.got(SwapMessage::Quiesced);
    assert!(home.rack.is_lost(OFFERED), "nor after a restart");
}

#[test]
fn a_rack_that_knows_nothing_of_a_swap_lacks_nothing() {
    let mut home = Home::new();
    assert_eq!(home.step(dirty_lines(true)), [tells(SwapMessage::DirtyLinesApplied)]);
    home.records[3][0] = 0xffff;
    home.restart(2);
    assert_eq!(
        home.step(dirty_lines(true)),
        [],
        "but a damaged record may be the one that is meant"
    );
    let other = PeerEvent::DirtyLinesReceived {
        from: REQUESTER,
        swap: SwapId(78),
        theirs: FrameId(u32::MAX),
        known: false,
    };
    assert_eq!(home.step(other), []);
    assert_eq!(home.step(PeerEvent::WriteWanted(PageId(99))), []);
}
