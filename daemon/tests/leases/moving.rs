//! A page moves away and another one arrives, message by message: access rights of readers and
//! writers at each step.

use rackpool_wire::swap::{FromServer, PageLife};

use super::*;

pub(super) const SWAP: SwapId = SwapId(9);
/// The arriving page.
pub(super) const COMES: PageId = PageId(1007);
const COMES_AT: Epoch = Epoch::new(3);

/// A rack that exchanges a page with another rack.
pub(super) struct Moving {
    pub(super) stand: Stand,
    pub(super) goes: PageId,
    /// The endpoint on which the other rack sends requests, and the one to which this rack sends
    /// them.
    pub(super) theirs: EndpointId,
    pub(super) ours: EndpointId,
    /// The slab header of both pages.
    usage: u64,
    /// The lookup for the lease prefetch at the new home of the departing page.
    prefetch_lease: Option<(EndpointId, u64)>,
}

impl Moving {
    pub(super) fn new() -> Self {
        let mut stand = Stand::new();
        let (ours, _) = stand.lease();
        let goes = stand.allocate().page(PlaneUnderTest::page_size()).unwrap();
        let theirs = stand.plane.accept(HOME);
        stand.step(0);
        let usage = match stand.asks(theirs, &lookup(goes)) {
            PeerReply::Location { usage, writable: true, .. } => usage,
            other => panic!("{other:?}"),
        };
        Self { stand, goes, theirs, ours, usage, prefetch_lease: None }
    }

    pub(super) fn tell(&mut self, message: SwapMessage) {
        let request = PeerRequest::Swap(Between { swap: SWAP, message });
        assert_eq!(self.stand.asks(self.theirs, &request), PeerReply::Heard);
    }

    /// The daemon's requests since the last call, and separately its messages about the swap.
    pub(super) fn asked(&mut self) -> (Vec<(EndpointId, u64, PeerRequest)>, Vec<SwapMessage>) {
        let (mut requests, mut messages) = (Vec::new(), Vec::new());
        // Messages of the last round are sent in the next.
        self.stand.step(0);
        while let Some((endpoint, number, request)) = self.stand.request() {
            match request {
                PeerRequest::Swap(Between { swap, message }) => {
                    assert_eq!(swap, SWAP);
                    messages.push(message);
                }
                request => requests.push((endpoint, number, request)),
            }
        }
        (requests, messages)
    }

    /// The other rack sends Prepare for the page; `read_hot` if it mostly reads it.
    pub(super) fn offer(&mut self, read_hot: bool) {
        let offered = PageLife { page: COMES, epoch: COMES_AT };
        let (wanted, milli) = (self.goes, u64::MAX);
        self.tell(SwapMessage::Prepare { wanted, milli, read_hot, offered, live: true });
    }

    /// Returns the lease that was revoked.
    pub(super) fn give_back(&mut self, keeps_reading: bool) {
        let (requests, _) = self.asked();
        let [(over, number, PeerRequest::Revoke { page, keep_reading, .. })] = requests[..] else {
            panic!("{requests:?}")
        };
        assert_eq!((page, keep_reading), (self.goes, keeps_reading));
        self.stand.reply((over, number), &PeerReply::Returned);
    }

    /// Lets this rack copy the arriving page.
    pub(super) fn copy(&mut self, ticket: u64) {
        self.tell(SwapMessage::Copy { ticket, frame: FrameId(2), stale: false });
        let (requests, _) = self.asked();
        let contents = PeerRequest::Contents { page: COMES, epoch: COMES_AT };
        let [(over, number, ref request)] = requests[..] else { panic!("{requests:?}") };
        assert_eq!((over, request), (self.ours, &contents));
        let head = encode(&PeerReply::Contents { usage: self.usage }).unwrap();
        self.stand.plane.message(over, &message::answer(number, &head, 8));
        self.stand.plane.complete(0);
        self.stand.step(0);
    }

    /// Waits until no other rack writes the page. Returns the ticket, and whether this rack still
    /// writes it.
    pub(super) fn ready(&mut self) -> (u64, bool) {
        self.give_back(true);
        let (_, messages) = self.asked();
        let [SwapMessage::Prepared { ticket, stale, .. }] = messages[..] else {
            panic!("{messages:?}")
        };
        (ticket, stale)
    }

    /// Brings the swap in doubt: no rack writes the departing page, and the exchange depends on the
    /// metadata server's decision.
    pub(super) fn doubt(&mut self) {
        self.offer(true);
        let (ticket, stale) = self.ready();
        assert!(!stale, "nobody wants to write it");
        self.copy(ticket);
        let (requests, messages) = self.asked();
        assert_eq!(messages, [SwapMessage::Copied]);
        let [(over, number, PeerRequest::Lookup { page, access: Access::Read, .. })] = requests[..]
        else {
            panic!("{requests:?}")
        };
        assert_eq!((over, page), (self.ours, self.goes));
        self.prefetch_lease = Some((over, number));
    }

    pub(super) fn decide(&mut self) {
        let decided = FromServer::Decision { swap: SWAP, committed: true };
        self.stand.plane.server_sent(decided).unwrap();
        self.stand.step(0);
    }

    /// Commits. The departing page can be read at its new home, which has all dirty lines.
    pub(super) fn commit(&mut self) {
        self.doubt();
        self.decide();
        self.tell(SwapMessage::DirtyLinesApplied);
    }

    /// Answers the lease prefetch: the departing page can be read at its new home.
    pub(super) fn prefetch_lease(&mut self) {
        let (epoch, usage) = (Epoch::ZERO.next(), self.usage);
        let location = PeerReply::Location {
            lease: 1 << 40,
            frame: FrameId(2),
            epoch,
            usage,
            writable: false,
            forwards: false,
            sharing: None,
        };
        self.stand.reply(self.prefetch_lease.take().unwrap(), &location);
    }

    /// Returns the last lease of the departing page, whose revocation is among these requests.
    pub(super) fn give_back_last(&mut self, requests: &[(EndpointId, u64, PeerRequest)]) {
        let goes = self.goes;
        let call = requests.iter().find_map(|(over, number, request)| match request {
            PeerRequest::Revoke { page, keep_reading: false, .. } if *page == goes => {
                Some((*over, *number))
            }
            _ => None,
        });
        self.stand.reply(call.unwrap(), &PeerReply::Returned);
        assert_eq!(self.asked().1, [SwapMessage::Quiesced]);
    }

    /// Gives this rack lease 77 of the arriving page.
    fn lease_what_comes(&mut self) {
        assert_eq!(self.translate(1, COMES, Access::Read), None);
        let (requests, _) = self.asked();
        let [(over, number, PeerRequest::Lookup { page: COMES, .. })] = requests[..] else {
            panic!("{requests:?}")
        };
        self.stand.reply((over, number), &leased(77, true));
    }

    pub(super) fn translate(
        &mut self,
        cell: u8,
        page: PageId,
        access: Access,
    ) -> Option<RackAnswer> {
        self.stand.call(cell, RackRequest::Translate { page, access })
    }
}

/// The dirty lines that the departing page's new home receives.
pub(super) fn delta(
    requests: &[(EndpointId, u64, PeerRequest)],
) -> Option<(bool, Vec<u32>, Vec<u8>)> {
    requests.iter().find_map(|(.., request)| match request {
        PeerRequest::DirtyLines { swap: SWAP, known, lines, bytes, .. } => {
            Some((*known, lines.clone(), bytes.clone()))
        }
        _ => None,
    })
}

pub(super) fn is_here(answer: Option<RackAnswer>) -> bool {
    matches!(answer, Some(RackAnswer::Local { .. }))
}

#[test]
fn a_page_that_was_not_copied_yet_is_read_and_written_by_this_rack_alone() {
    let mut moving = Moving::new();
    let (goes, theirs) = (moving.goes, moving.theirs);
    moving.offer(true);
    assert!(is_here(moving.translate(0, goes, Access::Read)));
    assert!(is_here(moving.translate(1, goes, Access::Write)));
    for (question, access) in (2..).zip([Access::Read, Access::Write]) {
        let lookup = PeerRequest::Lookup { page: goes, question, access, keep: false };
        let reply = moving.stand.asks(theirs, &lookup);
        let by_home = matches!(reply, PeerReply::Location { writable: false, forwards: true, .. });
        assert!(by_home, "{reply:?}");
    }
    let write = PeerRequest::Write { addr: addr(goes), bytes: vec![7; 8] };
    assert_eq!(moving.stand.asks(theirs, &write), PeerReply::Written { moving: true });
    let (ticket, stale) = moving.ready();
    assert!(stale, "whoever copies it has to know");
    assert_eq!(moving.stand.asks(theirs, &write), PeerReply::Written { moving: true });
    moving.copy(ticket);
    assert_eq!(moving.asked().1, [SwapMessage::Copied]);
    assert_eq!(moving.stand.asks(theirs, &write), PeerReply::Written { moving: true });
}

#[test]
fn a_page_that_its_new_home_writes_is_written_for_others_all_the_time() {
    let mut moving = Moving::new();
    let goes = moving.goes;
    moving.offer(false);
    assert!(is_here(moving.translate(1, goes, Access::Write)), "clients here write on themselves");
    let (_, stale) = moving.ready();
    assert!(stale);
    assert!(is_here(moving.translate(1, goes, Access::Write)));
    assert!(matches!(
        moving.stand.asks(moving.theirs, &lookup(goes)),
        PeerReply::Location { writable: false, forwards: true, .. }
    ));
    assert_eq!(moving.asked().1, [], "nobody has to be told, or waits");
}

#[test]
fn a_page_that_has_come_is_read_at_once_and_written_when_its_old_home_has_left_it() {
    let mut moving = Moving::new();
    moving.commit();
    assert!(is_here(moving.translate(0, COMES, Access::Read)));
    assert_eq!(moving.translate(1, COMES, Access::Write), None, "it waits");
    moving.asked();
    moving.stand.step(20);
    assert!(moving.asked().1.contains(&SwapMessage::IsQuiesced));
    moving.tell(SwapMessage::Quiesced);
    assert!(is_here(moving.stand.answer(1)));
}

#[test]
fn a_page_that_has_gone_is_read_here_until_the_daemon_can_say_where_to_go_on() {
    let mut moving = Moving::new();
    let (goes, usage) = (moving.goes, moving.usage);
    moving.commit();
    assert!(is_here(moving.translate(0, goes, Access::Read)), "nothing is known of the new home");
    moving.asked();
    moving.prefetch_lease();
    let remote = RackAnswer::Remote { home: HOME, usage };
    assert_eq!(moving.translate(1, goes, Access::Read), Some(remote));
    let (requests, _) = moving.asked();
    let asks = |request: &PeerRequest| matches!(request, PeerRequest::Lookup { .. });
    assert!(!requests.iter().any(|(.., request)| asks(request)), "{requests:?}");
}

#[test]
fn no_rack_may_write_a_page_before_its_new_home_hears_that_the_old_one_has_left_it() {
    let mut moving = Moving::new();
    let theirs = moving.theirs;
    let read = PeerRequest::Lookup { page: COMES, question: 1, access: Access::Read, keep: false };
    let early = moving.stand.ask(theirs, &read);
    moving.commit();
    let writable = |reply: &PeerReply| match *reply {
        PeerReply::Location { writable, .. } => Some(writable),
        _ => None,
    };
    assert_eq!(moving.stand.replied(theirs, early), Some(PeerReply::NotHere), "before the offer");
    assert_eq!(writable(&moving.stand.asks(theirs, &read)), Some(false), "nor does its old home");
    moving.tell(SwapMessage::Quiesced);
    assert_eq!(writable(&moving.stand.asks(theirs, &lookup(COMES))), Some(true));
}

#[test]
fn an_old_home_says_that_it_has_left_when_the_last_lease_is_back() {
    let mut moving = Moving::new();
    moving.commit();
    moving.prefetch_lease();
    moving.tell(SwapMessage::IsQuiesced);
    let (requests, messages) = moving.asked();
    assert!(!messages.contains(&SwapMessage::Quiesced), "a lease for reading is out");
    moving.give_back_last(&requests);
    // Before that this memory is too new to report quiesced.
    moving.stand.step(2_500);
    moving.tell(SwapMessage::IsQuiesced);
    assert!(moving.asked().1.contains(&SwapMessage::Quiesced), "as often as it is asked");
}

/// A revocation together with the page's arrival made its writers wait for two more messages.
#[test]
fn the_new_home_of_a_page_gives_its_lease_back_unasked() {
    let mut moving = Moving::new();
    let ours = moving.ours;
    moving.lease_what_comes();
    moving.doubt();
    moving.tell(SwapMessage::CopyIncomplete);
    assert_eq!(moving.asked().1, [SwapMessage::IncompleteNoted]);
    moving.decide();
    moving.asked();
    let (lines, bytes) = (vec![1], vec![9; 64]);
    let delta =
        PeerRequest::DirtyLines { swap: SWAP, frame: FrameId(2), known: true, lines, bytes };
    assert_eq!(moving.stand.asks(moving.theirs, &delta), PeerReply::Heard);
    moving.stand.step(0);
    let back = PeerRequest::Return { page: COMES, lease: 77 };
    let (over, _, request) = moving.stand.request().unwrap();
    assert_eq!((over, request), (ours, back), "before the old home hears that it may leave");
    assert_eq!(moving.asked().1, [SwapMessage::DirtyLinesApplied]);
}

/// Regression: the rack requested a copy of the page at its old home, which then had one more lease
/// to revoke.
#[test]
fn who_has_read_a_page_that_has_come_meanwhile_asks_for_no_copy_of_it() {
    let mut moving = Moving::new();
    moving.lease_what_comes();
    moving.stand.plane.want_copy(COMES).unwrap();
    let (requests, _) = moving.asked();
    let [(over, number, PeerRequest::Lookup { keep: true, .. })] = requests[..] else {
        panic!("{requests:?}")
    };
    moving.stand.reply((over, number), &leased(78, true));
    moving.doubt();
    let read = RackRequest::Read { addr: addr(COMES), len: 8, data: 0, batch: 5 };
    assert_eq!(moving.stand.call(2, read), None);
    moving.stand.step(3);
    moving.decide();
    assert!(is_here(moving.translate(1, COMES, Access::Read)));
    moving.asked();
    moving.stand.plane.complete(0);
    moving.stand.step(0);
    assert_eq!(moving.stand.answer(2), Some(RackAnswer::DoneAt(HOME)));
    let (requests, _) = moving.asked();
    let asks = |request: &PeerRequest| matches!(request, PeerRequest::Lookup { .. });
    assert!(!requests.iter().any(|(.., request)| asks(request)), "{requests:?}");
}

#[test]
fn an_old_home_calls_no_lease_back_that_came_back_unasked() {
    let mut moving = Moving::new();
    let (goes, theirs) = (moving.goes, moving.theirs);
    moving.commit();
    let PeerReply::Location { lease, .. } = moving.stand.asks(
        theirs,
        &PeerRequest::Lookup { page: goes, question: 2, access: Access::Read, keep: false },
    ) else {
        panic!("the page is still read here")
    };
    moving.asked();
    let back = |lease| PeerRequest::Return { page: goes, lease };
    assert_eq!(moving.stand.asks(theirs, &back(lease - 1)), PeerReply::Heard, "an older one");
    assert_eq!(moving.stand.asks(theirs, &back(lease)), PeerReply::Heard);
    moving.prefetch_lease();
    let (requests, messages) = moving.asked();
    assert_eq!(messages, [SwapMessage::Quiesced]);
    let calls = |request: &PeerRequest| matches!(request, PeerRequest::Revoke { .. });
    assert!(!requests.iter().any(|(.., request)| calls(request)), "{requests:?}");
}

#[test]
fn a_page_that_goes_is_written_for_others_and_what_was_written_follows_it() {
    let mut moving = Moving::new();
    let (goes, theirs) = (moving.goes, moving.theirs);
    moving.doubt();
    assert_eq!(moving.translate(1, goes, Access::Write), None, "its copy lacks nothing so far");
    let write = PeerRequest::Write { addr: addr(goes), bytes: vec![7; 8] };
    let waits = moving.stand.ask(theirs, &write);
    assert_eq!(moving.stand.replied(theirs, waits), None);
    assert_eq!(moving.asked().1, [SwapMessage::CopyIncomplete]);
    moving.tell(SwapMessage::IncompleteNoted);
    assert_eq!(moving.stand.replied(theirs, waits), Some(PeerReply::Written { moving: true }));
    assert!(is_here(moving.stand.answer(1)), "by its clients, too");
    assert!(matches!(
        moving.stand.asks(theirs, &lookup(goes)),
        PeerReply::Location { writable: false, forwards: true, .. }
    ));
    assert_eq!(moving.stand.asks(theirs, &write), PeerReply::Written { moving: true });
    let add = PeerRequest::FetchAndAdd { addr: addr(goes), delta: 1 };
    assert_eq!(moving.stand.asks(theirs, &add), PeerReply::Value(0x0707_0707_0707_0707));
    let page_bytes = usize::try_from(PlaneUnderTest::page_size().bytes()).unwrap();
    let beyond = PeerRequest::Write { addr: addr(goes), bytes: vec![1; page_bytes + 1] };
    assert!(matches!(moving.stand.asks(theirs, &beyond), PeerReply::Invalid(_)));

    moving.decide();
    let waits = moving.stand.ask(theirs, &write);
    assert_eq!(moving.stand.replied(theirs, waits), None, "it is not written here any more");
    let (requests, messages) = moving.asked();
    let here = [SwapMessage::Committed, SwapMessage::DirtyLinesApplied];
    assert_eq!(messages, here, "the other page");
    let (known, lines, bytes) = delta(&requests).unwrap();
    assert!(known);
    let line = addr(goes).offset(PlaneUnderTest::page_size()) / 64;
    assert_eq!((lines.len(), u64::from(lines[0])), (1, line));
    assert_eq!(bytes[..9], [8, 7, 7, 7, 7, 7, 7, 7, 0]);
    moving.prefetch_lease();
    assert!(is_here(moving.translate(2, goes, Access::Read)), "its new home has not applied");
    moving.tell(SwapMessage::DirtyLinesApplied);
    assert!(!is_here(moving.translate(3, goes, Access::Read)));
    assert_eq!(moving.stand.replied(theirs, waits), Some(PeerReply::NotHere));
}

#[test]
fn a_page_whose_copy_is_stale_is_read_when_it_has_what_it_lacks() {
    let mut moving = Moving::new();
    moving.doubt();
    moving.tell(SwapMessage::CopyIncomplete);
    assert_eq!(moving.asked().1, [SwapMessage::IncompleteNoted]);
    moving.decide();
    let read = PeerRequest::FetchAndAdd { addr: addr(COMES).add(64).unwrap(), delta: 0 };
    let waits = moving.stand.ask(moving.theirs, &read);
    assert_eq!(moving.stand.replied(moving.theirs, waits), None);
    let line = u32::try_from(addr(COMES).offset(PlaneUnderTest::page_size()) / 64).unwrap() + 1;
    let delta = |lines, bytes| PeerRequest::DirtyLines {
        swap: SWAP,
        frame: FrameId(2),
        known: true,
        lines,
        bytes,
    };
    let came = delta(vec![line], vec![9; 64]);
    assert_eq!(moving.stand.asks(moving.theirs, &came), PeerReply::Heard);
    assert!(moving.asked().1.contains(&SwapMessage::DirtyLinesApplied));
    let applied = PeerReply::Value(0x0909_0909_0909_0909);
    assert_eq!(moving.stand.replied(moving.theirs, waits), Some(applied));
    // The message arrives again, and is recognized.
    assert_eq!(moving.stand.asks(moving.theirs, &came), PeerReply::Heard);
    assert_eq!(moving.asked().1, [SwapMessage::DirtyLinesApplied]);
}

#[test]
fn lines_that_no_page_has_are_not_merged() {
    for (lines, bytes) in [(vec![u32::MAX], vec![9; 64]), (vec![0, 1], vec![9; 64])] {
        let mut moving = Moving::new();
        moving.doubt();
        moving.tell(SwapMessage::CopyIncomplete);
        moving.decide();
        moving.asked();
        let request =
            PeerRequest::DirtyLines { swap: SWAP, frame: FrameId(2), known: true, lines, bytes };
        moving.stand.ask(moving.theirs, &request);
        assert!(!is_here(moving.translate(1, COMES, Access::Read)), "it is still not whole");
    }
}

/// Regression: an atomic operation beyond the end of its page was logged before it was refused. The
/// new home received a line that its page does not have, and cut off the old home, again and again.
#[test]
fn what_is_refused_is_not_noted_as_written() {
    let mut moving = Moving::new();
    let (goes, theirs) = (moving.goes, moving.theirs);
    moving.doubt();
    moving.stand.ask(
        theirs,
        &PeerRequest::Lookup { page: goes, question: 1, access: Access::Write, keep: false },
    );
    moving.asked();
    moving.tell(SwapMessage::IncompleteNoted);
    let size = PlaneUnderTest::page_size();
    for before_end in [1, 4, 7] {
        let addr = GlobalAddr::new(goes, size.bytes() - before_end, size).unwrap();
        let add = PeerRequest::FetchAndAdd { addr, delta: 1 };
        assert!(matches!(moving.stand.asks(theirs, &add), PeerReply::Invalid(_)));
    }
    moving.decide();
    let (requests, _) = moving.asked();
    let lines = requests.into_iter().find_map(|(.., request)| match request {
        PeerRequest::DirtyLines { lines, .. } => Some(lines),
        _ => None,
    });
    assert_eq!(lines, Some(vec![]));
}

/// Regression: an atomic operation in a page that was lost with its old home was answered as an
/// invalid one.
#[test]
fn whoever_adds_in_a_lost_page_hears_that_it_is_lost() {
    let mut stand = Stand::new();
    stand.lease();
    let add = RackRequest::FetchAndAdd { addr: addr(REMOTE), delta: 1 };
    assert_eq!(stand.call(1, add), None);
    let (over, number, request) = stand.request().unwrap();
    assert_eq!(request, PeerRequest::FetchAndAdd { addr: addr(REMOTE), delta: 1 });
    stand.reply((over, number), &PeerReply::Lost);
    assert_eq!(stand.answer(1), Some(RackAnswer::PageLost));
}

/// Regression: a page that was lost on its way here was taken for one that moves for ever. Frees of
/// its objects waited for the end of its swap, and blocked later ones.
#[test]
fn objects_of_a_lost_page_are_taken_back_from_everybody() {
    let mut moving = Moving::new();
    let (other, own, gone) =
        (addr(COMES), addr(COMES).add(64).unwrap(), addr(COMES).add(128).unwrap());
    moving.doubt();
    moving.tell(SwapMessage::CopyIncomplete);
    moving.decide();
    let free =
        PeerRequest::Free { rack: HOME, memory: MemoryId(1), sequence: 1, addrs: vec![other] };
    let waits = moving.stand.ask(moving.theirs, &free);
    assert_eq!(moving.stand.replied(moving.theirs, waits), None, "it may still come");
    let slot = moving.stand.plane.client(CLIENT).unwrap().file().thread(0).unwrap();
    slot.outbox[0].store(own.raw(), Ordering::Relaxed);
    slot.inbox[1].store(gone.raw(), Ordering::Relaxed);
    assert_eq!(moving.stand.call(1, RackRequest::Release), None);

    moving.tell(SwapMessage::Quiesced);
    assert_eq!(moving.translate(2, COMES, Access::Read), Some(RackAnswer::PageLost));
    let freed = PeerReply::Freed { refused: 1, moved: vec![] };
    assert_eq!(moving.stand.replied(moving.theirs, waits), Some(freed));
    assert_eq!(moving.stand.answer(1), Some(RackAnswer::Done(1)), "it was no object any more");
    moving.stand.plane.kill(CLIENT).unwrap();
    moving.stand.step(0);
    let slot = moving.stand.plane.client(CLIENT).unwrap().file().thread(0).unwrap();
    assert_eq!(slot.inbox[1].load(Ordering::Relaxed), 0, "nothing is waited for");
}

impl Stand {
    pub(super) fn write_in(&mut self, cell: u8, page: PageId, batch: u64) -> Option<RackAnswer> {
        self.call(cell, RackRequest::Write { addr: addr(page), len: 8, data: 0, batch })
    }
}

/// Regression: a write that this daemon executes itself completes at once, and overtook writes of
/// its batch that were under way to another rack.
#[test]
fn what_is_carried_out_here_does_not_overtake_what_its_batch_has_under_way() {
    let mut moving = Moving::new();
    let (goes, moved) = (moving.goes, Some(RackAnswer::Moved));
    moving.offer(true);
    assert_eq!(moving.stand.write_in(2, REMOTE, 77), None);
    assert_eq!(moving.stand.write_in(3, goes, 77), moved);
    assert_eq!(moving.stand.write_in(4, goes, 77), moved, "nor what comes after");
    moving.stand.plane.complete(0);
    moving.stand.step(0);
    assert_eq!(moving.stand.answer(2), Some(RackAnswer::DoneAt(HOME)));
    assert_eq!(moving.stand.write_in(3, goes, 78), Some(RackAnswer::Done(0)));
    assert_eq!(moving.stand.write_in(2, REMOTE, 78), None, "what is done is not overtaken");
}

/// Operations sent to two racks have no order: a batch was sent to both at a time when one of its
/// pages was believed to be where the other one is.
#[test]
fn a_batch_goes_to_one_rack_at_a_time() {
    let mut stand = Stand::new();
    stand.lease();
    let page = PageId(2005);
    assert_eq!(stand.call(1, RackRequest::Translate { page, access: Access::Write }), None);
    stand.plane.connect(Some(OTHER)).unwrap();
    stand.step(0);
    let (over, number, request) = stand.request().unwrap();
    assert!(matches!(request, PeerRequest::Lookup { .. }), "{request:?}");
    stand.reply((over, number), &location(6));
    assert!(matches!(stand.answer(1), Some(RackAnswer::Remote { home: OTHER, .. })));
    assert_eq!(stand.write_in(2, REMOTE, 9), None);
    assert_eq!(stand.write_in(3, page, 9), Some(RackAnswer::Moved));
    assert_eq!(stand.write_in(4, page, 10), None, "another batch");
    assert_eq!(stand.write_in(5, REMOTE, 10), Some(RackAnswer::Moved));
}

/// Regression: a client had given up a transfer and begun another batch; the late end of the first
/// batch made the daemon forget what it had refused of the second.
#[test]
fn the_late_end_of_an_earlier_batch_does_not_forget_the_present_one() {
    let mut moving = Moving::new();
    moving.offer(true);
    let (goes, ours) = (moving.goes, moving.ours);
    let stand = &mut moving.stand;
    assert_eq!(stand.write_in(2, REMOTE, 5), None);
    assert_eq!(stand.write_in(3, PageId(1009), 6), Some(RackAnswer::Moved), "it is not known");
    stand.plane.disconnect(ours, DisconnectReason::PeerGone);
    stand.step(0);
    assert_eq!(stand.answer(2), Some(RackAnswer::Moved));
    assert_eq!(
        stand.write_in(4, goes, 6),
        Some(RackAnswer::Moved),
        "nothing after what was refused"
    );
    assert_eq!(stand.write_in(4, goes, 7), Some(RackAnswer::Done(0)));
}
