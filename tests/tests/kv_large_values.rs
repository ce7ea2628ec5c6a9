//! Strings that are too long for an entry of the table: their contents, their memory, and kills.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rackpool_client::Pool;
use rackpool_kv::{KvError, Table};
use rackpool_testing::wait::{TIMEOUT, try_wait_until, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};
use rackpool_tests::{census, contents};

const PAGE: usize = 256 << 10;
const MIB: usize = 1 << 20;

fn pool() -> TestPool {
    let pool = TestPool::start(64 << 20, PAGE as u64);
    pool.wait_until_racks_meet();
    pool
}

fn start(pool: &TestPool, rack: u16) -> Service {
    Service::start(pool, rack, &["--threads", "1"])
}

fn set(wire: &mut Wire, key: &str, value: &[u8]) -> Answer {
    wire.ask(&[&b"SET"[..], key.as_bytes(), value])
}

/// The bytes of a string; they are compared without printing them.
#[track_caller]
fn get(wire: &mut Wire, key: &str) -> Vec<u8> {
    match wire.ask(&["GET", key]) {
        Answer::Bulk(bytes) => bytes,
        other => panic!("{key}: {other:?}"),
    }
}

#[track_caller]
fn assert_error(answer: &Answer, part: &str) {
    assert!(matches!(answer, Answer::Error(error) if error.contains(part)), "{answer:?}");
}

/// Ends a service and waits until no fixed memory is in use: large strings have no other.
#[track_caller]
fn assert_nothing_is_left(pool: &TestPool, service: &mut Service) {
    // The node table has a head, and maybe a marker, for each string. A marker that a kill left
    // stays for 30 s; then the sweep removes it with its string.
    let own = Arc::new(pool.open(0));
    let nodes = own.root("kv/nodes").expect("a pool that serves").expect("the service's table");
    let mut nodes = Table::open(own, nodes).expect("the service's table").handle();
    wait_until("no string is left", Duration::from_secs(120), || {
        nodes.count().expect("a readable table") == 0
    });
    drop(nodes);
    service.stop();
    wait_until("no fixed memory is in use", TIMEOUT, || census::fixed(pool).is_empty());
}

fn free_frames(pool: &TestPool) -> usize {
    [0, 1].iter().map(|rack| pool.status(*rack).free_frames as usize).sum()
}

/// The anonymous memory of the service in bytes: without the memory of the pool that it maps.
fn own_memory(service: &Service) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.id()));
    let status = status.expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.expect("its memory") << 10
}

#[test]
fn strings_of_any_length_are_the_same_at_both_racks() {
    let pool = pool();
    let mut services = [start(&pool, 0), start(&pool, 1)];
    let mut wires = [services[0].wire(), services[1].wire()];
    let sizes = [0, 1, PAGE - 600, PAGE - 513, PAGE - 512, PAGE - 100, PAGE - 1, PAGE, PAGE + 1];
    for (tag, size) in (0..).zip(sizes.into_iter().chain([3 * PAGE, 20 * PAGE + 7])) {
        let value = contents::of(tag, size);
        for writer in [0, 1] {
            // Each replaces a string of another length.
            assert_eq!(set(&mut wires[writer], "k", &value), Answer::ok(), "{size}");
            for wire in &mut wires {
                assert!(get(wire, "k") == value, "{size}");
                let len = i64::try_from(size).expect("a length");
                assert_eq!(wire.ask(&["STRLEN", "k"]), Answer::Integer(len));
                assert_eq!(wire.ask(&["TYPE", "k"]), Answer::Simple("string".into()));
                let middle = Answer::Bulk(value.get(size / 2..).unwrap_or_default().to_vec());
                assert!(wire.ask(&["GETRANGE", "k", &(size / 2).to_string(), "-1"]) == middle);
                let end = Answer::Bulk(value[size.saturating_sub(3)..].to_vec());
                assert_eq!(wire.ask(&["GETRANGE", "k", "-3", "-1"]), end);
            }
        }
    }
    assert_eq!(wires[0].ask(&["OBJECT", "ENCODING", "k"]), Answer::text("raw"));
    assert_error(&wires[0].ask(&["INCR", "k"]), "not an integer");
    assert_error(&wires[0].ask(&["INCRBYFLOAT", "k", "1"]), "not a valid float");
    assert_error(&wires[0].ask(&["HSET", "k", "f", "v"]), "WRONGTYPE");
    assert_eq!(wires[1].ask(&["DBSIZE"]), Answer::Integer(1));
    assert_eq!(wires[1].ask(&["FLUSHDB"]), Answer::ok());
    assert_eq!(wires[0].ask(&["GET", "k"]), Answer::Null);
    services[1].stop();
    assert_nothing_is_left(&pool, &mut services[0]);
}

#[test]
fn every_command_on_strings_takes_large_ones() {
    let pool = pool();
    let mut services = [start(&pool, 0), start(&pool, 1)];
    let large = |tag| contents::of(tag, 2 * PAGE + 5);
    let value = large(1);
    for at in [0, 1] {
        let mut here = services[at].wire();
        let mut there = services[1 - at].wire();
        let bulk = |bytes: &[u8]| Answer::Bulk(bytes.to_vec());
        // `SET` with options, and what stores only under a condition.
        assert_eq!(here.ask(&[&b"SET"[..], b"k", &value[..], b"XX"]), Answer::Null);
        assert_eq!(here.ask(&[&b"SET"[..], b"k", &value[..], b"NX", b"EX", b"600"]), Answer::ok());
        assert_eq!(here.ask(&[&b"SET"[..], b"k", &large(2)[..], b"NX"]), Answer::Null);
        assert_eq!(here.ask(&[&b"SETNX"[..], b"k", &large(2)[..]]), Answer::Integer(0));
        let answer = there.ask(&[&b"SET"[..], b"k", &large(2)[..], b"KEEPTTL", b"GET"]);
        assert!(answer == bulk(&value));
        assert!(matches!(here.ask(&["TTL", "k"]), Answer::Integer(500..=600)));
        assert_eq!(there.ask(&["PERSIST", "k"]), Answer::Integer(1));
        assert!(here.ask(&["SET", "k", "short", "GET"]) == bulk(&large(2)));
        assert!(here.ask(&[&b"GETSET"[..], b"k", &value[..]]) == Answer::text("short"));
        assert!(there.ask(&["GETEX", "k", "PX", "600000"]) == bulk(&value));
        assert!(matches!(here.ask(&["PTTL", "k"]), Answer::Integer(500_000..)));
        assert!(there.ask(&["GETEX", "k", "PERSIST"]) == bulk(&value));
        assert_eq!(here.ask(&["TTL", "k"]), Answer::Integer(-1));
        // `APPEND` and `SETRANGE` make an ordinary string large, and change a large one.
        let mut expected = large(3)[..PAGE / 2].to_vec();
        assert_eq!(set(&mut here, "a", &expected), Answer::ok());
        for more in [PAGE / 2, 1, 3 * PAGE] {
            let more = contents::of(9, more);
            expected.extend_from_slice(&more);
            let len = Answer::Integer(i64::try_from(expected.len()).expect("a length"));
            assert_eq!(there.ask(&[&b"APPEND"[..], b"a", &more[..]]), len);
            assert!(get(&mut here, "a") == expected);
        }
        for (offset, len) in [(0, 3), (PAGE - 1, 2), (expected.len() + 70_000, 3)] {
            let more = contents::of(5, len);
            expected.resize(expected.len().max(offset + len), 0);
            expected[offset..offset + len].copy_from_slice(&more);
            let text = offset.to_string();
            let answer = here.ask(&[&b"SETRANGE"[..], b"a", text.as_bytes(), &more[..]]);
            assert_eq!(answer, Answer::Integer(i64::try_from(expected.len()).expect("a length")));
            assert!(get(&mut there, "a") == expected, "{offset}");
        }
        assert_eq!(here.ask(&["SETRANGE", "far", &(3 * PAGE).to_string(), "x"]), {
            Answer::Integer(i64::try_from(3 * PAGE + 1).expect("a length"))
        });
        assert_error(&here.ask(&["SETRANGE", "far", "536870912", "x"]), "exceeds maximum");
        assert_eq!(get(&mut there, "far").iter().filter(|byte| **byte != 0).count(), 1);
        // Several keys, with other values between.
        let words: [&[u8]; 7] = [b"MSET", b"m1", &value, b"m2", b"short", b"m3", &large(4)];
        assert_eq!(here.ask(&words), Answer::ok());
        let all = there.ask(&["MGET", "m1", "m2", "none", "m3"]);
        let wanted = [bulk(&value), Answer::text("short"), Answer::Null, bulk(&large(4))];
        assert!(all == Answer::Array(wanted.into()));
        assert_eq!(here.ask(&["EXISTS", "m1", "m3"]), Answer::Integer(2));
        assert!(there.ask(&["GETDEL", "m1"]) == bulk(&value));
        assert_eq!(here.ask(&["DEL", "m1", "m2", "m3", "a", "far", "k"]), Answer::Integer(5));
        assert_eq!(there.ask(&["DBSIZE"]), Answer::Integer(0));
        // What does not fit is refused, and the connection goes on.
        assert_error(&here.ask(&[&b"ECHO"[..], &value[..]]), "exceeds maximum");
        assert_error(&here.ask(&[&b"SET"[..], &value[..], b"v"]), "exceeds maximum");
        assert_error(&here.ask(&[&b"HSET"[..], b"h", b"f", &value[..]]), "exceeds maximum");
        assert_error(&here.ask(&[&b"SET"[..], b"k", &value[..], b"nonsense"]), "syntax");
        assert_eq!(here.ask(&["DBSIZE"]), Answer::Integer(0));
    }
    services[1].stop();
    assert_nothing_is_left(&pool, &mut services[0]);
}

#[test]
fn transactions_read_and_store_large_strings() {
    let pool = pool();
    let mut services = [start(&pool, 0), start(&pool, 1)];
    let (mut here, mut there) = (services[0].wire(), services[1].wire());
    let value = contents::of(1, 3 * PAGE);
    let queue = |wire: &mut Wire, commands: &[&[&[u8]]]| {
        assert_eq!(wire.ask(&["MULTI"]), Answer::ok());
        for words in commands {
            assert_eq!(wire.ask(words), Answer::Simple("QUEUED".into()));
        }
        wire.ask(&["EXEC"])
    };
    let answer = queue(
        &mut here,
        &[
            &[b"SET", b"a", &value],
            &[b"GET", b"a"],
            &[b"SET", b"a", b"short"],
            &[b"SET", b"b", &value],
            &[b"APPEND", b"b", b"more"],
            &[b"STRLEN", b"b"],
            &[b"HSET", b"b", b"f", b"v"],
        ],
    );
    let len = Answer::Integer(i64::try_from(value.len() + 4).expect("a length"));
    let Answer::Array(answers) = answer else { panic!("{answer:?}") };
    assert!(answers[1] == Answer::Bulk(value.clone()));
    assert_eq!((&answers[0], &answers[4], &answers[5]), (&Answer::ok(), &len, &len));
    assert_error(&answers[6], "WRONGTYPE");
    assert_eq!(there.ask(&["GET", "a"]), Answer::text("short"));
    assert!(get(&mut there, "b") == [&value[..], b"more"].concat());
    // A watched string that was replaced, and a transaction that is discarded.
    assert_eq!(here.ask(&["WATCH", "b"]), Answer::ok());
    assert_eq!(set(&mut there, "b", &value), Answer::ok());
    assert_eq!(queue(&mut here, &[&[b"SET", b"b", &contents::of(2, PAGE)]]), Answer::Null);
    assert_eq!(here.ask(&["MULTI"]), Answer::ok());
    assert_eq!(set(&mut here, "b", &contents::of(3, PAGE)), Answer::Simple("QUEUED".into()));
    assert_eq!(here.ask(&["DISCARD"]), Answer::ok());
    assert!(get(&mut here, "b") == value);
    assert_eq!(
        queue(&mut there, &[&[b"DEL", b"a", b"b"]]),
        Answer::Array(vec![Answer::Integer(2)])
    );
    services[1].stop();
    assert_nothing_is_left(&pool, &mut services[0]);
}

#[test]
fn a_reader_sees_one_of_the_values_that_replace_each_other() {
    const VALUES: u64 = 4;
    let pool = pool();
    let mut services = [start(&pool, 0), start(&pool, 1)];
    // The length tells the value. One of them is in an entry.
    let len = |tag: u64| if tag == 3 { 1000 } else { 4 * PAGE + usize::try_from(tag).unwrap_or(0) };
    assert_eq!(set(&mut services[0].wire(), "k", &contents::of(0, len(0))), Answer::ok());
    let ends = AtomicBool::new(false);
    let (ends, services_ref) = (&ends, &services);
    let seen = std::thread::scope(|scope| {
        for service in services_ref {
            scope.spawn(move || {
                let mut wire = service.wire();
                for tag in (0..VALUES).cycle() {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    assert_eq!(set(&mut wire, "k", &contents::of(tag, len(tag))), Answer::ok());
                }
            });
        }
        let readers: Vec<_> = services_ref
            .iter()
            .map(|service| {
                scope.spawn(move || {
                    let (mut wire, mut seen) = (service.wire(), 0_u32);
                    let begin = Instant::now();
                    while begin.elapsed() < Duration::from_secs(4) {
                        let bytes = get(&mut wire, "k");
                        let tag = (0..VALUES).find(|tag| len(*tag) == bytes.len());
                        let tag = tag.unwrap_or_else(|| panic!("{} B", bytes.len()));
                        assert_eq!(contents::difference(tag, &bytes), None, "{tag}");
                        seen += 1;
                    }
                    seen
                })
            })
            .collect();
        let seen: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        ends.store(true, Ordering::Relaxed);
        seen
    });
    let seen: Vec<u32> = seen.into_iter().map(|seen| seen.expect("a reader")).collect();
    assert!(seen.iter().all(|seen| *seen > 5), "{seen:?}");
    assert_eq!(services[0].wire().ask(&["DEL", "k"]), Answer::Integer(1));
    services[1].stop();
    assert_nothing_is_left(&pool, &mut services[0]);
}

/// Announces a string of this length and sends the first `sent` bytes of it.
fn announce(service: &Service, key: &str, len: usize, sent: usize) -> Wire {
    let mut wire = service.wire();
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n", key.len());
    wire.send(head.as_bytes()).expect("a service");
    wire.send(&vec![b'x'; sent]).expect("a service");
    wire
}

#[test]
fn what_is_announced_takes_no_memory_and_what_has_arrived_comes_back() {
    let pool = pool();
    let mut service = start(&pool, 0);
    let mut wire = service.wire();
    assert_eq!(set(&mut wire, "k", b"v"), Answer::ok());
    let (free, own) = (free_frames(&pool), own_memory(&service));
    let silent: Vec<Wire> = (0..50).map(|_| announce(&service, "big", 512 << 20, 0)).collect();
    assert_eq!(wire.ask(&["PING"]), Answer::Simple("PONG".into()));
    wait_until("nothing more is taken", TIMEOUT, || free_frames(&pool) >= free);
    assert!(own_memory(&service) < own + 8 * MIB, "{own} B before");
    // Some of the bytes arrive, then the client goes.
    let begun = announce(&service, "big", 512 << 20, 5 * MIB);
    wait_until("they arrive", TIMEOUT, || free_frames(&pool) + 20 <= free);
    assert!(free_frames(&pool) + 60 > free, "more than twice the bytes are taken");
    drop((begun, silent));
    // The service keeps some memory for heads.
    wait_until("they are free", TIMEOUT, || free_frames(&pool) + 8 >= free);
    assert_eq!(wire.ask(&["EXISTS", "big"]), Answer::Integer(0));
    // A longer one than any string closes the connection, as Redis does.
    let mut greedy = announce(&service, "big", (512 << 20) + 1, 0);
    assert_error(&greedy.answer().expect("an answer"), "invalid bulk length");
    assert!(greedy.answer().is_err(), "the connection goes on");
    assert_nothing_is_left(&pool, &mut service);
}

#[test]
fn a_killed_service_leaves_no_memory_of_a_string_that_it_was_storing() {
    let pool = pool();
    let mut service = start(&pool, 0);
    let free = free_frames(&pool);
    let begun = announce(&service, "big", 20 * MIB, 5 * MIB);
    wait_until("bytes arrive", TIMEOUT, || free_frames(&pool) + 20 <= free);
    service.kill();
    wait_until("they are free", TIMEOUT, || free_frames(&pool) + 8 >= free);
    drop(begun);
    service.restart();
    assert_eq!(service.wire().ask(&["EXISTS", "big"]), Answer::Integer(0));
    // Kills while strings replace each other: the key has one of them each time.
    let values = [contents::of(0, 3 * PAGE), contents::of(1, 5 * PAGE)];
    assert_eq!(set(&mut service.wire(), "k", &values[0]), Answer::ok());
    for round in 0..6 {
        let mut wire = service.wire();
        let stored = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in values.iter().cycle() {
                    match wire.try_ask(&[&b"SET"[..], b"k", &value[..]]) {
                        Ok(Answer::Simple(_)) => stored.fetch_add(1, Ordering::Relaxed),
                        _ => break,
                    };
                }
            });
            // The service is killed somewhere in the next one.
            wait_until("strings are stored", TIMEOUT, || {
                stored.load(Ordering::Relaxed) > 3 + 2 * round
            });
            service.kill();
        });
        service.restart();
        let found = get(&mut service.wire(), "k");
        assert!(values.contains(&found), "round {round}: {} B", found.len());
    }
    assert_eq!(service.wire().ask(&["DEL", "k"]), Answer::Integer(1));
    assert_nothing_is_left(&pool, &mut service);
}

#[test]
fn a_reader_that_goes_lets_go_of_a_deleted_string() {
    let pool = pool();
    let mut service = start(&pool, 0);
    let (mut wire, mut reader) = (service.wire(), service.wire());
    let value = contents::of(1, 12 * MIB);
    let free = free_frames(&pool);
    for key in ["k", "other"] {
        assert_eq!(set(&mut wire, key, &value), Answer::ok());
    }
    reader.request(&["GET", "k"]).expect("a service");
    wait_until("the answer begins", TIMEOUT, || reader.has_come());
    for key in ["k", "other"] {
        assert_eq!(wire.ask(&["DEL", key]), Answer::Integer(1));
    }
    // The memory of the one stays for the reader; that of the other, deleted later, comes back.
    wait_until("the other is free", TIMEOUT, || free_frames(&pool) + 48 + 8 >= free);
    assert!(free_frames(&pool) + 40 < free, "{} of {free} frames", free_frames(&pool));
    drop(reader);
    wait_until("it is free", TIMEOUT, || free_frames(&pool) + 8 >= free);
    // A reader that takes all of it gets all of it.
    let mut reader = service.wire();
    assert_eq!(set(&mut wire, "k", &value), Answer::ok());
    reader.request(&["GET", "k"]).expect("a service");
    wait_until("the answer begins", TIMEOUT, || reader.has_come());
    assert_eq!(set(&mut wire, "k", b"another"), Answer::ok());
    assert!(reader.answer().expect("an answer") == Answer::Bulk(value));
    assert_nothing_is_left(&pool, &mut service);
}

#[test]
fn a_full_rack_refuses_a_string_and_loses_nothing() {
    let pool = pool();
    let mut service = start(&pool, 0);
    let mut wire = service.wire();
    let value = contents::of(7, 9 * MIB);
    let fits = (0..100)
        .take_while(|number| match set(&mut wire, &format!("k{number}"), &value) {
            Answer::Error(error) => {
                assert!(error.starts_with("OOM "), "{error}");
                false
            }
            answer => answer == Answer::ok(),
        })
        .count();
    assert!((4..=7).contains(&fits), "{fits} strings of 9 MiB fit into 64 MiB");
    // A command that replaces a string leaves it.
    assert_error(&wire.ask(&[&b"APPEND"[..], b"k0", &value[..]]), "OOM ");
    assert!(get(&mut wire, "k0") == value);
    assert_eq!(wire.ask(&["EXISTS", &format!("k{fits}")]), Answer::Integer(0));
    assert_eq!(wire.ask(&["DEL", "k0"]), Answer::Integer(1));
    wait_until("there is room again", TIMEOUT, || set(&mut wire, "n", &value) == Answer::ok());
    assert_eq!(wire.ask(&["FLUSHALL"]), Answer::ok());
    assert_nothing_is_left(&pool, &mut service);
}

#[test]
fn the_memory_limit_counts_large_strings() {
    let pool = pool();
    let options = ["--threads", "1", "--max-memory", "8M", "--max-memory-policy", "noeviction"];
    let mut service = Service::start(&pool, 0, &options);
    let mut wire = service.wire();
    let (value, free) = (contents::of(1, 5 * MIB), free_frames(&pool));
    assert_eq!(set(&mut wire, "a", &value), Answer::ok());
    // The second one exceeds the limit while it arrives.
    assert_error(&set(&mut wire, "b", &value), "used memory > 'maxmemory'");
    assert_eq!(set(&mut wire, "c", b"small"), Answer::ok());
    assert_eq!(wire.ask(&["DEL", "a"]), Answer::Integer(1));
    assert_eq!(set(&mut wire, "b", &value), Answer::ok());
    let words = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    assert_eq!(wire.ask(&words), Answer::ok());
    for number in 0..10 {
        // An older string gives way.
        assert_eq!(set(&mut wire, &format!("e{number}"), &value), Answer::ok(), "{number}");
    }
    wait_until("old strings are evicted", TIMEOUT, || wire.ask(&["DBSIZE"]) <= Answer::Integer(2));
    // What expires goes, too.
    assert_eq!(wire.ask(&["FLUSHDB"]), Answer::ok());
    assert_eq!(wire.ask(&[&b"SET"[..], b"x", &value[..], b"PX", b"300"]), Answer::ok());
    wait_until("it expires", TIMEOUT, || wire.ask(&["EXISTS", "x"]) == Answer::Integer(0));
    wait_until("its memory is free", TIMEOUT, || free_frames(&pool) + 8 >= free);
    assert_nothing_is_left(&pool, &mut service);
}

#[test]
fn an_audit_reaches_every_large_string() {
    let pool = pool();
    let service = start(&pool, 0);
    let value = contents::of(1, 9 * MIB);
    for key in ["a", "b"] {
        assert_eq!(set(&mut service.wire(), key, &value), Answer::ok());
    }
    let mut audit = Command::new(program("rackpool"));
    audit.args(["audit", "--list", "--json", "--dir"]).arg(pool.dir()).stdin(Stdio::null());
    let audit = audit.output().expect("a program");
    let audit: serde_json::Value = serde_json::from_slice(&audit.stdout).expect("an audit");
    // Extents belong to their heads, which the node table leads to.
    let nodes = audit["roots"].as_array().and_then(|roots| roots.last()).expect("two roots");
    assert_eq!((&nodes["name"], &nodes["unread"]), (&"kv/nodes".into(), &0.into()), "{audit}");
    assert_eq!(audit["unreached"]["objects"], 0, "{audit}");
}

#[test]
fn a_program_that_uses_the_table_finds_another_kind() {
    let pool = pool();
    let service = start(&pool, 0);
    let value = contents::of(1, 20 * PAGE);
    assert_eq!(set(&mut service.wire(), "k", &value), Answer::ok());
    let client: std::sync::Arc<Pool> = pool.open(1).into();
    let addr = client.root("kv").expect("a pool").expect("a table");
    let mut table = Table::open(client, addr).expect("a table").handle();
    let found = table.get(b"k", &mut Vec::new());
    assert!(matches!(found, Err(KvError::OtherKind { found }) if found.0 == 7), "{found:?}");
    // The sweep frees what a program has replaced.
    let free = free_frames(&pool);
    assert!(table.put(b"k", b"short").expect("a pool"));
    let is_free = || free_frames(&pool) >= free + 15;
    assert!(try_wait_until(Duration::from_secs(30), is_free), "{free} frames were free");
    assert_eq!(service.wire().ask(&["GET", "k"]), Answer::text("short"));
}
