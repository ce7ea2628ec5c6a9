//! Clients without the password, and clients that hold too much memory: they cost the service
//! little, and other clients nothing.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

const PAGES: u64 = 256 << 10;
const PASSWORD: &str = "a long password";

fn started(options: &[&str]) -> (TestPool, Service) {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &[&["--threads", "1"], options].concat());
    (pool, service)
}

fn with_password() -> (TestPool, Service) {
    started(&["--password", PASSWORD])
}

fn known(service: &Service) -> Wire {
    let mut wire = service.wire();
    assert_eq!(wire.ask(&["AUTH", PASSWORD]), Answer::ok());
    wire
}

/// A number from `INFO`.
fn counter(wire: &mut Wire, name: &str) -> u64 {
    let Answer::Bulk(info) = wire.ask(&["INFO"]) else { panic!("no INFO") };
    let info = String::from_utf8_lossy(&info).into_owned();
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.trim().parse().ok()).expect("a counter")
}

/// Sends requests without reading answers until the service has accepted none for a while, or the
/// connection ends. Returns the number of bytes accepted, of at most `most`.
fn flood(stream: &mut UnixStream, requests: &[u8], most: usize) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(300))).expect("a socket");
    let mut sent = 0;
    while sent < most {
        match stream.write(requests) {
            Ok(bytes) => sent += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    sent
}

#[test]
fn unauthenticated_peers_who_ask_and_do_not_read_cost_the_service_little() {
    const UNAUTHENTICATED: usize = 8;
    const EACH: usize = 40 << 20;
    let (_pool, service) = with_password();
    let mut wire = known(&service);
    let value = "v".repeat(1000);
    assert_eq!(wire.ask(&["SET", "key", &value]), Answer::ok());
    let before = service.memory();
    let is_over = AtomicBool::new(false);
    let pings = b"*1\r\n$4\r\nPING\r\n".repeat(4000);
    let streams = std::thread::scope(|scope| {
        let floods: Vec<_> = (0..UNAUTHENTICATED)
            .map(|_| {
                let mut stream = UnixStream::connect(&service.socket).expect("a service");
                let pings = &pings;
                scope.spawn(move || (flood(&mut stream, pings, EACH), stream))
            })
            .collect();
        let (wire, is_over) = (&mut wire, &is_over);
        let served = scope.spawn(move || {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(wire.ask(&["GET", "key"]), Answer::text(&value));
                count += 1;
            }
            count
        });
        let flooded: Vec<_> =
            floods.into_iter().map(|flood| flood.join().expect("a flood")).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(served.join().expect("a client") > 0);
        // The rest is in the kernel's buffers.
        assert!(flooded.iter().all(|(sent, _)| *sent < 4 << 20), "it reads on");
        flooded.into_iter().map(|(_, stream)| stream).collect::<Vec<_>>()
    });
    let more = service.memory().saturating_sub(before);
    assert!(more < 8 << 20, "{more} B for {UNAUTHENTICATED} unauthenticated peers");
    let held = counter(&mut wire, "mem_clients_normal");
    assert!(held < 64 << 10, "{held} B");
    drop(streams);
    wait_until("they are gone", TIMEOUT, || counter(&mut wire, "connected_clients") == 1);
    assert!(counter(&mut wire, "mem_clients_normal") < 1 << 10);
}

#[test]
fn a_long_request_before_the_password_ends_its_connection() {
    let (_pool, service) = with_password();
    let long = "x".repeat(3000);
    for (request, error) in [
        (format!("*2\r\n$4\r\nAUTH\r\n$5000\r\n{long}"), "unauthenticated bulk length"),
        (format!("*3\r\n$3000\r\n{long}\r\n$3000\r\n{long}"), "unauthenticated request length"),
        (format!("AUTH {long}{long}"), "unauthenticated request length"),
        ("*11\r\n".to_owned(), "unauthenticated multibulk length"),
    ] {
        let mut wire = service.wire();
        wire.send(request.as_bytes()).expect("a service that listens");
        let due = Answer::Error(format!("ERR Protocol error: {error}"));
        assert_eq!(wire.answer().expect("an answer"), due);
        assert!(wire.answer().is_err(), "it goes on after: {error}");
    }
    // Requests behind the password are not limited, even if they arrived with it.
    let value = "v".repeat(100_000);
    let mut wire = service.wire();
    wire.request(&["AUTH", PASSWORD]).expect("a service");
    wire.request(&["SET", "key", &value]).expect("a service");
    wire.request(&["GET", "key"]).expect("a service");
    for due in [Answer::ok(), Answer::ok(), Answer::text(&value)] {
        assert_eq!(wire.answer().expect("an answer"), due);
    }
}

#[test]
fn wrong_passwords_are_answered_ever_later_and_hold_nobody_else_up() {
    let (_pool, service) = with_password();
    let mut wire = known(&service);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let service = &service;
        let guesses = scope.spawn(move || {
            let begin = Instant::now();
            let mut guesser = service.wire();
            for guess in ["a", "b", "c"] {
                let answer = guesser.ask(&["AUTH", guess]);
                assert!(matches!(&answer, Answer::Error(e) if e.starts_with("WRONGPASS")));
            }
            // Requests behind a wrong password wait as well.
            guesser.request(&["HELLO", "3", "AUTH", "default", "d"]).expect("a service");
            guesser.request(&["AUTH", PASSWORD]).expect("a service");
            guesser.request(&["GET", "key"]).expect("a service");
            let wrong = guesser.answer().expect("an answer");
            assert!(matches!(&wrong, Answer::Error(e) if e.starts_with("WRONGPASS")));
            let waits = Duration::from_millis(100 + 200 + 400 + 800);
            assert!(begin.elapsed() >= waits, "{:?}", begin.elapsed());
            assert_eq!(guesser.answer().expect("an answer"), Answer::ok());
            // A wrong password can't be recognized by the absence of an early answer.
            assert!(begin.elapsed() >= waits + Duration::from_millis(100));
            assert_eq!(guesser.answer().expect("an answer"), Answer::Null);
            is_over.store(true, Ordering::Relaxed);
        });
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) && !guesses.is_finished() {
            assert_eq!(wire.ask(&["PING"]), Answer::Simple("PONG".into()));
            count += 1;
        }
        guesses.join().expect("a guesser");
        // A thread that slept for the guesser would give one or two for each guess.
        assert!(count > 50, "{count} answers in all that time");
    });
    assert_eq!(counter(&mut wire, "acl_access_denied_auth"), 4);
}

#[test]
fn connections_that_hold_most_end_when_all_hold_too_much() {
    const LIMIT: u64 = 32 << 20;
    let (_pool, service) = started(&["--max-client-memory", "32M"]);
    let mut wire = service.wire();
    let value = "v".repeat(100_000);
    assert_eq!(wire.ask(&["SET", "key", &value]), Answer::ok());
    let before = service.memory();
    // 10 MB of answers each, which no client reads.
    let mut words = vec!["key"; 101];
    words[0] = "MGET";
    let mut greedy: Vec<Wire> = (0..8).map(|_| service.wire()).collect();
    for one in &mut greedy {
        // The connection may have ended already.
        let _ = one.request(&words);
        assert_eq!(wire.ask(&["STRLEN", "key"]), Answer::Integer(100_000));
    }
    wait_until("some have ended", TIMEOUT, || counter(&mut wire, "evicted_clients") > 0);
    wait_until("what is held is within bounds", TIMEOUT, || {
        counter(&mut wire, "mem_clients_normal") <= LIMIT
    });
    let more = service.memory().saturating_sub(before);
    assert!(more < 2 * LIMIT, "{more} B");
    // The connections that hold least are still served.
    assert_eq!(wire.ask(&["STRLEN", "key"]), Answer::Integer(100_000));
    let ended = greedy.iter_mut().filter_map(|one| one.answer().err()).count();
    let evicted = counter(&mut wire, "evicted_clients");
    assert!(ended > 0 && ended as u64 == evicted, "{ended} of {evicted}");
}
