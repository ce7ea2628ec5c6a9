//! The connections of the service: many of them, and half-closed ones.

use std::net::SocketAddr;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rackpool_testing::skipped;
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

/// The number of connections that are possible: each is an open file here, and one of the service.
fn allowed(wanted: usize) -> usize {
    /// Other open files.
    const OTHERS: u64 = 512;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("a soft limit below the hard one");
    let allowed = usize::try_from(hard.saturating_sub(OTHERS)).unwrap_or(usize::MAX);
    if allowed < wanted {
        skipped(&format!("{allowed} of {wanted} connections: that many open files are allowed"));
    }
    wanted.min(allowed)
}

#[test]
fn ten_thousand_connections_are_served_in_little_memory() {
    const WANTED: usize = 10_000;
    const EACH: u64 = 4096;
    let pool = TestPool::start(64 << 20, 256 << 10);
    let count = allowed(WANTED);
    // One more connection requests the service's status.
    let most = (count + 16).to_string();
    let options = ["--threads", "2", "--listen", "127.0.0.1:0", "--max-clients", &most];
    let service = Service::start(&pool, 0, &options);
    let tcp = SocketAddr::from(([127, 0, 0, 1], service.port()));
    let before = service.memory();
    let mut wires: Vec<Wire> = (0..count)
        .map(|number| {
            if number % 2 == 0 {
                return Wire::try_open(&service.socket).expect("a connection");
            }
            Wire::try_connect(tcp).expect("a connection")
        })
        .collect();
    for round in 0..2 {
        for (number, wire) in wires.iter_mut().enumerate() {
            let (key, value) = (format!("c{number}"), format!("{round}"));
            wire.request(&["SET", &key, &value]).expect("a service that listens");
        }
        for wire in &mut wires {
            assert_eq!(wire.answer().expect("an answer"), Answer::ok());
        }
    }
    let grown = service.memory().saturating_sub(before);
    // The table's own memory and buffers are additional, once.
    let most = 32 << 20;
    assert!(grown < most + EACH * count as u64, "{count} connections take {grown} B");
    let Answer::Bulk(info) = wires[0].ask(&["INFO", "clients"]) else { panic!("no INFO") };
    let info = String::from_utf8_lossy(&info).into_owned();
    assert!(info.contains(&format!("connected_clients:{count}")), "{info}");
    assert_eq!(wires[count - 1].ask(&["GET", "c17"]), Answer::text("1"));
}

#[test]
fn who_sends_no_more_gets_its_answers_and_the_end() {
    let pool = TestPool::start(64 << 20, 256 << 10);
    let service = Service::start(&pool, 0, &["--threads", "1", "--listen", "127.0.0.1:0"]);
    let tcp = SocketAddr::from(([127, 0, 0, 1], service.port()));
    for round in 0..100 {
        for mut wire in [service.wire(), Wire::try_connect(tcp).expect("a connection")] {
            // The request and the end of input may both be present when the service first reads.
            wire.request(&["SET", "k", &round.to_string()]).expect("a service that listens");
            wire.shut().expect("a service that listens");
            assert_eq!(wire.answer().expect("an answer"), Answer::ok());
            let end = wire.answer().expect_err("an end");
            assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof, "{end}");
        }
    }
}
