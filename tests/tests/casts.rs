//! Casts: objects come to many racks at once, whatever happens to the programs that take part.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rackpool_client::{Pool, RackId};
use rackpool_cluster::ClusterOptions;
use rackpool_kv::{Table, TableOptions};
use rackpool_objects::{
    CastAgent, CastFailure, CastOptions, CastReport, CastSchedule, CastVisibility, CreateOptions,
    Store, StoreError,
};
use rackpool_testing::StopAtEnd;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

const RACKS: u16 = 4;
const MIB: usize = 1 << 20;
/// The grace period of casts one of whose programs is killed: longer than others pause.
const KILLED: Duration = Duration::from_secs(8);

/// One test at a time: each has many processes, which must not be taken for lost.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pool() -> TestPool {
    pool_with(|_| ())
}

/// A pool in which 8 MiB take at least 70 ms from one rack to another.
fn slow_pool() -> TestPool {
    pool_with(|options| {
        options.bandwidth_gbps = 1.0;
        options.memory = 64 << 20;
    })
}

fn pool_with(change: impl FnOnce(&mut ClusterOptions)) -> TestPool {
    let pool = TestPool::with(|options| {
        options.racks = RACKS;
        options.lease_ms = 20_000;
        change(options);
    });
    pool.wait_until_racks_meet();
    pool
}

/// A `rackpool` process of this pool, which is killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(pool: &TestPool, rack: u16, arguments: &[&str]) -> Self {
        let rack = rack.to_string();
        let mut command = Command::new(program("rackpool"));
        command.args(arguments).args(["--rack", &rack, "--dir"]).arg(pool.dir());
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an agent process in each of these racks, one after the other.
fn agents(pool: &TestPool, racks: &[u16]) -> Vec<Process> {
    let root = store(pool, 0);
    let start = |rack: &u16| {
        let agent = Process::start(pool, *rack, &["agent"]);
        let is_there = || root.cast_racks().unwrap().contains(&RackId(*rack));
        wait_until("the agent serves", TIMEOUT, is_there);
        agent
    };
    racks.iter().map(start).collect()
}

/// Waits until a rack brings an object that is being cast.
fn wait_until_it_comes(root: &Store, id: &[u8], rack: u16) {
    wait_until("the object comes", TIMEOUT, || {
        let replicas = root.explain(id).unwrap().replicas;
        replicas.iter().any(|replica| replica.rack == RackId(rack))
    });
}

fn store(pool: &TestPool, rack: u16) -> Store {
    Store::open_or_create(Arc::new(pool.open(rack)), "objects").unwrap()
}

fn bytes(tag: u64, len: usize) -> Vec<u8> {
    contents::of(tag, len)
}

fn put(store: &Store, id: &[u8], bytes: &[u8]) {
    store
        .put(id, bytes, &CreateOptions { metadata: b"about", ..CreateOptions::default() })
        .unwrap();
}

/// Runs `test` while agents serve these racks.
fn with_agents(pool: &TestPool, racks: &[u16], test: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for rack in racks {
            let options = pool.options(*rack).threads(CastAgent::THREADS);
            let agent = CastAgent::new(Arc::new(Pool::open(options).unwrap()));
            let stop = &stop;
            scope.spawn(move || agent.serve(stop, |event| eprintln!("{rack}: {event:?}")).unwrap());
        }
        let _stop = StopAtEnd(&stop);
        let root = store(pool, 0);
        let expected: BTreeSet<_> = racks.iter().map(|rack| RackId(*rack)).collect();
        wait_until("the agents serve", TIMEOUT, || root.cast_racks().unwrap() == expected);
        test();
    });
}

/// Options with which no rack of a busy machine is taken for lost.
fn patient() -> CastOptions {
    CastOptions { grace: Duration::from_secs(60), ..CastOptions::default() }
}

fn all_but(root: u16) -> Vec<RackId> {
    (0..RACKS).filter(|rack| *rack != root).map(RackId).collect()
}

fn cast(store: &Store, id: &[u8], racks: &[RackId], options: &CastOptions) -> CastReport {
    store.cast(id, racks, options, |_| ()).unwrap().expect("an object")
}

/// Each of these racks has the object without a transfer.
fn check(pool: &TestPool, racks: &[RackId], id: &[u8], expected: &[u8]) {
    for rack in racks {
        let store = store(pool, rack.0);
        let view = store.get(id).unwrap().expect("an object");
        assert!(*view == *expected && view.metadata() == b"about", "rack {}", rack.0);
        assert_eq!(store.stats().transfers, 0, "rack {} had no copy", rack.0);
    }
}

#[test]
fn an_object_comes_to_all_racks_with_each_schedule() {
    let _alone = alone();
    let pool = pool();
    with_agents(&pool, &[0, 1, 2, 3], || {
        let root = store(&pool, 0);
        let mut tag = 0;
        for schedule in CastSchedule::ALL {
            for (len, visible) in [
                (0, CastVisibility::Each),
                (1, CastVisibility::Together),
                (300_000, CastVisibility::Each),
                (MIB, CastVisibility::Together),
            ] {
                tag += 1;
                let id = format!("{schedule:?}-{len}");
                let expected = bytes(tag, len);
                put(&root, id.as_bytes(), &expected);
                let pods = vec![vec![RackId(0), RackId(1)], vec![RackId(2), RackId(3)]];
                let block_bytes = Some(64 << 10);
                let options = CastOptions { schedule, visible, block_bytes, pods, ..patient() };
                let report = cast(&root, id.as_bytes(), &all_but(0), &options);
                assert!(report.is_complete() && report.racks.len() == 3, "{id}: {report:?}");
                assert_eq!(report.bytes, len as u64 + 5);
                check(&pool, &all_but(0), id.as_bytes(), &expected);
                assert!(root.delete(id.as_bytes()).unwrap());
            }
        }
    });
}

#[test]
fn racks_that_cannot_take_part_are_told_apart_and_the_others_get_the_object() {
    let _alone = alone();
    let pool = pool();
    let (root, expected) = (store(&pool, 0), bytes(1, 3 * MIB));
    put(&root, b"object", &expected);
    // One rack has it already, one is full, two do not exist.
    assert!(store(&pool, 1).get(b"object").unwrap().is_some());
    let filler = pool.open(2);
    let pages: Vec<_> = std::iter::from_fn(|| filler.alloc_fixed(PAGE).ok()).collect();
    with_agents(&pool, &[1, 2, 3], || {
        let racks = [0, 1, 2, 3, 3, 4, 99].map(RackId);
        let report = cast(&root, b"object", &racks, &patient());
        assert_eq!(report.racks.len(), 6, "{report:?}");
        for rack in [0, 1, 3] {
            assert_eq!(report.racks[&RackId(rack)], Ok(()), "{report:?}");
        }
        let full = &report.racks[&RackId(2)];
        assert!(
            matches!(full, Err(CastFailure::Refused(why)) if why.contains("has no room")),
            "{full:?}"
        );
        for rack in [4, 99] {
            assert_eq!(report.racks[&RackId(rack)], Err(CastFailure::NoAgent));
        }
        check(&pool, &[1, 3].map(RackId), b"object", &expected);
        pages.iter().for_each(|addr| filler.free(*addr).unwrap());
        // Once there is room it gets the object too.
        let again = cast(&root, b"object", &[RackId(2)], &patient());
        assert!(again.is_complete(), "{again:?}");
        check(&pool, &[RackId(2)], b"object", &expected);
    });
    // The agents are gone, and nobody waits for them.
    let report = cast(&root, b"object", &[RackId(3)], &patient());
    assert_eq!(report.racks[&RackId(3)], Err(CastFailure::NoAgent));
}

#[test]
fn wrong_calls_are_refused() {
    let _alone = alone();
    let pool = pool();
    let root = store(&pool, 0);
    let options = patient();
    assert!(root.cast(b"absent", &all_but(0), &options, |_| ()).unwrap().is_none());
    let long = root.cast(&[1; 65], &[], &options, |_| ());
    assert!(matches!(long, Err(StoreError::IdLength { bytes: 65 })));
    put(&root, b"object", b"bytes");
    let odd = CastOptions { block_bytes: Some(1000), ..options.clone() };
    let odd = root.cast(b"object", &all_but(0), &odd, |_| ()).unwrap_err().to_string();
    assert!(odd.contains("multiples of 64 KiB"), "{odd}");
    // Without a target there is nothing to do.
    assert!(cast(&root, b"object", &[], &options).is_complete());
}

#[test]
fn casts_that_overlap_all_arrive() {
    let _alone = alone();
    let pool = pool();
    with_agents(&pool, &[0, 1, 2, 3], || {
        std::thread::scope(|scope| {
            for root in 0..RACKS {
                let pool = &pool;
                scope.spawn(move || {
                    let store = store(pool, root);
                    for round in 0..3 {
                        let id = format!("{root}-{round}");
                        let expected = bytes(u64::from(root) << 8 | round, MIB);
                        put(&store, id.as_bytes(), &expected);
                        let mut last = 0;
                        let options = patient();
                        let report = store.cast(id.as_bytes(), &all_but(root), &options, |told| {
                            assert!(told.blocks <= told.of_blocks);
                            last = last.max(told.blocks);
                        });
                        let report = report.unwrap().expect("an object");
                        assert!(report.is_complete(), "{id}: {report:?}");
                        assert_eq!(last, report.blocks, "no progress was told");
                        check(pool, &all_but(root), id.as_bytes(), &expected);
                        assert!(store.delete(id.as_bytes()).unwrap());
                    }
                });
            }
        });
    });
}

#[test]
fn an_agent_that_is_killed_delays_the_others_and_leaves_nothing() {
    let _alone = alone();
    let pool = slow_pool();
    let mut agents = agents(&pool, &[1, 2, 3]);
    let (root, expected) = (store(&pool, 0), bytes(1, 8 * MIB));
    for (round, visible) in [CastVisibility::Each, CastVisibility::Together].into_iter().enumerate()
    {
        let id = format!("object-{round}");
        put(&root, id.as_bytes(), &expected);
        let options = CastOptions { visible, grace: KILLED, ..patient() };
        let report = std::thread::scope(|scope| {
            let report = scope.spawn(|| cast(&root, id.as_bytes(), &all_but(0), &options));
            wait_until_it_comes(&root, id.as_bytes(), 2);
            agents[1].kill();
            report.join().unwrap()
        });
        let lost = &report.racks[&RackId(2)];
        assert!(matches!(lost, Err(CastFailure::Multicast(_))), "{report:?}");
        for rack in [1, 3] {
            assert_eq!(report.racks[&RackId(rack)], Ok(()), "{report:?}");
        }
        check(&pool, &[1, 3].map(RackId), id.as_bytes(), &expected);
        // The rack of the killed agent gets the object by itself, and others by the next agent.
        assert_eq!(*store(&pool, 2).get(id.as_bytes()).unwrap().unwrap(), expected[..]);
        assert!(root.delete(id.as_bytes()).unwrap());
        agents[1] = Process::start(&pool, 2, &["agent"]);
    }
    drop((root, agents));
    census::wait_until_no_object_is_left(&pool);
}

/// For some seconds after its end, casts take the killed agent for alive.
#[test]
fn an_agent_takes_the_invitations_of_the_one_that_was_killed_before_it() {
    let _alone = alone();
    let pool = pool();
    let mut agents = agents(&pool, &[1, 2]);
    let (root, expected) = (store(&pool, 0), bytes(1, MIB));
    put(&root, b"object", &expected);
    agents[1].kill();
    let report = std::thread::scope(|scope| {
        let report = scope.spawn(|| cast(&root, b"object", &[RackId(1), RackId(2)], &patient()));
        let reader = Arc::new(pool.open(0));
        let addr = reader.root(".casts-2").unwrap().expect("a board");
        let mut board = Table::open(reader, addr).unwrap().handle();
        wait_until("the rack is invited", TIMEOUT, || {
            let mut is_invited = false;
            board.for_each(|key, _| is_invited |= key.starts_with(b"i")).unwrap();
            is_invited
        });
        agents[1] = Process::start(&pool, 2, &["agent"]);
        report.join().unwrap()
    });
    assert!(report.is_complete(), "{report:?}");
}

#[test]
fn a_cast_whose_program_is_killed_ends_and_can_be_repeated() {
    let _alone = alone();
    let pool = slow_pool();
    let agents = agents(&pool, &[1, 2, 3]);
    let (root, expected) = (store(&pool, 0), bytes(1, 8 * MIB));
    put(&root, b"object", &expected);
    let arguments = ["cast", "object", "--block", "128K", "--grace", "8"];
    let mut caster = Process::start(&pool, 0, &arguments);
    wait_until_it_comes(&root, b"object", 3);
    caster.kill();
    // Gets wait for the rack's cast to end, and then bring the object themselves.
    for rack in 1..RACKS {
        assert_eq!(*store(&pool, rack).get(b"object").unwrap().unwrap(), expected[..]);
    }
    let report = cast(&root, b"object", &all_but(0), &patient());
    assert!(report.is_complete(), "{report:?}");
    assert!(root.delete(b"object").unwrap());
    drop((root, agents));
    census::wait_until_no_object_is_left(&pool);
}

#[test]
fn an_object_that_is_deleted_meanwhile_is_in_no_rack() {
    let _alone = alone();
    let pool = slow_pool();
    let agents = agents(&pool, &[1, 2, 3]);
    let (root, other) = (store(&pool, 0), store(&pool, 1));
    put(&root, b"object", &bytes(1, 8 * MIB));
    let report = std::thread::scope(|scope| {
        let report = scope.spawn(|| cast(&root, b"object", &all_but(0), &patient()));
        wait_until_it_comes(&root, b"object", 2);
        assert!(other.delete(b"object").unwrap());
        report.join().unwrap()
    });
    for (rack, result) in report.racks {
        // The cast may have been the faster one.
        assert!(matches!(result, Ok(()) | Err(CastFailure::Deleted)), "{rack}: {result:?}");
        assert!(store(&pool, rack.0).get(b"object").unwrap().is_none());
    }
    drop((root, other, agents));
    census::wait_until_no_object_is_left(&pool);
}

#[test]
fn a_daemon_that_is_killed_during_a_cast_delays_it() {
    let _alone = alone();
    let mut pool = slow_pool();
    let agents = agents(&pool, &[1, 2, 3]);
    let (root, expected) = (store(&pool, 0), bytes(1, 8 * MIB));
    put(&root, b"object", &expected);
    let report = std::thread::scope(|scope| {
        let report = scope.spawn(|| cast(&root, b"object", &all_but(0), &patient()));
        wait_until_it_comes(&root, b"object", 2);
        pool.kill_daemon(3);
        pool.restart_daemon(3);
        report.join().unwrap()
    });
    for rack in [1, 2] {
        assert_eq!(report.racks[&RackId(rack)], Ok(()), "{report:?}");
    }
    // The rack itself may have been taken for lost while its daemon was away.
    assert_eq!(*store(&pool, 3).get(b"object").unwrap().unwrap(), expected[..]);
    drop(agents);
}

/// A daemon ends during a cast, and is away during the next one. Then its rack begins anew with
/// empty memory.
#[test]
fn a_rack_that_is_gone_fails_alone_and_may_come_back_without_its_memory() {
    for gone in [3, 1] {
        let _alone = alone();
        let mut pool = pool_with(|options| {
            options.bandwidth_gbps = 1.0;
            options.memory = 64 << 20;
            options.lease_ms = 5_000;
        });
        let agents = agents(&pool, &[1, 2, 3]);
        let (root, expected) = (store(&pool, 0), bytes(1, 8 * MIB));
        put(&root, b"object", &expected);
        put(&root, b"another", &expected);
        let report = std::thread::scope(|scope| {
            let report = scope.spawn(|| cast(&root, b"object", &all_but(0), &patient()));
            wait_until_it_comes(&root, b"object", 2);
            pool.kill_daemon(gone);
            report.join().unwrap()
        });
        let others: Vec<_> = all_but(0).into_iter().filter(|rack| rack.0 != gone).collect();
        for rack in &others {
            // The registration of the object's replicas may lie in the rack that is gone.
            match &report.racks[rack] {
                Ok(()) => check(&pool, &[*rack], b"object", &expected),
                Err(CastFailure::Refused(why)) => {
                    assert!(why.contains("a rack is away that is needed"), "{why}");
                }
                Err(other) => panic!("{rack}: {other}"),
            }
        }
        let report = cast(&root, b"another", &all_but(0), &patient());
        assert!(report.racks[&RackId(gone)].is_err(), "{report:?}");
        assert!(others.iter().all(|rack| report.racks[rack].is_ok()), "{report:?}");
        check(&pool, &others, b"another", &expected);
        assert_eq!(root.cast_racks().unwrap(), others.iter().copied().collect());

        drop(agents);
        std::fs::remove_dir_all(pool.rack_dir(gone)).unwrap();
        pool.restart_daemon(gone);
        let agents = self::agents(&pool, &[1, 2, 3]);
        let new = Store::open_or_create(Arc::new(pool.open(0)), "new").unwrap();
        put(&new, b"object", &expected);
        let report = cast(&new, b"object", &all_but(0), &patient());
        assert!(report.is_complete(), "{report:?}");
        drop(agents);
    }
}

#[test]
fn garbage_on_boards_harms_no_agent() {
    let _alone = alone();
    let pool = pool();
    with_agents(&pool, &[1, 2, 3], || {
        let (root, expected) = (store(&pool, 0), bytes(1, MIB));
        let reader = Arc::new(pool.open(0));
        let options = TableOptions::for_pages(reader.page_bytes());
        let mut boards = [".casts-0", ".casts-1"].map(|name| {
            Table::open_or_create(Arc::clone(&reader), name, &options).unwrap().handle()
        });
        let mut random = 1_u64;
        for round in 0..100_u64 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let len = usize::try_from(random >> 58).unwrap();
            let garbage = bytes(random, len);
            let (kind, cast) =
                (b"daimopt"[usize::try_from(round % 7).unwrap()], round.to_le_bytes());
            // Agents have no number in their keys, and messages a rack besides that of their cast.
            for key in
                [vec![kind], [&[kind][..], &cast].concat(), [&[kind][..], &cast, &[1, 0]].concat()]
            {
                for board in &mut boards {
                    board.put(&key, &garbage).unwrap();
                }
            }
        }
        wait_until("the agent says again that it lives", TIMEOUT, || {
            root.cast_racks().unwrap().contains(&RackId(1))
        });
        put(&root, b"object", &expected);
        let report = cast(&root, b"object", &all_but(0), &patient());
        assert!(report.is_complete(), "{report:?}");
        check(&pool, &all_but(0), b"object", &expected);
        // What is no sign of life of a cast goes.
        let [_, of_agent] = &mut boards;
        wait_until("the garbage is swept", TIMEOUT, || {
            let mut casts = 0;
            of_agent
                .for_each(|key, _| casts += u32::from(key.len() == 9 && key[0] == b'd'))
                .unwrap();
            casts == 0
        });
    });
}
