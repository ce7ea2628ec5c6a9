//! Writes continue while a page moves: the old home executes them, or its clients do, whichever
//! process dies or is stopped.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_client::{GlobalAddr, Pool};
use rackpool_testing::wait::{TIMEOUT, try_wait_for, wait_until};
use rackpool_tests::pool::{PAGE, TestPool, wait_until_stopped};
use rackpool_tests::swaps::atlas::{Atlas, Part, Phase};

/// How long a writer that must wait is observed.
const STANDSTILL: Duration = Duration::from_millis(250);
/// The time within which a message under way arrives.
const HEARD: Duration = Duration::from_millis(20);
/// Writes in lines of their own that must all be executed; a few were logged before.
const REMEMBERED: u64 = 500;
/// Writes in lines of their own that a thread logs before it sends a request to its daemon.
const NOTED: u64 = rackpool_shm::dirty_log::KEPT as u64;
/// Swaps that may be decided before the metadata server is stopped in time.
const TRIES: usize = 500;

/// The stopped metadata server; resumed at the latest when the test ends.
struct Decider(u32);

impl Decider {
    fn of(pool: &mut TestPool) -> Self {
        Self(pool.cluster.metadata().id())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Decider {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}

/// Signals when it is dropped that a part of the test has ended, well or not.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two racks in which a page moves as soon as it is used remotely.
fn pool(lease_ms: u64) -> TestPool {
    let pool = TestPool::with(|options| {
        options.lease_ms = lease_ms;
        let arguments =
            [("--hot", "1.5"), ("--rest-ms", "0"), ("--swap-pause-ms", "1"), ("--swap", "on")];
        options.daemon_arguments = arguments.map(|(name, value)| (name, value.into())).into();
    });
    pool.wait_until_racks_meet();
    pool
}

/// A lease that outlasts the undecided swap: no rack is taken for dead meanwhile.
const LONG_LEASE_MS: u64 = 20_000;
/// A lease that expires soon after a daemon's death.
const LEASE_MS: u64 = 2_000;

/// A page, the last values written to some of its words, and the sum of the additions to one.
struct Page {
    addr: GlobalAddr,
    numbers: [u64; 2],
    sum: u64,
}

impl Page {
    fn new(pool: &Pool) -> Self {
        let addr = pool.alloc(PAGE).unwrap();
        Self { addr, numbers: [0; 2], sum: 0 }
    }

    /// The word that a rack writes, in a line of its own.
    fn word(&self, rack: usize) -> GlobalAddr {
        self.addr.add(4096 + 64 * rack as u64).unwrap()
    }

    /// Writes, adds and reads, as a program of this rack.
    fn change(&mut self, pool: &Pool, rack: usize) {
        let next = self.numbers[rack] + 1;
        pool.write(self.word(rack), &next.to_le_bytes()).unwrap();
        self.numbers[rack] = next;
        assert_eq!(pool.fetch_and_add(self.addr, 1).unwrap(), self.sum);
        self.sum += 1;
        self.check(pool);
    }

    /// Checks that a reader sees all that was acknowledged.
    fn check(&self, pool: &Pool) {
        let read = |addr| {
            let mut bytes = [0; 8];
            pool.read(addr, &mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        assert_eq!([0, 1].map(|rack| read(self.word(rack))), self.numbers);
        assert_eq!(read(self.addr), self.sum);
    }
}

fn is_in_doubt(atlas: &Atlas, rack: u16) -> bool {
    atlas.parts(rack).any(|Part { phase, .. }| phase == Phase::InDoubt)
}

/// Lets rack 1 request the page of rack 0 until both have copied it and the metadata server, which
/// is stopped by then, has not decided.
fn leave_in_doubt(pool: &mut TestPool, racks: &[Pool; 2], page: &mut Page) -> Decider {
    let atlas = Atlas::of(pool);
    for _ in 0..TRIES {
        let decider = Decider::of(pool);
        // The page may have moved with the last try and must return first. A client's translation
        // is current after an access.
        wait_until("the page is back", TIMEOUT, || {
            page.change(&racks[0], 0);
            racks[0].is_local(page.addr).unwrap()
        });
        let (ended, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) && !stopped.load(Ordering::Relaxed) {
                    // The swap has begun: the steps up to the doubt need no metadata server.
                    if atlas.parts(0).next().is_some() {
                        decider.signal(Signal::SIGSTOP);
                        stopped.store(true, Ordering::Relaxed);
                    }
                    std::thread::yield_now();
                }
            });
            let _ends = Ends(&ended);
            while !stopped.load(Ordering::Relaxed) {
                page.check(&racks[1]);
                if racks[1].is_local(page.addr).unwrap() {
                    break;
                }
            }
        });
        if !stopped.load(Ordering::Relaxed) {
            continue;
        }
        wait_until_stopped(decider.0);
        // Messages that the metadata server sent before may be under way.
        let doubts = || (0..2).all(|rack| is_in_doubt(&atlas, rack));
        if try_wait_for(HEARD, || doubts().then_some(())).is_some()
            && try_wait_for(HEARD, || (!doubts()).then_some(())).is_none()
        {
            return decider;
        }
    }
    panic!("each of {TRIES} swaps was decided");
}

/// Resumes the metadata server and waits until the page has moved.
fn decide(pool: &TestPool, decider: Decider, racks: &[Pool; 2], page: &mut Page) {
    drop(decider);
    wait_until("the page comes", TIMEOUT, || {
        page.change(&racks[1], 1);
        racks[1].is_local(page.addr).unwrap()
    });
    racks.iter().for_each(|rack| page.check(rack));
    let atlas = Atlas::of(pool);
    wait_until("the swap ends", TIMEOUT, || (0..2).all(|rack| atlas.parts(rack).count() == 0));
}

#[test]
fn a_page_that_moves_is_written_by_everybody_while_nobody_decides() {
    const TURNS: u64 = 10;
    let mut pool = pool(LONG_LEASE_MS);
    let racks = [pool.open(0), pool.open(1)];
    let mut page = Page::new(&racks[0]);
    let decider = leave_in_doubt(&mut pool, &racks, &mut page);
    let before = pool.status(0).swaps.forwarded;
    for _ in 0..TURNS {
        page.change(&racks[0], 0);
        page.change(&racks[1], 1);
    }
    // A long write, too, in as many pieces as needed.
    let long: Vec<u8> = (0..10_000).map(|at| u8::try_from(at % 251).unwrap()).collect();
    for (rack, at) in racks.iter().zip([16_384, 32_768]) {
        rack.write(page.addr.add(at).unwrap(), &long).unwrap();
    }
    let atlas = Atlas::of(&pool);
    assert!((0..2).all(|rack| is_in_doubt(&atlas, rack)), "writers waited for the decision");
    let written = pool.status(0).swaps.forwarded - before;
    // The forwarded ones: the other rack's writes, both racks' additions, and the long writes. The
    // home's own clients execute their other writes themselves.
    assert!(written >= 3 * TURNS + 2 * 3, "{written} writes were forwarded");
    assert!(written < 4 * TURNS + 2 * 3, "{written} writes were forwarded");
    decide(&pool, decider, &racks, &mut page);
    for rack in &racks {
        for at in [16_384, 32_768] {
            let mut found = vec![0; long.len()];
            rack.read(page.addr.add(at).unwrap(), &mut found).unwrap();
            assert!(found == long, "what was acknowledged is there");
        }
    }
}

/// A daemon is killed after its rack and another have written a page whose swap is undecided.
fn what_was_written_survives_a_kill_of(rack: u16) {
    let mut pool = pool(LEASE_MS);
    let racks = [pool.open(0), pool.open(1)];
    let mut page = Page::new(&racks[0]);
    let decider = leave_in_doubt(&mut pool, &racks, &mut page);
    (0..10).for_each(|turn| page.change(&racks[turn % 2], turn % 2));
    pool.kill_daemon(rack);
    if rack == 1 {
        // The rack's own programs keep writing.
        (0..10).for_each(|_| page.change(&racks[0], 0));
    }
    decider.signal(Signal::SIGCONT);
    pool.restart_daemon(rack);
    decide(&pool, decider, &racks, &mut page);
}

#[test]
fn what_was_written_while_a_page_moved_survives_the_daemon_that_wrote_it() {
    what_was_written_survives_a_kill_of(0);
}

#[test]
fn what_was_written_while_a_page_moved_survives_the_daemon_it_moves_to() {
    what_was_written_survives_a_kill_of(1);
}

/// More lines than a rack logs: further writers wait until the page has moved. The other clients
/// have logged more lines than a transfer holds, so the whole page is copied again.
fn what_much_is_written_is_not_lost(others: u64) {
    let mut pool = pool(LONG_LEASE_MS);
    let racks = [pool.open(0), pool.open(1)];
    let mut page = Page::new(&racks[0]);
    let decider = leave_in_doubt(&mut pool, &racks, &mut page);
    let before = pool.status(0).swaps.forwarded;
    let bytes: Vec<u8> = (0..PAGE).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let write = |range: std::ops::Range<u64>| {
        for at in range.step_by(64) {
            let from = usize::try_from(at).unwrap();
            racks[0].write(page.addr.add(at).unwrap(), &bytes[from..from + 64]).unwrap();
        }
    };
    let end = PAGE - others * NOTED * 64;
    // Each in a thread slot of its own: none ends before all are done.
    let together = Barrier::new(usize::try_from(others).unwrap());
    std::thread::scope(|scope| {
        let others = (0..others).map(|other| {
            let from = end + other * NOTED * 64;
            let (write, together) = (&write, &together);
            scope.spawn(move || {
                write(from..from + NOTED * 64);
                together.wait();
            })
        });
        let others: Vec<_> = others.collect();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(pool.status(0).swaps.forwarded, before, "they can note that");
        let writer = scope.spawn(|| write(8192..end));
        wait_until("as much is written as is remembered", TIMEOUT, || {
            pool.status(0).swaps.forwarded >= before + REMEMBERED / (NOTED + 1)
        });
        let goes_on = try_wait_for(STANDSTILL, || writer.is_finished().then_some(()));
        assert_eq!(goes_on, None, "nobody has decided");
        decider.signal(Signal::SIGCONT);
    });
    decide(&pool, decider, &racks, &mut page);
    let pauses = pool.status(0).swaps.pauses;
    let is_long = |bound: &Option<u64>| bound.is_none_or(|us| us > 20_000);
    let long: u64 = pauses.iter().filter(|(bound, _)| is_long(bound)).map(|(_, n)| n).sum();
    assert!(long >= 1, "nobody is said to have waited: {pauses:?}");
    for rack in &racks {
        let mut found = vec![0; bytes.len() - 8192];
        rack.read(page.addr.add(8192).unwrap(), &mut found).unwrap();
        assert!(found == bytes[8192..], "what was acknowledged is there");
    }
}

#[test]
fn writers_of_much_wait_for_the_decision_and_lose_nothing() {
    what_much_is_written_is_not_lost(0);
}

#[test]
fn what_many_have_noted_is_too_much_for_a_message_and_not_lost() {
    what_much_is_written_is_not_lost(6);
}
