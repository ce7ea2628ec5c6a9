//! A page that two racks mostly read is read in both racks, from copies, and no reader ever reads
//! an outdated value.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rackpool_client::{GlobalAddr, Pool};
use rackpool_model::FabricKind;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census::Census;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rackpool_wire::control::ShareStatus;

const OBJECTS: usize = 24;
const SIZE: u64 = 1000;

/// Two racks with sharing: a rack soon copies pages that it reads, and pages stay at home.
fn sharing(fabric: FabricKind) -> TestPool {
    sharing_of(fabric, 256)
}

/// The same with this number of frames in each rack.
fn sharing_of(fabric: FabricKind, frames: u64) -> TestPool {
    let pool = TestPool::with(|options| {
        options.fabric = fabric;
        options.memory = frames * PAGE;
        options.daemon_arguments = vec![
            ("--hot", "1.5".into()),
            ("--read-hot", "0.9".into()),
            ("--swap-pause-ms", "1".into()),
            ("--swap", "on".into()),
            ("--share", "on".into()),
        ];
    });
    pool.wait_until_racks_meet();
    pool
}

fn objects_of_a_page(rack: &Pool) -> Vec<GlobalAddr> {
    let objects: Vec<_> = (0..OBJECTS).map(|_| rack.alloc(SIZE).unwrap()).collect();
    for addr in &objects {
        contents::write(rack, *addr, SIZE);
    }
    objects
}

/// The sum of both racks' sharing metrics. A page may have moved before it is shared.
fn both(pool: &TestPool) -> ShareStatus {
    let [one, other] = [0, 1].map(|rack| pool.status(rack).sharing);
    ShareStatus {
        shared: one.shared + other.shared,
        begun: one.begun + other.begun,
        ended: one.ended + other.ended,
        copies: one.copies + other.copies,
        made: one.made + other.made,
        reads: one.reads + other.reads,
    }
}

/// Reads in both racks until a read comes from a copy.
fn read_until_copied(pool: &TestPool, racks: [&Pool; 2], addr: GlobalAddr) {
    let before = both(pool).reads;
    wait_until("a copy is read", TIMEOUT, || {
        for _ in 0..500 {
            contents::check(racks[0], addr, SIZE);
            contents::check(racks[1], addr, SIZE);
        }
        both(pool).reads > before
    });
}

fn a_page_that_two_racks_read_is_copied_until_somebody_writes(fabric: FabricKind) {
    let pool = sharing(fabric);
    let (home, user) = (pool.open(0), pool.open(1));
    let objects = objects_of_a_page(&home);
    let free = [0, 1].map(|rack| pool.status(rack).free_frames);
    read_until_copied(&pool, [&home, &user], objects[0]);
    let seen = both(&pool);
    assert!(seen.begun > 0 && seen.made > 0, "{seen:?}");
    let free = free.iter().sum::<u32>();
    wait_until("frames of copies count as free", TIMEOUT, || {
        [0, 1].iter().map(|rack| pool.status(*rack).free_frames).sum::<u32>() == free
    });

    // A local write, a remote write, and an atomic: each is visible at once in both racks.
    let word = objects[1];
    for (writer, other) in [(&home, &user), (&user, &home)] {
        for value in 1..20_u64 {
            writer.write(word, &value.to_le_bytes()).unwrap();
            for reader in [other, writer] {
                let mut found = [0; 8];
                reader.read(word, &mut found).unwrap();
                assert_eq!(u64::from_le_bytes(found), value);
            }
        }
    }
    for value in 19..30_u64 {
        assert_eq!(user.fetch_and_add(word, 1).unwrap(), value);
        let mut found = [0; 8];
        user.read(word, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), value + 1);
    }
    assert!(both(&pool).ended > 0, "writers have ended it");
    contents::write(&home, word, SIZE);
    for addr in &objects {
        contents::check(&user, *addr, SIZE);
        home.free(*addr).unwrap();
    }
    home.close();
    user.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn a_page_that_two_racks_read_is_copied_until_somebody_writes_emulated() {
    a_page_that_two_racks_read_is_copied_until_somebody_writes(FabricKind::Emulated);
}

#[test]
fn a_page_that_two_racks_read_is_copied_until_somebody_writes_tcp() {
    a_page_that_two_racks_read_is_copied_until_somebody_writes(FabricKind::Tcp);
}

/// Ends the readers, however the test ends.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A word to which one thread writes increasing values, and which all threads read.
struct Register {
    addr: GlobalAddr,
    begun: AtomicU64,
    acknowledged: AtomicU64,
}

impl Register {
    fn write(&self, pool: &Pool) {
        let value = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        wait_until("the write is done", TIMEOUT, || {
            pool.write(self.addr, &value.to_le_bytes()).is_ok()
        });
        self.acknowledged.store(value, Ordering::SeqCst);
    }

    /// Reads until the end and counts the reads. Each value read must have been current at some
    /// point during the read.
    fn read_on(&self, pool: &Pool, reads: &AtomicU64, stop: &AtomicBool) {
        let mut last = 0;
        while !stop.load(Ordering::Relaxed) {
            let at_least = self.acknowledged.load(Ordering::SeqCst).max(last);
            let mut found = [0; 8];
            // While a daemon is unavailable.
            if pool.read(self.addr, &mut found).is_err() {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            last = u64::from_le_bytes(found);
            let at_most = self.begun.load(Ordering::SeqCst);
            assert!((at_least..=at_most).contains(&last), "{at_least} <= {last} <= {at_most}");
            reads.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What happens to a daemon while copies are read.
#[derive(Clone, Copy)]
enum Fault {
    Kill(u16),
    Stop(u16),
}

impl Fault {
    fn strike(self, pool: &mut TestPool) {
        match self {
            Self::Kill(rack) => pool.kill_daemon(rack),
            Self::Stop(rack) => pool.stop_daemon(rack),
        }
    }

    fn heal(self, pool: &mut TestPool) {
        match self {
            Self::Kill(rack) => pool.restart_daemon(rack),
            Self::Stop(rack) => pool.resume_daemon(rack),
        }
    }
}

/// The writer is never in the rack whose daemon is struck, since its clients would wait for that
/// daemon.
fn nobody_reads_what_is_not_true_any_more(faults: &[Fault]) {
    let mut pool = sharing(FabricKind::Emulated);
    // No write is given up and then executed some time later.
    let patient = |rack| pool.options(rack).request_timeout(3 * TIMEOUT);
    let racks = [0, 1].map(|rack| Pool::open(patient(rack)).unwrap());
    let addr = objects_of_a_page(&racks[0])[0];
    racks[0].write(addr, &0_u64.to_le_bytes()).unwrap();
    let [begun, acknowledged] = [0, 0].map(AtomicU64::new);
    let register = Register { addr, begun, acknowledged };
    let (stop, reads) = (AtomicBool::new(false), [0, 0].map(AtomicU64::new));
    std::thread::scope(|scope| {
        let _end = EndOf(&stop);
        for (rack, reads) in racks.iter().zip(&reads) {
            let (register, stop) = (&register, &stop);
            scope.spawn(move || register.read_on(rack, reads, stop));
        }
        for fault in faults {
            let before = both(&pool);
            wait_until("a copy is read", TIMEOUT, || {
                let now = both(&pool);
                // A restarted daemon counts from 0.
                now.copies > 0 && now.reads != before.reads
            });
            fault.strike(&mut pool);
            let (Fault::Kill(struck) | Fault::Stop(struck)) = *fault;
            let writer = &racks[usize::from(1 - struck)];
            // The page may live in the rack that is struck; the write then waits for its daemon.
            let written = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..3 {
                        register.write(writer);
                    }
                    written.store(true, Ordering::Relaxed);
                });
                std::thread::sleep(Duration::from_millis(700));
                fault.heal(&mut pool);
            });
            assert!(written.load(Ordering::Relaxed));
            let before = [0, 1].map(|rack| reads[rack].load(Ordering::Relaxed));
            wait_until("both racks read on", TIMEOUT, || {
                (0..2).all(|rack| reads[rack].load(Ordering::Relaxed) > before[rack])
            });
        }
    });
    for rack in racks {
        rack.close();
    }
}

#[test]
fn nobody_reads_an_old_value_while_daemons_are_killed() {
    nobody_reads_what_is_not_true_any_more(&[Fault::Kill(1), Fault::Kill(0), Fault::Kill(1)]);
}

#[test]
fn nobody_reads_an_old_value_while_daemons_are_stopped() {
    nobody_reads_what_is_not_true_any_more(&[Fault::Stop(1), Fault::Stop(0), Fault::Stop(1)]);
}

/// The home of the shared page, and the other rack.
fn home_and_other(pool: &TestPool) -> [usize; 2] {
    if pool.status(0).sharing.shared > 0 { [0, 1] } else { [1, 0] }
}

/// A word of a shared page must get its borrowed object back, and the daemon that recovers it is in
/// the rack that does not have the page.
#[test]
fn what_a_killed_program_took_out_of_a_shared_page_is_put_back() {
    let pool = sharing(FabricKind::Emulated);
    let racks = [0, 1].map(|rack| pool.open(rack));
    let objects = objects_of_a_page(&racks[0]);
    // Objects that are never freed: each waits in its word to be borrowed.
    let shelved = [0, 1].map(|_| racks[0].alloc(16).unwrap());
    let before = Census::of(&pool);
    let mut clients = [0, 1].map(|rack| pool.client(rack, &["reservations"]));
    for (rack, client) in clients.iter_mut().enumerate() {
        racks[0].write(objects[rack], &shelved[rack].raw().to_le_bytes()).unwrap();
        let take = format!("take {:x} {:x}", objects[rack].raw(), shelved[rack].raw());
        assert_eq!(client.ask(&take), "ok");
    }
    wait_until("the page is shared again", TIMEOUT, || {
        for _ in 0..500 {
            contents::check(&racks[0], objects[2], SIZE);
            contents::check(&racks[1], objects[2], SIZE);
        }
        both(&pool).shared > 0 && both(&pool).copies > 0
    });
    let [_, other] = home_and_other(&pool);
    clients[other].kill();
    wait_until("what it took is back in its place", TIMEOUT, || {
        let mut found = [0; 8];
        racks[1 - other].read(objects[other], &mut found).unwrap();
        u64::from_le_bytes(found) == shelved[other].raw()
    });
    clients[1 - other].kill();
    wait_until("the clients are gone", TIMEOUT, || before.newcomers_are_gone(&pool));
}

#[test]
fn a_sharing_ends_when_nobody_reads_the_copies() {
    let pool = sharing(FabricKind::Emulated);
    let racks = [0, 1].map(|rack| pool.open(rack));
    let objects = objects_of_a_page(&racks[0]);
    read_until_copied(&pool, [&racks[0], &racks[1]], objects[0]);
    wait_until("nothing is shared any more", TIMEOUT, || both(&pool).shared == 0);
    for addr in &objects {
        contents::check(&racks[1], *addr, SIZE);
    }
}

/// A reader keeps the page shared, and its rack a copy.
#[test]
fn the_free_objects_of_a_shared_page_are_handed_out_when_there_are_no_others() {
    const FRAMES: u64 = 32;
    let pool = sharing_of(FabricKind::Emulated, FRAMES);
    let racks = [0, 1].map(|rack| pool.open(rack));
    let objects = objects_of_a_page(&racks[0]);
    read_until_copied(&pool, [&racks[0], &racks[1]], objects[0]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = EndOf(&stop);
        for rack in &racks {
            let (addr, stop) = (objects[0], &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    contents::check(rack, addr, SIZE);
                }
            });
        }
        let mut handed_out = objects.len() as u64;
        let all = 2 * FRAMES * (PAGE / SIZE.next_power_of_two());
        let filler = pool.open(0);
        wait_until("every object is handed out", TIMEOUT, || {
            while filler.alloc(SIZE).is_ok() {
                handed_out += 1;
            }
            // Objects that the first client caches for its next allocations.
            while racks[0].alloc(SIZE).is_ok() {
                handed_out += 1;
            }
            handed_out == all
        });
    });
}
