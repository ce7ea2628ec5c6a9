//! Sharing, step by step: the home of a page, and a rack that keeps a replica.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::time::Duration;

use rackpool_model::{Epoch, FrameId, FrameWord, PageEvent, PageId, PageWord, RackId};
use rackpool_proto::Time;
use rackpool_proto::lease::{EndpointToken, Lease, LeaseId, LeaseKind};
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::share::{
    Copies, CopiesAction, CopiesEvent, CopyId, FoundCopy, ShareAction, ShareEvent, ShareHome,
    ShareRules, SharingId,
};

const PAGE: PageId = PageId(7);
const OURS: FrameId = FrameId(3);

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

fn live() -> PageWord {
    PageWord::free(PAGE).apply(PageEvent::Allocated).unwrap()
}

/// A home with one page.
struct OnePage {
    home: ShareHome,
    word: PageWord,
}

impl OnePage {
    fn new(word: PageWord) -> Self {
        let left = [FrameWord { frame: FrameId(0), word }];
        Self {
            home: ShareHome::restore(at(0), ShareRules::DEFAULT, SharingId(10), left, Sound),
            word,
        }
    }

    /// Handles an event; executes stores, and returns the other actions.
    fn step(&mut self, ms: u64, event: ShareEvent) -> Vec<ShareAction> {
        let word = self.word;
        let find =
            move |page| (page == word.page()).then_some(FrameWord { frame: FrameId(0), word });
        self.home.handle(at(ms), &find, event);
        self.actions()
    }

    fn actions(&mut self) -> Vec<ShareAction> {
        let all: Vec<_> = std::iter::from_fn(|| self.home.poll()).collect();
        for action in &all {
            if let ShareAction::Store(_, word) = action {
                self.word = *word;
            }
        }
        all.into_iter().filter(|action| !matches!(action, ShareAction::Store(..))).collect()
    }

    fn share(&mut self, ms: u64) {
        let wanted = ShareEvent::Wanted { page: PAGE, busy: false };
        let quiesce = ShareAction::Quiesce(FrameId(0), PAGE);
        assert_eq!(self.step(ms, wanted), [quiesce]);
        assert!(self.word.is_readable() && !self.word.is_writable());
        assert_eq!(self.home.sharing(PAGE), None, "somebody may be writing");
        assert_eq!(self.step(ms, ShareEvent::Quiesced(PAGE)), []);
    }

    fn write(&mut self, ms: u64) {
        let quiesce = ShareAction::Quiesce(FrameId(0), PAGE);
        assert_eq!(self.step(ms, ShareEvent::Needed(PAGE)), [quiesce]);
        assert!(!self.word.is_writable() && self.home.sharing(PAGE).is_none());
        self.step(ms, ShareEvent::Quiesced(PAGE));
        assert!(self.word.is_writable());
    }
}

#[test]
fn a_shared_page_is_written_when_everybody_has_given_back() {
    let mut one = OnePage::new(live());
    one.share(0);
    let first = one.home.sharing(PAGE).unwrap();
    one.write(2000);
    one.share(3000);
    assert!(one.home.sharing(PAGE).unwrap() > first, "numbers are never used again");
}

#[test]
fn a_page_that_is_written_again_and_again_rests_longer_and_longer() {
    let mut one = OnePage::new(live());
    let mut now = 0;
    for rest in [100, 200, 400] {
        one.share(now);
        one.write(now + 1);
        let wanted = ShareEvent::Wanted { page: PAGE, busy: false };
        assert_eq!(one.step(now + rest, wanted), [], "it rests for {rest} ms");
        now += rest + 1;
    }
    one.share(now);
    one.write(now + 1000);
    one.share(now + 1100);
}

#[test]
fn who_wants_to_write_before_there_are_copies_waits_for_nobody() {
    let mut one = OnePage::new(live());
    one.step(0, ShareEvent::Wanted { page: PAGE, busy: false });
    assert_eq!(one.step(1, ShareEvent::Needed(PAGE)), [ShareAction::CancelQuiesce(PAGE)]);
    assert_eq!(one.word, live());
    assert_eq!(one.step(2, ShareEvent::Quiesced(PAGE)), [], "an old quiesce");
    assert!(one.home.is_empty());
}

#[test]
fn what_an_earlier_life_shared_is_called_back_before_it_is_written() {
    let mut one = OnePage::new(live().apply(PageEvent::Shared).unwrap());
    assert_eq!(one.actions(), [ShareAction::Quiesce(FrameId(0), PAGE)]);
    assert_eq!(one.home.sharing(PAGE), None);
    one.step(5, ShareEvent::Quiesced(PAGE));
    assert!(one.word.is_writable());
}

#[test]
fn a_sharing_that_nobody_uses_any_more_ends() {
    let mut one = OnePage::new(live());
    assert_eq!(one.home.deadline(), None);
    one.share(10);
    let idle = u64::try_from(ShareRules::DEFAULT.idle.as_millis()).unwrap();
    assert_eq!(one.home.deadline(), Some(at(10 + idle)));
    // A rack renews the lease of its replica.
    assert_eq!(one.step(500, ShareEvent::Leased(PAGE)), []);
    assert_eq!(one.step(10 + idle, ShareEvent::DeadlinePassed), [], "it is in use");
    assert_eq!(one.home.deadline(), Some(at(500 + idle)));
    let quiesce = ShareAction::Quiesce(FrameId(0), PAGE);
    assert_eq!(one.step(500 + idle, ShareEvent::DeadlinePassed), [quiesce]);
    assert_eq!((one.home.deadline(), one.home.is_ending()), (None, true));
    one.step(501 + idle, ShareEvent::Quiesced(PAGE));
    assert!(one.word.is_writable() && one.home.is_empty());
    // The sharing lasted, so the rest is short.
    one.share(602 + idle);
}

#[test]
fn a_page_of_a_swap_is_not_shared() {
    let mut one = OnePage::new(live());
    assert_eq!(one.step(0, ShareEvent::Wanted { page: PAGE, busy: true }), []);
    assert!(one.word.is_writable());
}

fn leased(sharing: u64, until: u64) -> CopiesEvent {
    let kind = LeaseKind::Share(SharingId(sharing));
    let (home, endpoint) = (RackId(1), EndpointToken(4));
    let (frame, epoch) = (FrameId(9), Epoch::new(1));
    let lease = Lease { id: LeaseId(1), kind, home, endpoint, frame, epoch };
    CopiesEvent::Leased { page: PAGE, lease, until: at(until), spare: Some(OURS) }
}

fn copies() -> Copies {
    Copies::new(at(0), ShareRules::DEFAULT, CopyId(1), Sound)
}

fn step(copies: &mut Copies, ms: u64, event: CopiesEvent) -> Vec<CopiesAction> {
    copies.handle(at(ms), event);
    std::iter::from_fn(|| copies.poll()).collect()
}

const fn copy(sharing: u64) -> CopiesAction {
    CopiesAction::Copy { page: PAGE, sharing: SharingId(sharing), ours: OURS }
}

/// A replica that is published until 250 ms.
fn published() -> Copies {
    let mut copies = copies();
    assert_eq!(step(&mut copies, 0, leased(5, 250)), [], "nobody has asked for it");
    step(&mut copies, 0, CopiesEvent::Wanted(PAGE));
    assert_eq!(step(&mut copies, 0, leased(5, 250)), [copy(5)]);
    assert_eq!(copies.uses(OURS), Some(true));
    assert_eq!(step(&mut copies, 1, leased(5, 250)), [], "it is on its way");
    assert_eq!(step(&mut copies, 2, CopiesEvent::Copied { page: PAGE, whole: true }), []);
    assert_eq!(copies.find(at(2), PAGE), None);
    let show = CopiesAction::Publish { ours: OURS, copy: CopyId(1), until: at(250) };
    assert_eq!(step(&mut copies, 2, leased(5, 250)), [show]);
    assert_eq!(copies.find(at(2), PAGE), Some(FoundCopy { frame: OURS, copy: CopyId(1) }));
    copies
}

#[test]
fn a_copy_is_shown_when_it_is_whole_and_its_lease_good_and_for_longer_with_each_lease() {
    let mut copies = published();
    assert_eq!(copies.find(at(250), PAGE), None, "its time is over");
    let show = CopiesAction::Publish { ours: OURS, copy: CopyId(1), until: at(400) };
    assert_eq!(step(&mut copies, 150, leased(5, 400)), [show]);
    assert_eq!(step(&mut copies, 151, leased(5, 300)), [], "never for less");
    assert_eq!(copies.deadline(), Some(at(400)));
    let over = step(&mut copies, 400, CopiesEvent::DeadlinePassed);
    assert_eq!(over, [CopiesAction::Hide(OURS)], "nobody has read it");
    assert!(copies.is_empty());
}

#[test]
fn a_copy_is_hidden_when_it_is_called_back_and_when_its_frame_is_taken() {
    for event in [CopiesEvent::Revoked(PAGE), CopiesEvent::Taken(OURS)] {
        let mut copies = published();
        assert_eq!(step(&mut copies, 3, event), [CopiesAction::Hide(OURS)]);
        assert_eq!((copies.find(at(3), PAGE), copies.uses(OURS)), (None, None));
    }
}

#[test]
fn a_copy_that_was_called_back_on_its_way_is_never_shown() {
    let mut copies = copies();
    step(&mut copies, 0, CopiesEvent::Wanted(PAGE));
    step(&mut copies, 0, leased(5, 250));
    assert_eq!(step(&mut copies, 1, CopiesEvent::Revoked(PAGE)), []);
    assert_eq!(copies.uses(OURS), Some(true), "bytes may still come");
    assert_eq!(step(&mut copies, 2, leased(6, 300)), []);
    assert_eq!(step(&mut copies, 3, CopiesEvent::Copied { page: PAGE, whole: true }), []);
    assert_eq!(copies.uses(OURS), None);
    assert_eq!(step(&mut copies, 4, leased(6, 300)), []);
}

#[test]
fn a_copy_of_an_earlier_sharing_is_read_anew() {
    let mut copies = published();
    assert_eq!(step(&mut copies, 9, leased(6, 300)), [CopiesAction::Hide(OURS), copy(6)]);
    step(&mut copies, 10, CopiesEvent::Copied { page: PAGE, whole: true });
    let show = CopiesAction::Publish { ours: OURS, copy: CopyId(2), until: at(300) };
    assert_eq!(step(&mut copies, 10, leased(6, 300)), [show]);
}

#[test]
fn a_copy_that_could_not_be_read_is_not_tried_again_at_once() {
    let mut copies = copies();
    step(&mut copies, 0, CopiesEvent::Wanted(PAGE));
    step(&mut copies, 0, leased(5, 250));
    step(&mut copies, 1, CopiesEvent::Copied { page: PAGE, whole: false });
    step(&mut copies, 2, CopiesEvent::Wanted(PAGE));
    assert!(!copies.is_wanted(PAGE));
    step(&mut copies, 201, CopiesEvent::Wanted(PAGE));
    assert!(copies.is_wanted(PAGE));
}

#[test]
fn a_copy_that_can_t_be_had_is_not_wanted_for_ever() {
    let mut copies = copies();
    step(&mut copies, 0, CopiesEvent::Wanted(PAGE));
    assert_eq!(copies.deadline(), Some(at(200)));
    step(&mut copies, 200, CopiesEvent::DeadlinePassed);
    assert!(!copies.is_wanted(PAGE), "its rack asks for the page itself again");
    step(&mut copies, 300, CopiesEvent::Wanted(PAGE));
    assert!(!copies.is_wanted(PAGE), "it is left alone as long");
    step(&mut copies, 400, CopiesEvent::Wanted(PAGE));
    assert!(copies.is_wanted(PAGE));
}
