//! Client behaviour while pages move, with a scripted daemon.

use std::sync::Condvar;

use rackpool_model::{Access, PageState};
use rackpool_wire::rack::LONGEST_FORWARDED;

use super::*;

/// A slab of 64 B objects.
const PAGE_1: PageId = PageId(1);
const FIRST: GlobalAddr = GlobalAddr::from_raw(PAGE);
/// Answers the requests other than translations of page 1.
type Served = Box<dyn FnMut(RackRequest) -> Option<RackAnswer> + Send>;

/// The requests so far, and the answers to translations of page 1.
#[derive(Default)]
struct Script {
    asked: Mutex<Vec<RackRequest>>,
    told: Condvar,
    translations: Mutex<Vec<RackAnswer>>,
}

impl Script {
    /// Waits for a request for which `wanted` returns true.
    fn wait_for(&self, wanted: impl Fn(&RackRequest) -> bool) {
        let asked = self.asked.lock().unwrap();
        let until = Duration::from_secs(10);
        let asks = |asked: &mut Vec<RackRequest>| !asked.iter().any(&wanted);
        let (_asked, late) = self.told.wait_timeout_while(asked, until, asks).unwrap();
        assert!(!late.timed_out(), "it was never asked");
    }

    /// Sets the answers to translations of page 1, in order. Without an answer left, a request
    /// stays parked.
    fn translations(&self, answers: &[RackAnswer]) {
        *self.translations.lock().unwrap() = answers.iter().rev().copied().collect();
    }

    fn count(&self, wanted: impl Fn(&RackRequest) -> bool) -> usize {
        self.asked.lock().unwrap().iter().filter(|request| wanted(request)).count()
    }
}

const fn is_translation(request: &RackRequest) -> bool {
    matches!(request, RackRequest::Translate { .. })
}

const fn for_writing(request: &RackRequest) -> bool {
    matches!(request, RackRequest::Translate { access: Access::Write, .. })
}

const fn is_write(request: &RackRequest) -> bool {
    matches!(request, RackRequest::Write { .. })
}

fn local(word: PageWord) -> RackAnswer {
    RackAnswer::Local { frame: FrameId(0), word, usage: slab(64) }
}

fn frozen() -> PageWord {
    live(0).apply(PageEvent::Frozen).unwrap()
}

fn moved_here(frame: u32, epoch: u32) -> PageWord {
    PageWord::new(PageState::Live, rackpool_model::Epoch::new(epoch), PageId(frame + 1))
}

fn away() -> RackAnswer {
    RackAnswer::Remote { home: RackId(1), usage: slab(64) }
}

/// A bench with page 1 live in frame 0, its script, and a thread.
fn begin(mut other: Served) -> (Bench, Arc<Script>, Thread) {
    let mut bench = Bench::new();
    set(&bench, 0, live(0));
    let script = Arc::new(Script::default());
    let served = Arc::clone(&script);
    bench.serve(move |slot, request| {
        served.asked.lock().unwrap().push(request);
        served.told.notify_all();
        match request {
            RackRequest::Translate { page: PAGE_1, .. } => {
                served.translations.lock().unwrap().pop()
            }
            RackRequest::Release => other(request).or_else(|| release(slot).1),
            _ => other(request),
        }
    });
    let thread = bench.thread();
    (bench, script, thread)
}

fn set(bench: &Bench, frame: u32, word: PageWord) {
    let at = bench.connection.layout.word(FrameId(frame));
    bench.metadata.write(at, &word.raw().to_le_bytes()).unwrap();
}

fn nothing_else() -> Served {
    Box::new(|_| None)
}

fn read(thread: &mut Thread, addr: GlobalAddr) -> Result<u64, AccessError> {
    let mut bytes = [0; 8];
    thread.transfer(addr, Bytes::Read(&mut bytes))?;
    Ok(u64::from_le_bytes(bytes))
}

fn write(thread: &mut Thread, addr: GlobalAddr, value: u64) -> Result<(), AccessError> {
    thread.transfer(addr, Bytes::Write(&value.to_le_bytes()))
}

#[test]
fn reads_of_a_frozen_page_go_on_without_asking_and_are_quick_again_when_it_is_thawed() {
    let (bench, script, mut thread) = begin(nothing_else());
    script.translations(&[local(live(0)), local(frozen())]);
    write(&mut thread, FIRST, 7).unwrap();
    set(&bench, 0, frozen());
    for _ in 0..100 {
        assert_eq!(read(&mut thread, FIRST), Ok(7));
    }
    assert!(thread.window.read(FIRST, &mut [0; 8]), "the quick way too");
    assert!(!thread.window.write(FIRST, &[0; 8]), "which writes live pages only");
    assert_eq!(script.count(is_translation), 1, "the word says that reads go on");
    set(&bench, 0, live(0));
    assert_eq!(read(&mut thread, FIRST), Ok(7));
    assert!(thread.window.read(FIRST, &mut [0; 8]), "it is not known that it was thawed");
    assert!(thread.window.write(FIRST, &[0; 8]));
    assert_eq!(script.count(is_translation), 1);
}

#[test]
fn a_page_that_is_frozen_when_it_is_first_looked_up_can_be_read_and_then_written() {
    let (bench, script, mut thread) = begin(nothing_else());
    set(&bench, 0, frozen());
    script.translations(&[local(frozen())]);
    assert_eq!(read(&mut thread, FIRST), Ok(0));
    set(&bench, 0, live(0));
    assert_eq!(write(&mut thread, FIRST, 3), Ok(()), "its word says that it was thawed");
    assert_eq!(script.count(is_translation), 1);
}

#[test]
fn who_writes_to_a_page_that_moves_or_has_just_gone_has_it_written_and_waits_for_the_answer() {
    for leaves in [false, true] {
        let (bench, script, mut thread) = begin(nothing_else());
        script.translations(&[local(live(0))]);
        write(&mut thread, FIRST, 1).unwrap();
        set(&bench, 0, frozen());
        if leaves {
            set(&bench, 0, frozen().apply(PageEvent::Left).unwrap());
        }
        // Unanswered: the client waits until its timeout.
        let waiting = script.clone();
        let observer = std::thread::spawn(move || waiting.wait_for(is_write));
        let began = Instant::now();
        let refused = write(&mut thread, FIRST, 2);
        assert!(
            matches!(refused, Err(AccessError::Daemon(DaemonError::Unavailable))),
            "{refused:?}"
        );
        assert!(began.elapsed() >= TIMEOUT);
        observer.join().unwrap();
        let questions = [script.count(for_writing), script.count(is_write)];
        // One translation at the beginning, and one write request when the page was found leaving
        // or frozen.
        assert_eq!(questions, [1, 1]);
        set(&bench, 0, live(0));
        script.translations(&[local(live(0))]);
        assert_eq!(write(&mut thread, FIRST, 3), Ok(()));
        assert_eq!(read(&mut thread, FIRST), Ok(3));
    }
}

#[test]
fn who_writes_to_a_page_that_is_dirty_logged_asks_nobody_and_notes_it() {
    let (bench, script, mut thread) = begin(nothing_else());
    script.translations(&[local(live(0))]);
    write(&mut thread, FIRST, 1).unwrap();
    let dirty_logged = frozen().apply(PageEvent::DirtyLogged).unwrap();
    set(&bench, 0, dirty_logged);
    for value in 2..40 {
        write(&mut thread, FIRST, value).unwrap();
    }
    let next = FIRST.add(128).unwrap();
    write(&mut thread, next, 7).unwrap();
    assert_eq!([read(&mut thread, FIRST), read(&mut thread, next)], [Ok(39), Ok(7)]);
    assert_eq!(script.asked.lock().unwrap().len(), 1, "the first translation");
    let mut noted = Vec::new();
    thread.slot().lines.take(|frame, lines| noted.push((frame, lines)));
    assert_eq!(noted, [(FrameId(0), 0..=0), (FrameId(0), 2..=2)]);
    assert_eq!(thread.slot().access.announced(), None, "it is out");
    set(&bench, 0, live(0));
    write(&mut thread, FIRST, 3).unwrap();
    assert_eq!(script.asked.lock().unwrap().len(), 1, "its word says that it was thawed");
}

#[test]
fn what_can_not_be_noted_is_written_by_the_daemon() {
    let (bench, script, mut thread) = begin(Box::new(|request| match request {
        RackRequest::Write { .. } => Some(RackAnswer::Done(0)),
        _ => None,
    }));
    script.translations(&[local(live(0))]);
    write(&mut thread, FIRST, 1).unwrap();
    set(&bench, 0, frozen().apply(PageEvent::DirtyLogged).unwrap());
    let kept = u64::try_from(rackpool_shm::dirty_log::KEPT).unwrap();
    for line in 0..kept {
        write(&mut thread, FIRST.add(64 * line).unwrap(), line).unwrap();
    }
    assert_eq!(script.count(is_write), 0);
    write(&mut thread, FIRST.add(64 * kept).unwrap(), 1).unwrap();
    assert_eq!(script.count(is_write), 1, "there is no room");
    thread.slot().lines.take(|_, _| {});
    write(&mut thread, FIRST.add(64 * kept).unwrap(), 1).unwrap();
    assert_eq!(script.count(is_write), 1);
    set(&bench, 0, frozen());
    write(&mut thread, FIRST, 1).unwrap();
    assert_eq!(script.count(is_write), 2, "it is closed");
}

/// The result of a call that asks until its time is over. On a busy machine the last question may
/// find no time for an answer.
fn answered<T>(mut call: impl FnMut() -> Result<T, AccessError>) -> Result<T, AccessError> {
    for _ in 0..2 {
        match call() {
            Err(AccessError::Daemon(DaemonError::Unavailable)) => {}
            told => return told,
        }
    }
    call()
}

#[test]
fn a_daemon_that_lets_writers_into_a_frozen_page_is_asked_seldom_and_not_for_ever() {
    let (bench, script, mut thread) = begin(Box::new(|_| Some(RackAnswer::Moved)));
    set(&bench, 0, frozen());
    script.translations(&[local(live(0)); 10_000]);
    let began = Instant::now();
    let busy = AccessError::PageBusy(FIRST, RackId(0));
    assert_eq!(answered(|| write(&mut thread, FIRST, 1)), Err(busy.clone()));
    assert!(began.elapsed() >= TIMEOUT && began.elapsed() < 10 * TIMEOUT);
    let atomic = AtomicOperation::FetchAndAdd { delta: 1 };
    assert_eq!(answered(|| thread.atomic(FIRST, atomic)), Err(busy));
    let asked = script.count(for_writing);
    assert!(asked < 1000, "{asked} questions");
}

#[test]
fn a_page_that_is_busy_for_longer_than_the_daemon_waits_is_asked_for_again() {
    let (_bench, script, mut thread) = begin(nothing_else());
    let busy = RackAnswer::PageBusy(RackId(1));
    script.translations(&[busy, RackAnswer::Moved, busy, local(live(0))]);
    assert_eq!(write(&mut thread, FIRST, 1), Ok(()));
    thread.forget(PAGE_1);
    script.translations(&[busy; 10_000]);
    assert_eq!(write(&mut thread, FIRST, 1), Err(AccessError::PageBusy(FIRST, RackId(1))));
}

#[test]
fn an_atomic_is_done_once_wherever_its_page_goes_meanwhile() {
    let (says, forwarded) = mpsc::channel();
    let (bench, script, mut thread) = begin(Box::new(move |request| {
        says.send(request).unwrap();
        Some(RackAnswer::Moved)
    }));
    script.translations(&[local(live(0))]);
    write(&mut thread, FIRST, 40).unwrap();
    // The page freezes, leaves, is not found where the daemon said, and comes back.
    set(&bench, 0, frozen());
    let back = moved_here(0, 9);
    script.translations(&[away(), local(back)]);
    let add = AtomicOperation::FetchAndAdd { delta: 2 };
    // Until the translation is renewed, the frame's word does not match it.
    set(&bench, 0, back);
    assert_eq!(thread.atomic(FIRST, add), Ok(40));
    assert_eq!(read(&mut thread, FIRST), Ok(42), "it was done twice, or not at all");
    assert_eq!(forwarded.try_iter().count(), 1);
    let mut batch = [BatchedAtomic { addr: FIRST, atomic: add, before: 0 }];
    thread.forget(PAGE_1);
    script.translations(&[away(), local(back)]);
    thread.atomic_batch(&mut batch).unwrap();
    assert_eq!((batch[0].before, read(&mut thread, FIRST)), (42, Ok(44)));
}

#[test]
fn a_page_of_another_rack_that_comes_here_in_the_middle_of_a_batch_is_read_here() {
    let page = |page: u64| GlobalAddr::from_raw(page * PAGE);
    let (says, transfers) = mpsc::channel();
    let (bench, script, mut thread) = begin(Box::new(move |request| match request {
        RackRequest::Translate { .. } => Some(away()),
        RackRequest::Read { addr, batch, .. } => {
            says.send((addr, batch)).unwrap();
            // Like the daemon: requests behind a refused one are refused too.
            Some(if addr == page(2) { RackAnswer::Done(0) } else { RackAnswer::Moved })
        }
        _ => None,
    }));
    script.translations(&[away(), local(live(0))]);
    bench.connection.frames.write(0, &77_u64.to_le_bytes()).unwrap();
    let (mut first, mut second) = ([1; 8], [1; 8]);
    let reads = [(page(2), Bytes::Read(&mut first)), (FIRST, Bytes::Read(&mut second))];
    thread.transfer_batch(reads.into_iter()).unwrap();
    assert_eq!(u64::from_le_bytes(second), 77);
    let transfers: Vec<_> = transfers.try_iter().map(|(addr, _)| addr).collect();
    assert_eq!(transfers, [page(2), FIRST]);
    assert!(thread.window.read(FIRST, &mut [0; 8]), "from now on it is read without asking");
}

#[test]
fn a_page_that_has_left_is_reached_in_its_new_rack_and_found_again_when_it_is_back() {
    let (says, transfers) = mpsc::channel();
    let (bench, script, mut thread) = begin(Box::new(move |request| match request {
        RackRequest::Read { .. } | RackRequest::Write { .. } => {
            says.send(request).unwrap();
            Some(RackAnswer::Done(0))
        }
        _ => None,
    }));
    script.translations(&[local(live(0)), away()]);
    write(&mut thread, FIRST, 5).unwrap();
    // Page 9 is in the frame now.
    set(&bench, 0, PageWord::new(PageState::Live, rackpool_model::Epoch::new(1), PageId(9)));
    write(&mut thread, FIRST, 6).unwrap();
    read(&mut thread, FIRST).unwrap();
    assert_eq!(transfers.try_iter().count(), 2);
    let mut bytes = [0; 8];
    bench.connection.frames.read(0, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), 5, "page 9 was written to");
    assert_eq!(script.count(is_translation), 2);
    // The page is back in another frame.
    set(&bench, 1, moved_here(0, 2));
    thread.forget(PAGE_1);
    let there = RackAnswer::Local { frame: FrameId(1), word: moved_here(0, 2), usage: slab(64) };
    script.translations(&[there]);
    write(&mut thread, FIRST, 7).unwrap();
    assert_eq!(read(&mut thread, FIRST), Ok(7));
    assert_eq!(transfers.try_iter().count(), 0);
}

#[test]
fn an_access_over_two_pages_of_which_one_is_elsewhere_reaches_both() {
    let second = GlobalAddr::from_raw(3 * PAGE);
    let (says, transfers) = mpsc::channel();
    let (bench, _, mut thread) = begin(Box::new(move |request| match request {
        RackRequest::Translate { page: PageId(2), .. } => {
            Some(RackAnswer::Local { frame: FrameId(1), word: live(1), usage: run(2) })
        }
        RackRequest::Translate { .. } => Some(RackAnswer::Remote {
            home: RackId(1),
            usage: PageUse::Run { index: 1, pages: 2 }.to_raw(),
        }),
        RackRequest::Write { addr, len, .. } | RackRequest::Read { addr, len, .. } => {
            says.send((addr, len)).unwrap();
            Some(RackAnswer::Done(0))
        }
        _ => None,
    }));
    set(&bench, 1, live(1));
    let start = GlobalAddr::from_raw(3 * PAGE - 8);
    thread.transfer(start, Bytes::Write(&[9; 24])).unwrap();
    let mut local = [0; 8];
    bench.connection.frames.read(2 * PAGE - 8, &mut local).unwrap();
    assert_eq!(local, [9; 8]);
    let mut both = [0; 24];
    thread.transfer(start, Bytes::Read(&mut both)).unwrap();
    assert_eq!(both[..8], [9; 8]);
    let sent: Vec<_> = transfers.try_iter().collect();
    assert_eq!(sent, [(second, 16), (second, 16)]);
}

#[test]
fn an_object_whose_page_has_left_is_handed_out_and_taken_back_as_any_other() {
    let (says, released) = mpsc::channel();
    let (bench, script, mut thread) = begin(Box::new(move |request| {
        says.send(request).unwrap();
        match request {
            RackRequest::Write { .. } => Some(RackAnswer::Done(0)),
            _ => None,
        }
    }));
    let bit = bench.connection.layout.bit(
        FrameId(0),
        SizeClass::for_bytes(64, PageSize::DEFAULT).unwrap(),
        0,
    );
    bench.metadata.write(bit.word, &u64::MAX.to_le_bytes()).unwrap();
    let remote = RackAnswer::Remote { home: RackId(1), usage: slab(64) };
    script.translations(&[local(live(0)), remote]);
    thread.free(FIRST).unwrap();
    assert_eq!(thread.magazines.count(2), 1);
    // The page leaves; the frame holds a slab without allocated objects.
    set(&bench, 0, PageWord::new(PageState::Live, rackpool_model::Epoch::new(1), PageId(9)));
    bench.metadata.write(bit.word, &0_u64.to_le_bytes()).unwrap();
    let object = thread.alloc(64).unwrap();
    assert_eq!(object, FIRST, "it is still this program's to use");
    write(&mut thread, object, 1).unwrap();
    assert!(matches!(released.recv().unwrap(), RackRequest::Write { addr, .. } if addr == FIRST));
    thread.free(object).unwrap();
    assert_eq!(thread.magazines.count(2), 0, "it goes home");
    assert_eq!(bench.slot(0).outbox[0].load(Ordering::Relaxed), FIRST.raw());
}

#[test]
fn an_object_of_a_frozen_page_is_kept_and_one_whose_page_moves_while_it_is_looked_at_goes_home() {
    let (bench, script, mut thread) = begin(nothing_else());
    let bit = bench.connection.layout.bit(
        FrameId(0),
        SizeClass::for_bytes(64, PageSize::DEFAULT).unwrap(),
        0,
    );
    bench.metadata.write(bit.word, &u64::MAX.to_le_bytes()).unwrap();
    set(&bench, 0, frozen());
    script.translations(&[local(frozen())]);
    thread.free(FIRST).unwrap();
    assert_eq!(thread.magazines.count(2), 1, "its bit stands still");
    assert_eq!(thread.free(FIRST), Err(FreeError::NotAllocated(FIRST)));
    // The translation is stale: the bit belongs to another page.
    set(&bench, 0, PageWord::new(PageState::Live, rackpool_model::Epoch::new(1), PageId(9)));
    bench.metadata.write(bit.word, &0_u64.to_le_bytes()).unwrap();
    let remote = RackAnswer::Remote { home: RackId(1), usage: slab(64) };
    script.translations(&[local(live(0)), remote]);
    assert_eq!(thread.free(FIRST.add(64).unwrap()), Ok(()));
    assert_eq!(bench.slot(0).outbox[0].load(Ordering::Relaxed), FIRST.raw() + 64);
}

#[test]
fn a_page_of_this_rack_that_moves_is_written_and_changed_by_the_daemon() {
    let (bench, script, mut thread) = begin(Box::new(|request| match request {
        RackRequest::Write { .. } => Some(RackAnswer::Done(0)),
        RackRequest::FetchAndAdd { .. } => Some(RackAnswer::Done(70)),
        _ => None,
    }));
    script.translations(&[local(live(0))]);
    write(&mut thread, FIRST, 1).unwrap();
    set(&bench, 0, frozen());
    assert_eq!(write(&mut thread, FIRST, 2), Ok(()));
    assert_eq!(thread.atomic(FIRST, AtomicOperation::FetchAndAdd { delta: 1 }), Ok(70));
    assert_eq!(read(&mut thread, FIRST), Ok(1), "reads look at the memory");
    set(&bench, 0, live(0));
    assert_eq!(write(&mut thread, FIRST, 3), Ok(()));
    assert_eq!(read(&mut thread, FIRST), Ok(3), "and so do writes when it moves no more");
    let questions = [script.count(for_writing), script.count(is_write)];
    assert_eq!(questions, [1, 1]);
}

/// Regression: the daemon executes only short writes, and a long one looked the page up repeatedly
/// until the move ended.
#[test]
fn a_long_write_in_a_page_that_moves_is_carried_out_piece_by_piece() {
    let long = |request: &RackRequest| match *request {
        RackRequest::Write { len, .. } => len > u64::from(LONGEST_FORWARDED),
        _ => false,
    };
    let usage = PageUse::Run { index: 0, pages: 1 }.to_raw();
    let bytes = vec![7; 3 * LONGEST_FORWARDED as usize + 8];
    for home in [RackId(0), RackId(1)] {
        let (bench, script, mut thread) = begin(Box::new(move |request| match request {
            request if long(&request) => Some(RackAnswer::Moved),
            RackRequest::Write { .. } => Some(RackAnswer::Done(0)),
            _ => None,
        }));
        if home == RackId(0) {
            let (frame, word) = (FrameId(0), live(0));
            script.translations(&[RackAnswer::Local { frame, word, usage }]);
            write(&mut thread, FIRST, 1).unwrap();
            set(&bench, 0, frozen());
        } else {
            script.translations(&[RackAnswer::Remote { home, usage }; 2]);
        }
        assert_eq!(thread.transfer(FIRST, Bytes::Write(&bytes)), Ok(()));
        let shorts = script.count(|request| is_write(request) && !long(request));
        assert_eq!(shorts, 4, "to {home}");
        assert!(script.count(long) <= 1, "to {home}");
    }
}

#[test]
fn that_the_own_daemon_writes_a_page_is_not_remembered() {
    let (bench, script, mut thread) = begin(Box::new(|_| Some(RackAnswer::Done(0))));
    set(&bench, 0, frozen());
    let usage = slab(64);
    let here = RackAnswer::Remote { home: RackId(0), usage };
    script.translations(&[here, here, local(frozen())]);
    assert_eq!(write(&mut thread, FIRST, 2), Ok(()));
    assert_eq!(write(&mut thread, FIRST, 2), Ok(()));
    assert!(thread.is_local(FIRST).unwrap(), "it is asked for again");
    assert_eq!(script.count(is_translation), 3);
}

#[test]
fn a_page_that_has_just_gone_is_reached_with_one_question_and_found_where_that_was_answered() {
    let (bench, script, mut thread) = begin(Box::new(|request| match request {
        RackRequest::Read { .. } | RackRequest::Write { .. } => Some(RackAnswer::DoneAt(RackId(1))),
        _ => None,
    }));
    for reads in [true, false] {
        set(&bench, 0, live(0));
        thread.forget(PAGE_1);
        script.translations(&[local(live(0))]);
        write(&mut thread, FIRST, 1).unwrap();
        set(&bench, 0, frozen().apply(PageEvent::Left).unwrap());
        let asked = script.asked.lock().unwrap().len();
        if reads {
            read(&mut thread, FIRST).unwrap();
        } else {
            write(&mut thread, FIRST, 2).unwrap();
        }
        assert_eq!(script.asked.lock().unwrap().len(), asked + 1);
        assert!(!thread.is_local(FIRST).unwrap(), "that is known now");
        read(&mut thread, FIRST).unwrap();
        assert_eq!(script.asked.lock().unwrap().len(), asked + 2, "nor is it asked where that is");
    }
}

/// Regression: a refusal in the middle of a long write made the client repeat the whole write,
/// which undid later writes of others to the first pieces.
#[test]
fn what_is_done_of_a_write_in_a_page_that_moves_is_not_done_again() {
    let piece = u64::from(LONGEST_FORWARDED);
    let (says, written) = mpsc::channel();
    let mut refuses = true;
    let (bench, script, mut thread) = begin(Box::new(move |request| match request {
        RackRequest::Write { addr, .. } => {
            let offset = addr.raw() - FIRST.raw();
            says.send(offset / piece).unwrap();
            let refused = offset == 2 * piece && std::mem::take(&mut refuses);
            Some(if refused { RackAnswer::Moved } else { RackAnswer::Done(0) })
        }
        _ => None,
    }));
    let usage = PageUse::Run { index: 0, pages: 1 }.to_raw();
    let here = RackAnswer::Local { frame: FrameId(0), word: live(0), usage };
    script.translations(&[here, RackAnswer::Remote { home: RackId(1), usage }]);
    write(&mut thread, FIRST, 1).unwrap();
    set(&bench, 0, frozen());
    let bytes = vec![7; 3 * LONGEST_FORWARDED as usize];
    assert_eq!(thread.transfer(FIRST, Bytes::Write(&bytes)), Ok(()));
    assert_eq!(written.try_iter().collect::<Vec<_>>(), [0, 1, 2, 2]);
}
