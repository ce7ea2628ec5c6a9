//! Writes go on while a page moves: its old home carries them out, whoever dies or stands still.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_client::{GlobalAddr, Pool};
use rackpool_tests::pool::{PAGE, TestPool};
use rackpool_tests::swaps::atlas::{Atlas, Part, Phase};
use rackpool_tests::wait::{PATIENCE, wait_until};

/// For how long nobody decides. Shorter than a quarter of a lease: nobody is taken for dead.
const STANDSTILL: Duration = Duration::from_millis(250);
/// Writes in lines of their own that are carried out in any case: a few were remembered before.
const REMEMBERED: u64 = 500;
/// How many swaps may be decided before the metadata server is stopped.
const TRIES: usize = 500;

/// The metadata server's process.
#[derive(Clone, Copy)]
struct Decider(Pid);

impl Decider {
    fn of(pool: &mut TestPool) -> Self {
        Self(Pid::from_raw(pool.cluster.metadata().id().try_into().unwrap()))
    }

    fn stop(self) {
        kill(self.0, Signal::SIGSTOP).unwrap();
    }

    fn is_stopped(self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    }

    fn go_on(self) {
        kill(self.0, Signal::SIGCONT).unwrap();
    }
}

/// Two racks in which a page moves as soon as it is used from afar.
fn pool() -> TestPool {
    TestPool::with(|options| {
        let arguments =
            [("--hot", "1.5"), ("--rest-ms", "0"), ("--swap-pause-ms", "1"), ("--swap", "on")];
        options.daemon_arguments = arguments.map(|(name, value)| (name, value.into())).into();
    })
}

/// A page, what was last written in some of its words, and the sum of what was added to one.
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

    /// Writes, adds and looks, as a program of this rack.
    fn change(&mut self, pool: &Pool, rack: usize) {
        let next = self.numbers[rack] + 1;
        pool.write(self.word(rack), &next.to_le_bytes()).unwrap();
        self.numbers[rack] = next;
        assert_eq!(pool.fetch_and_add(self.addr, 1).unwrap(), self.sum);
        self.sum += 1;
        self.check(pool);
    }

    /// Whoever reads sees all that was acknowledged.
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

/// Has the page of rack 0 asked for by rack 1 until both have copied and the metadata server, which is
/// stopped by then, has not decided.
fn leave_in_doubt(pool: &mut TestPool, racks: &[Pool; 2], page: &mut Page) -> Decider {
    let decider = Decider::of(pool);
    let atlas = Atlas::of(pool);
    let in_doubt = |rack| atlas.parts(rack).any(|Part { phase, .. }| phase == Phase::InDoubt);
    for _ in 0..TRIES {
        // Where it went to with the last try it comes from. What a client knows is true after an access.
        wait_until("the page is back", PATIENCE, || {
            page.change(&racks[0], 0);
            racks[0].is_local(page.addr).unwrap()
        });
        let (found, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !found.load(Ordering::Relaxed) {
                    // It has begun: the rest up to the doubt needs no metadata server.
                    if atlas.parts(0).next().is_some() {
                        decider.stop();
                        stopped.store(true, Ordering::Relaxed);
                        found.store(true, Ordering::Relaxed);
                    }
                }
            });
            while !found.load(Ordering::Relaxed) {
                page.check(&racks[1]);
                if racks[1].is_local(page.addr).unwrap() {
                    found.store(true, Ordering::Relaxed);
                }
            }
        });
        if !stopped.load(Ordering::Relaxed) {
            continue;
        }
        // What it had said before it stood still is heard: who hears it has answered since.
        wait_until("it stands still", PATIENCE, || decider.is_stopped());
        for (rack, own) in (0..).zip(racks) {
            assert!(pool.try_status(rack).is_some());
            own.ping().unwrap();
        }
        if in_doubt(0) && in_doubt(1) {
            return decider;
        }
        decider.go_on();
    }
    panic!("each of {TRIES} swaps was decided");
}

/// The metadata server goes on, and the page comes.
fn decide(pool: &TestPool, decider: Decider, racks: &[Pool; 2], page: &mut Page) {
    decider.go_on();
    wait_until("the page comes", PATIENCE, || {
        page.change(&racks[1], 1);
        racks[1].is_local(page.addr).unwrap()
    });
    racks.iter().for_each(|rack| page.check(rack));
    let atlas = Atlas::of(pool);
    wait_until("the swap ends", PATIENCE, || (0..2).all(|rack| atlas.parts(rack).count() == 0));
}

#[test]
fn a_page_that_moves_is_written_by_everybody_while_nobody_decides() {
    let mut pool = pool();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let mut page = Page::new(&racks[0]);
    let decider = leave_in_doubt(&mut pool, &racks, &mut page);
    let (before, end) = (pool.status(0).swaps.delegated, Instant::now() + STANDSTILL);
    let mut turns = 0;
    while Instant::now() < end {
        page.change(&racks[0], 0);
        page.change(&racks[1], 1);
        turns += 1;
    }
    let written = pool.status(0).swaps.delegated - before;
    assert!(turns >= 10, "{turns} turns in {STANDSTILL:?}: writers wait for the decision");
    assert!(written >= 4 * turns, "{written} writes were delegated in {turns} turns");
    decide(&pool, decider, &racks, &mut page);
}

/// A daemon is killed when its rack and another have written in a page that neither may decide about.
fn what_was_written_survives_a_kill_of(rack: u16) {
    let mut pool = pool();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let mut page = Page::new(&racks[0]);
    let decider = leave_in_doubt(&mut pool, &racks, &mut page);
    (0..10).for_each(|turn| page.change(&racks[turn % 2], turn % 2));
    pool.kill_daemon(rack);
    if rack == 1 {
        // Its own programs write on.
        (0..10).for_each(|_| page.change(&racks[0], 0));
    }
    decider.go_on();
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

/// More lines than a rack remembers: who writes more waits until the page has moved.
#[test]
fn writers_of_much_wait_for_the_decision_and_lose_nothing() {
    let mut pool = pool();
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let mut page = Page::new(&racks[0]);
    let decider = leave_in_doubt(&mut pool, &racks, &mut page);
    let before = pool.status(0).swaps.delegated;
    let bytes: Vec<u8> = (0..PAGE).map(|at| u8::try_from(at % 251).unwrap()).collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for (at, line) in (0..).step_by(64).zip(bytes.chunks(64)).skip(8192 / 64) {
                racks[0].write(page.addr.add(at).unwrap(), line).unwrap();
            }
        });
        wait_until("as much is written as is remembered", PATIENCE, || {
            pool.status(0).swaps.delegated >= before + REMEMBERED
        });
        let end = Instant::now() + STANDSTILL;
        wait_until("it has waited for some time", PATIENCE, || Instant::now() > end);
        assert!(!writer.is_finished(), "nobody has decided");
        decider.go_on();
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
