//! Opening pools, and names in them.

use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};

use rackpool_client::{ClientOptions, GlobalAddr, OpenError, RackId, RootUpdate};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census::Census;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rackpool_wire::control::ControlRequest;
use rackpool_wire::encode;
use rackpool_wire::metadata::Tagged;

#[test]
fn numbers_of_threads_that_no_client_can_have_are_refused_with_those_it_can() {
    let pool = TestPool::small();
    for threads in [0, 513, u16::MAX] {
        let error = rackpool_client::Pool::open(pool.options(0).threads(threads)).unwrap_err();
        assert_eq!(error.to_string(), format!("{threads} threads: ask for 1 to 512"));
        assert!(matches!(error, OpenError::Refused(_)), "{error:?}");
    }
    for threads in [1, 512] {
        let own = rackpool_client::Pool::open(pool.options(0).threads(threads)).unwrap();
        let addr = own.alloc(8).unwrap();
        own.free(addr).unwrap();
        own.close();
    }
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn who_finds_no_daemon_is_told_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    let options = ClientOptions::new(folder.path(), RackId(3));
    let error = rackpool_client::Pool::open(options).unwrap_err();
    let socket = folder.path().join("rack-3/daemon.sock");
    let said = format!(
        "no rack daemon at {} (No such file or directory (os error 2)): start one with \
         `rackpool up` or check the folder and the rack",
        socket.display()
    );
    assert_eq!(error.to_string(), said);
    assert!(matches!(error, OpenError::Connect { .. }), "{error:?}");
    // A killed daemon leaves its socket behind.
    let rack = folder.path().join("rack-3");
    std::fs::DirBuilder::new().mode(0o700).create(rack).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let error = rackpool_client::Pool::open(ClientOptions::with_socket(&socket)).unwrap_err();
    let refused = |source: &std::io::Error| source.kind() == std::io::ErrorKind::ConnectionRefused;
    assert!(
        matches!(&error, OpenError::Connect { socket: at, source } if *at == socket && refused(source)),
        "{error:?}"
    );
}

#[test]
fn what_living_threads_had_cached_is_back_when_the_pool_is_closed() {
    let pool = TestPool::small();
    let own = Arc::new(pool.open(0));
    let remote = Arc::new(pool.open(1));
    let (used, end) = (Barrier::new(4), Barrier::new(4));
    std::thread::scope(|scope| {
        for size in [16, 3000, PAGE] {
            let (own, remote) = (Arc::clone(&own), Arc::clone(&remote));
            let (used, end) = (&used, &end);
            scope.spawn(move || {
                let local: Vec<GlobalAddr> = (0..50).map(|_| own.alloc(size).unwrap()).collect();
                local.iter().for_each(|addr| own.free(*addr).unwrap());
                let other = remote.alloc(size).unwrap();
                own.free(other).unwrap();
                drop((own, remote));
                used.wait();
                end.wait();
            });
        }
        used.wait();
        Arc::into_inner(own).unwrap().close();
        Arc::into_inner(remote).unwrap().close();
        pool.wait_allocated("all is free while the threads live", TIMEOUT, [0, 0]);
        end.wait();
    });
}

#[test]
fn pools_of_several_racks_can_be_used_in_one_program() {
    let pool = TestPool::small();
    let first = pool.open(0);
    let addr = first.alloc(100).unwrap();
    contents::write(&first, addr, 100);
    for round in 0..20 {
        // Opened and closed while another client is in use, also of the same rack.
        let (second, third) = (pool.open(1), pool.open(0));
        contents::check(&second, addr, 100);
        let other = second.alloc(1000 + round).unwrap();
        contents::write(&third, other, 1000 + round);
        contents::check(&first, other, 1000 + round);
        third.close();
        first.free(other).unwrap();
        second.close();
        contents::check(&first, addr, 100);
    }
    first.free(addr).unwrap();
    first.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}

#[test]
fn names_are_shared_and_change_only_as_expected() {
    let pool = TestPool::small();
    let racks = [pool.open(0), pool.open(1)];
    let (a, b) = (racks[0].alloc(16).unwrap(), racks[1].alloc(16).unwrap());
    assert_eq!(racks[0].root("name").unwrap(), None);
    assert_eq!(
        racks[0].set_root("name", None, Some(a)).unwrap(),
        RootUpdate { addr: Some(a), changed: true }
    );
    assert_eq!(racks[1].root("name").unwrap(), Some(a));
    assert_eq!(
        racks[1].set_root("name", None, Some(b)).unwrap(),
        RootUpdate { addr: Some(a), changed: false }
    );
    assert_eq!(
        racks[1].set_root("name", Some(b), Some(b)).unwrap(),
        RootUpdate { addr: Some(a), changed: false }
    );
    assert_eq!(
        racks[1].set_root("name", Some(a), Some(b)).unwrap(),
        RootUpdate { addr: Some(b), changed: true }
    );
    assert_eq!(pool.client(0, &["serve"]).ask("root name"), format!("{:x}", b.raw()));
    assert_eq!(
        racks[0].set_root("name", Some(b), None).unwrap(),
        RootUpdate { addr: None, changed: true }
    );
    assert_eq!(racks[1].root("name").unwrap(), None);
    for wrong in [String::new(), "x".repeat(256)] {
        racks[0].set_root(&wrong, None, Some(a)).unwrap_err();
    }
    // Of many clients that set a name, one succeeds.
    let winners: usize = std::thread::scope(|scope| {
        let wanting = |index: u64| {
            let rack = &racks[usize::try_from(index % 2).unwrap()];
            let addr = GlobalAddr::from_raw(a.raw() + index);
            scope
                .spawn(move || usize::from(rack.set_root("one", None, Some(addr)).unwrap().changed))
        };
        let all: Vec<_> = (0..8).map(wanting).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(winners, 1);
}

/// A client whose open got no answer does not know its file, and its process may run for years.
#[test]
fn an_open_that_is_given_up_leaves_no_file() {
    let mut pool = TestPool::small();
    let before = Census::of(&pool);
    for dies in [false, true] {
        let mut stream = UnixStream::connect(pool.rack_dir(0).join("daemon.sock")).unwrap();
        let hello = ControlRequest::Hello { threads: 64, resume: None };
        stream.write_all(&encode(&Tagged { tag: 1, message: hello }).unwrap()).unwrap();
        wait_until("there is a file", TIMEOUT, || !before.newcomers_are_gone(&pool));
        if dies {
            pool.kill_daemon(0);
        }
        drop(stream);
        if dies {
            pool.restart_daemon(0);
        }
        wait_until("the file is gone", TIMEOUT, || before.newcomers_are_gone(&pool));
    }
}

#[test]
fn a_client_that_was_idle_while_its_daemon_was_away_keeps_its_file() {
    let mut pool = TestPool::small();
    let own = pool.open(0);
    let addr = own.alloc(64).unwrap();
    contents::write(&own, addr, 64);
    let log = pool.cluster.daemon(RackId(0)).unwrap().log().to_owned();
    for round in 1..=2 {
        pool.kill_daemon(0);
        pool.restart_daemon(0);
        // The daemon says so at its first check of the previous daemon's clients in which it finds
        // the client connected.
        wait_until("the client is checked", TIMEOUT, || {
            let log = std::fs::read_to_string(&log).unwrap();
            log.matches("has reconnected").count() == round
        });
        own.ping().unwrap();
        contents::check(&own, addr, 64);
    }
    own.free(addr).unwrap();
    own.close();
    pool.wait_allocated("all is freed", TIMEOUT, [0, 0]);
}
