//! A metadata store is refused if it is not the one that the racks' memory has seen, or an older
//! state of it; the right one never is.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rackpool_admin::MetadataServer;
use rackpool_client::{GlobalAddr, Pool, RackId};
use rackpool_testing::wait::{TIMEOUT, try_wait_for, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SIZE: u64 = 1000;
/// The longest time until an operation on a page that no rack knows fails.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Two racks in which a page moves as soon as it is used remotely.
fn restless() -> TestPool {
    TestPool::with(|options| {
        let arguments =
            [("--hot", "1.5"), ("--rest-ms", "0"), ("--swap-pause-ms", "1"), ("--swap", "on")];
        options.daemon_arguments = arguments.map(|(name, value)| (name, value.into())).into();
    })
}

fn store(pool: &TestPool) -> PathBuf {
    pool.cluster.options().store.clone()
}

/// Starts a daemon as the pool does and checks that it ends by itself; returns its message.
#[track_caller]
fn refused(pool: &TestPool, rack: u16) -> String {
    let mut child = Command::new(program("rackpool-daemon"))
        .args(["--rack", &rack.to_string(), "--metadata", pool.cluster.metadata_address()])
        .args(["--memory", &pool.cluster.options().memory.to_string()])
        .args(["--page-size", &PAGE.to_string()])
        .arg("--dir")
        .arg(pool.dir())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    try_wait_for(TIMEOUT, || child.try_wait().unwrap());
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

/// Stops the metadata server, replaces its store, and starts it again.
fn start_with(pool: &mut TestPool, put: impl FnOnce(&Path)) {
    pool.cluster.metadata().kill().unwrap();
    pool.cluster.metadata().wait().unwrap();
    put(&store(pool));
    pool.cluster.restart_metadata().unwrap();
}

fn racks_that_live(pool: &TestPool) -> Vec<RackId> {
    let status = MetadataServer::at(pool.cluster.metadata_address()).status().unwrap();
    status.members.iter().filter(|member| member.alive).map(|member| member.rack).collect()
}

/// Moves the page of a new object of rack 0 to rack 1.
fn moved(home: &Pool, user: &Pool) -> GlobalAddr {
    let addr = home.alloc(SIZE).unwrap();
    contents::write(home, addr, SIZE);
    wait_until("the page comes", TIMEOUT, || {
        contents::check(user, addr, SIZE);
        user.is_local(addr).unwrap()
    });
    addr
}

#[test]
fn racks_refuse_a_new_store_and_say_the_way_out() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let client = pool.open(0);
    let addr = client.alloc(SIZE).unwrap();
    contents::write(&client, addr, SIZE);

    let kept = store(&pool).with_extension("kept");
    start_with(&mut pool, |store| std::fs::rename(store, &kept).unwrap());
    // Neither running nor newly started daemons join.
    for rack in [0, 1] {
        pool.kill_daemon(rack);
        let said = refused(&pool, rack);
        assert!(said.contains("belongs to another metadata store"), "{said}");
        assert!(said.contains("with the store that it had (--store)"), "{said}");
    }
    assert_eq!(racks_that_live(&pool), []);

    start_with(&mut pool, |store| std::fs::rename(&kept, store).unwrap());
    pool.restart_daemon(0);
    pool.restart_daemon(1);
    pool.wait_until_racks_serve();
    contents::check(&client, addr, SIZE);
}

#[test]
fn a_store_that_went_away_is_noticed_by_daemons_that_run() {
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let kept = store(&pool).with_extension("kept");
    start_with(&mut pool, |store| std::fs::rename(store, &kept).unwrap());
    for rack in [0, 1] {
        let log = pool.dir().join(format!("rack-{rack}.log"));
        wait_until("the daemon says so", TIMEOUT, || {
            std::fs::read_to_string(&log).unwrap().contains("belongs to another metadata store")
        });
    }
    assert_eq!(racks_that_live(&pool), []);
    start_with(&mut pool, |store| std::fs::rename(&kept, store).unwrap());
    wait_until("the racks come back", TIMEOUT, || racks_that_live(&pool).len() == 2);
    pool.wait_until_racks_serve();
}

#[test]
fn racks_refuse_an_older_copy_of_the_store_and_no_operation_hangs() {
    let mut pool = restless();
    pool.wait_until_racks_meet();
    let (home, user) = (pool.open(0), pool.open(1));
    let (older, newest) =
        (store(&pool).with_extension("older"), store(&pool).with_extension("new"));
    start_with(&mut pool, |store| {
        std::fs::copy(store, &older).unwrap();
    });
    // A daemon that answers this has registered with the metadata server.
    wait_until("the racks come back", TIMEOUT, || {
        [&home, &user].iter().all(|rack| rack.root("x").is_ok())
    });
    let objects = [moved(&home, &user), moved(&home, &user)];

    start_with(&mut pool, |store| {
        std::fs::rename(store, &newest).unwrap();
        std::fs::rename(&older, store).unwrap();
    });
    wait_until("the racks are out", TIMEOUT, || racks_that_live(&pool).is_empty());
    let begun = Instant::now();
    for addr in objects {
        for rack in [&home, &user] {
            // The right bytes, or an error.
            let mut found = vec![0; usize::try_from(SIZE).unwrap()];
            if rack.read(addr, &mut found).is_ok() {
                contents::check(&user, addr, SIZE);
            }
        }
    }
    assert!(begun.elapsed() < ENDS_WITHIN, "{:?}", begun.elapsed());
    for rack in [0, 1] {
        pool.kill_daemon(rack);
        let said = refused(&pool, rack);
        assert!(said.contains("the metadata store is an older copy"), "{said}");
        assert!(said.contains("with the newest copy (--store)"), "{said}");
    }

    start_with(&mut pool, |store| std::fs::rename(&newest, store).unwrap());
    pool.restart_daemon(0);
    pool.restart_daemon(1);
    pool.wait_until_racks_serve();
    for rack in [&home, &user] {
        objects.iter().for_each(|addr| contents::check(rack, *addr, SIZE));
    }
}

#[test]
fn the_right_store_is_never_refused_whoever_is_killed_when() {
    let mut pool = restless();
    pool.wait_until_racks_meet();
    let mut random = SmallRng::seed_from_u64(7);
    for round in 0..4 {
        // Commits are under way: a root, a page that moves, a registration.
        let (home, user) = (pool.open(0), pool.open(1));
        let addr = home.alloc(SIZE).unwrap();
        contents::write(&home, addr, SIZE);
        let wait = Duration::from_micros(random.random_range(0..20_000));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    let mut found = [0; 8];
                    let _ = user.read(addr, &mut found);
                    let _ = home.set_root("n", None, Some(addr));
                    let _ = home.set_root("n", Some(addr), None);
                }
            });
            std::thread::sleep(wait);
            pool.cluster.metadata().kill().unwrap();
            if round % 2 == 0 {
                pool.kill_daemon(round % 4 / 2);
            }
        });
        pool.cluster.restart_metadata().unwrap();
        if round % 2 == 0 {
            pool.restart_daemon(round % 4 / 2);
        }
        // Both are members again: neither was refused.
        wait_until("both racks are back", TIMEOUT, || racks_that_live(&pool).len() == 2);
        pool.wait_until_racks_serve();
    }
    for rack in [0, 1] {
        let said = std::fs::read_to_string(pool.dir().join(format!("rack-{rack}.log"))).unwrap();
        assert!(!said.contains("metadata store"), "{said}");
    }
}
