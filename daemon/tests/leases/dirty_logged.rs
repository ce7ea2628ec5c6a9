//! Clients write a page that moves, and log the lines themselves. The logged lines follow the page,
//! even if a client ends.

use rackpool_ring::client_file::ThreadSlot;
use rackpool_shm::access::PageWordRef;

use super::moving::{Moving, delta, is_here};
use super::*;

impl Moving {
    fn slot(&self) -> &ThreadSlot {
        self.stand.plane.client(CLIENT).unwrap().file().thread(0).unwrap()
    }

    fn frame(&self) -> FrameId {
        FrameId(self.goes.0 - LOCAL.0)
    }

    fn word(&self) -> PageWord {
        let word = self.stand.plane.metadata().word(self.frame()).unwrap();
        PageWord::from_raw(word.load(Ordering::Relaxed))
    }

    /// The client begins to write this line.
    fn begin_to_write(&self, line: u64) {
        let word = PageWordRef::new(self.stand.plane.metadata().word(self.frame()).unwrap());
        let guard = self.slot().access.enter_dirty_logged(self.frame(), word, word.load()).unwrap();
        assert!(self.slot().lines.note(self.frame(), line * 64, 8));
        std::mem::forget(guard);
    }

    fn end_to_write(&self) {
        self.slot().access.clear();
    }

    fn write_line(&self, line: u64) {
        self.begin_to_write(line);
        self.end_to_write();
    }

    /// A page whose swap is in doubt, and which this rack and the other rack write.
    fn dirty_logged() -> Self {
        let mut moving = Self::new();
        moving.offer(false);
        let (ticket, stale) = moving.ready();
        assert!(stale);
        moving.copy(ticket);
        assert_eq!(moving.asked().1, [SwapMessage::Copied]);
        moving
    }

    /// The dirty lines that the new home receives.
    fn told(&mut self) -> Option<(bool, Vec<u32>)> {
        let (requests, _) = self.asked();
        delta(&requests).map(|(known, lines, _)| (known, lines))
    }
}

#[test]
fn what_clients_noted_follows_a_page_that_goes() {
    let mut moving = Moving::dirty_logged();
    assert!(moving.word().is_dirty_logged());
    for line in [3, 4, 3] {
        moving.write_line(line);
    }
    moving.decide();
    assert!(!moving.word().is_dirty_logged(), "nobody writes any more");
    assert_eq!(moving.told(), Some((true, vec![3, 4])));
    assert_eq!(moving.translate(1, moving.goes, Access::Write), None);
}

#[test]
fn who_is_stopped_in_the_midst_of_a_write_holds_nobody_up() {
    let mut moving = Moving::dirty_logged();
    let (goes, theirs) = (moving.goes, moving.theirs);
    moving.begin_to_write(5);
    moving.decide();
    assert_eq!(moving.told(), None, "he may store it still");
    assert!(!moving.word().is_dirty_logged());
    let write = PeerRequest::Write { addr: addr(goes), bytes: vec![7; 8] };
    let waits = moving.stand.ask(theirs, &write);
    assert_eq!(moving.stand.replied(theirs, waits), None);
    moving.stand.step(6);
    assert!(moving.word().is_dirty_logged(), "the others go on");
    moving.stand.step(0);
    assert_eq!(moving.stand.replied(theirs, waits), Some(PeerReply::Written { moving: true }));
    assert!(is_here(moving.translate(1, goes, Access::Write)));
    assert_eq!(moving.told(), None);
    moving.end_to_write();
    moving.stand.step(6);
    let line = u32::try_from(addr(goes).offset(PlaneUnderTest::page_size()) / 64).unwrap();
    let mut lines = vec![5, line];
    lines.sort_unstable();
    assert_eq!(moving.told(), Some((true, lines)));
}

#[test]
fn what_a_client_noted_that_has_died_follows_the_page() {
    let mut moving = Moving::dirty_logged();
    moving.begin_to_write(7);
    moving.stand.plane.kill(CLIENT).unwrap();
    moving.stand.step(0);
    moving.decide();
    assert_eq!(moving.told(), Some((true, vec![7])), "others may have seen it");
}

/// Regression: the writer's log entry was attributed to the aborted swap.
#[test]
fn who_writes_since_an_earlier_swap_is_not_forgotten() {
    let mut moving = Moving::new();
    moving.offer(false);
    moving.ready();
    moving.begin_to_write(9);
    moving.stand.step(200);
    moving.asked();
    assert_eq!(moving.word().state(), Some(rackpool_model::PageState::Live), "it is given up");
    moving.slot().lines.take(|_, _| {});
    moving.offer(false);
    let (_, messages) = moving.asked();
    let [SwapMessage::Prepared { ticket, stale: true, .. }] = messages[..] else {
        panic!("{messages:?}")
    };
    moving.end_to_write();
    moving.copy(ticket);
    moving.asked();
    moving.decide();
    assert_eq!(moving.told(), Some((true, vec![9])));
}

#[test]
fn lines_that_no_page_has_are_not_sent() {
    let mut moving = Moving::dirty_logged();
    let beyond = PlaneUnderTest::page_size().bytes();
    assert!(moving.slot().lines.note(moving.frame(), beyond - 64, 4096));
    assert!(moving.slot().lines.note(FrameId(u32::MAX), 0, 8));
    moving.decide();
    let last = u32::try_from(beyond / 64 - 1).unwrap();
    assert_eq!(moving.told(), Some((true, vec![last])));
}

/// The restarted daemon does not know what was written, so the whole page is copied again.
#[test]
fn a_restarted_home_writes_on_in_a_page_that_is_dirty_logged() {
    let mut moving = Moving::dirty_logged();
    moving.begin_to_write(5);
    moving.stand.plane.restart().unwrap();
    moving.stand.plane.come_back(CLIENT).unwrap();
    moving.stand.heard.clear();
    moving.stand.step(5);
    assert!(moving.word().is_dirty_logged());
    moving.stand.called = [0; 8];
    assert!(is_here(moving.translate(1, moving.goes, Access::Write)));
    assert_eq!(moving.stand.write_in(2, moving.goes, 1), Some(RackAnswer::Done(0)));
}
