//! Back-pressure: a request ring that the daemon does not empty.

use rackpool_ring::request::Request;
use rackpool_testing::wait::wait_until;

use super::*;
use crate::deadline::Deadline;

const UNAVAILABLE: DaemonError = DaemonError::Unavailable;
/// The request of the other thread that fills the ring.
const PING: RackRequest = RackRequest::Ping;

/// Fills a ring; returns the call numbers of its entries.
fn fill_up(bench: &Bench, route: RingKind) -> Vec<u32> {
    let ring = bench.connection.file.ring(route);
    let (code, arguments) = PING.to_words();
    let life = bench.connection.life();
    let request = |call| Request { code, cell: 0, thread: 1, call, life, arguments };
    let calls = (1..).take_while(|call| ring.push(&[request(*call)]).is_ok());
    calls.collect()
}

/// Pops up to `most` entries; returns thread and call number of each.
fn take_out(bench: &Bench, route: RingKind, most: usize) -> Vec<(u16, u32)> {
    let mut found = Vec::new();
    let ring = bench.connection.file.ring(route);
    ring.pop(most, |entry| found.push((entry.thread, entry.call)));
    found
}

fn of_the_other_thread(calls: &[u32]) -> Vec<(u16, u32)> {
    calls.iter().map(|call| (1, *call)).collect()
}

fn ask(thread: &mut Thread, route: RingKind) -> Result<RackAnswer, DaemonError> {
    let connection = Arc::clone(&thread.connection);
    thread.calls.ask(&connection, PING, route)
}

/// CPU time that this thread has used.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().unwrap()
}

#[test]
fn a_full_ring_is_waited_for_until_the_deadline_and_nothing_is_posted_or_lost() {
    for route in [RingKind::Rack, RingKind::Remote] {
        let mut bench = Bench::new();
        let mut thread = bench.thread();
        let calls = fill_up(&bench, route);
        let (began, used) = (Instant::now(), processor_time());
        assert_eq!(ask(&mut thread, route), Err(UNAVAILABLE));
        assert!(began.elapsed() >= TIMEOUT, "given up after {:?}", began.elapsed());
        let used = processor_time() - used;
        assert!(used < TIMEOUT / 4, "who waits for room sleeps: {used:?} of a core");
        // A batch is posted whole or not at all, and a call that was not posted occupies no cell.
        let overdue = Deadline::after(TIMEOUT);
        let connection = Arc::clone(&bench.connection);
        let staged: Vec<_> = (0..CELLS_PER_THREAD)
            .map(|_| thread.calls.stage(&connection, PING, route, None, &overdue).unwrap())
            .collect();
        assert_eq!(take_out(&bench, route, 1), [(1, calls[0])]);
        assert_eq!(thread.calls.flush(&connection, route, &overdue), Err(UNAVAILABLE));
        staged.into_iter().for_each(|posted| thread.calls.unstage(&connection, posted));
        assert_eq!(take_out(&bench, route, usize::MAX), of_the_other_thread(&calls[1..]));
        // There is room again, and every cell is usable.
        bench.serve(|_, _| Some(RackAnswer::Done(5)));
        let overdue = Deadline::after(TEST_TIMEOUT);
        let posted: Vec<_> = (0..CELLS_PER_THREAD)
            .map(|_| thread.calls.post(&connection, PING, route, &overdue).unwrap())
            .collect();
        for posted in posted {
            let ended = thread.calls.wait(&connection, posted, &overdue).unwrap();
            assert_eq!(ended.outcome, Outcome::Answered(RackAnswer::Done(5)));
        }
    }
}

#[test]
fn a_program_is_told_what_to_do_about_a_full_ring_and_goes_on_when_there_is_room() {
    let mut bench = Bench::new();
    let mut thread = bench.thread();
    fill_up(&bench, RingKind::Rack);
    let refused = thread.alloc(64).unwrap_err();
    assert_eq!(refused, AllocError::Daemon(UNAVAILABLE));
    assert!(format!("{refused} {UNAVAILABLE}").contains("raise the request timeout"));
    bench.serve(|slot, request| match request {
        RackRequest::Refill { .. } => fill(slot, &[0x40]),
        _ => Some(RackAnswer::Done(0)),
    });
    assert_eq!(thread.alloc(64), Ok(GlobalAddr::from_raw(0x40)));
}

/// Lets another thread send a request while the ring is full, and waits until it rings the
/// doorbell, which proves that it is waiting.
fn wait_in_the_background(
    bench: &Bench,
    route: RingKind,
) -> mpsc::Receiver<Result<RackAnswer, DaemonError>> {
    let (says, told) = mpsc::channel();
    let rung = bench.rings();
    let daemon = bench.metadata.view::<Superblock>(0).unwrap().sleeping();
    daemon.set();
    let connection = Arc::clone(&bench.connection);
    std::thread::spawn(move || {
        let mut thread = Thread::new(&connection).unwrap().unwrap();
        says.send(ask(&mut thread, route)).unwrap();
    });
    wait_until("the doorbell rings", TEST_TIMEOUT, || bench.rings() != rung);
    daemon.clear();
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
    told
}

#[test]
fn who_waits_for_room_takes_the_first_there_is() {
    let mut bench = Bench::with_timeout(TEST_TIMEOUT);
    let calls = fill_up(&bench, RingKind::Remote);
    let told = wait_in_the_background(&bench, RingKind::Remote);
    let mut found = Vec::new();
    wait_until("it goes on", TEST_TIMEOUT, || {
        found.extend(take_out(&bench, RingKind::Remote, 1));
        found.len() > calls.len()
    });
    assert_eq!(found[..calls.len()], of_the_other_thread(&calls));
    assert_eq!(found[calls.len()].0, 0, "posted once, behind all others");
    assert!(bench.connection.file.ring(RingKind::Remote).is_empty());
    // The popped entries get no answer: the daemon that popped them is gone.
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
    bench.serve(|_, _| Some(RackAnswer::Done(5)));
    Bench::lose_calls(&bench.connection);
    assert_eq!(told.recv_timeout(TEST_TIMEOUT), Ok(Ok(RackAnswer::Done(5))));
}

#[test]
fn who_waits_for_room_hears_that_the_pool_was_closed() {
    let bench = Bench::with_timeout(TEST_TIMEOUT);
    fill_up(&bench, RingKind::Rack);
    let told = wait_in_the_background(&bench, RingKind::Rack);
    bench.connection.close();
    assert_eq!(told.recv_timeout(TEST_TIMEOUT), Ok(Err(DaemonError::Closed)));
}
