//! Collections that grow from small to large while the service is killed.

use std::collections::BTreeMap;
use std::sync::Arc;

use rackpool_kv::{Form, Table, ValueKind};
use rackpool_testing::wait::{TIMEOUT, wait_for};
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

/// Collections that grow at the same time, each by a client of its own.
const CLIENTS: usize = 4;
/// Kills for each type.
const ROUNDS: usize = 8;

/// A type of collection, and the commands that fill and read it.
struct Type {
    name: &'static str,
    /// Adds the element with this number.
    add: fn(&str, usize) -> Vec<String>,
    /// Reads all elements.
    all: fn(&str) -> Vec<String>,
    /// Returns the number of elements.
    count: &'static str,
    /// The most elements of a small collection; one more makes it large.
    most_small: usize,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A value for a field: 248 B, so that 32 fields with their names do not exceed a small hash.
fn padded(number: usize) -> String {
    format!("{number:0240}")
}

const TYPES: [Type; 2] = [
    Type {
        name: "hash",
        add: |key, number| words(&["HSET", key, &format!("f{number:07}"), &padded(number)]),
        all: |key| words(&["HGETALL", key]),
        count: "HLEN",
        most_small: 32,
    },
    Type {
        name: "zset",
        add: |key, number| words(&["ZADD", key, &number.to_string(), &format!("m{number:07}")]),
        all: |key| words(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
        count: "ZCARD",
        most_small: 64,
    },
];

/// The elements of a collection by number.
fn elements(wire: &mut Wire, kind: &Type, key: &str) -> BTreeMap<usize, usize> {
    let Answer::Array(all) = wire.ask(&(kind.all)(key)) else { panic!("no elements of {key}") };
    let number = |answer: &Answer| {
        let Answer::Bulk(bytes) = answer else { panic!("{answer:?} in {key}") };
        let text = String::from_utf8_lossy(bytes);
        text.trim_start_matches(['f', 'm']).parse::<usize>().expect("a number")
    };
    let pairs = all.chunks(2).map(|pair| (number(&pair[0]), number(&pair[1])));
    let found: BTreeMap<usize, usize> = pairs.collect();
    assert_eq!(found.len() * 2, all.len(), "an element of {key} is there twice");
    assert_eq!(
        wire.ask(&[kind.count, key]),
        Answer::Integer(i64::try_from(found.len()).expect("few"))
    );
    found
}

/// Kills the service while collections grow. Each must have all acknowledged elements, and at most
/// the one whose answer was lost. Afterwards they keep growing.
fn grows_through_kills(kind: &Type) {
    let pool = TestPool::start(64 << 20, 256 << 10);
    let mut service = Service::start(&pool, 0, &["--threads", "2"]);
    for round in 0..ROUNDS {
        let mut keys: Vec<String> = Vec::new();
        let mut wires: Vec<Wire> = (0..CLIENTS).map(|_| service.wire()).collect();
        for (client, wire) in wires.iter_mut().enumerate() {
            let key = format!("{}-{round}-{client}", kind.name);
            for number in 0..kind.most_small {
                assert_eq!(wire.ask(&(kind.add)(&key, number)), Answer::Integer(1));
            }
            keys.push(key);
        }
        // All collections must grow now. This number was acknowledged when the service is killed;
        // the others have not begun, are under way, or have just completed.
        for (key, wire) in keys.iter().zip(&mut wires) {
            wire.request(&(kind.add)(key, kind.most_small)).expect("a service that listens");
        }
        let acknowledged = round % CLIENTS;
        for wire in &mut wires[..acknowledged] {
            assert_eq!(wire.answer().expect("an answer"), Answer::Integer(1));
        }
        service.kill();
        drop(wires);
        service.restart();
        let mut wire = service.wire();
        for (client, key) in keys.iter().enumerate() {
            let found = elements(&mut wire, kind, key);
            let least = kind.most_small + usize::from(client < acknowledged);
            let there = found.len();
            assert!((least..=kind.most_small + 1).contains(&there), "{key}: {there}, not {least}");
            assert!(found.into_iter().eq((0..there).map(|number| (number, number))), "{key}");
            assert_eq!(wire.ask(&["TYPE", key]), Answer::Simple(kind.name.into()));
            for number in there..kind.most_small * 3 {
                assert_eq!(wire.ask(&(kind.add)(key, number)), Answer::Integer(1), "{key}");
            }
            assert_eq!(elements(&mut wire, kind, key).len(), kind.most_small * 3);
            let Answer::Bulk(encoding) = wire.ask(&["OBJECT", "ENCODING", key]) else {
                panic!("{key} has no encoding")
            };
            assert_ne!(encoding, b"listpack", "{key} did not grow: the test misses what it is for");
        }
        let deleted: Vec<&str> =
            ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        assert_eq!(wire.ask(&deleted), Answer::Integer(i64::try_from(CLIENTS).expect("few")));
    }
}

#[test]
fn a_hash_that_grows_loses_nothing_when_the_service_is_killed() {
    grows_through_kills(&TYPES[0]);
}

#[test]
fn a_sorted_set_that_grows_loses_nothing_when_the_service_is_killed() {
    grows_through_kills(&TYPES[1]);
}

/// A service that is killed just after it began to create a large collection leaves an entry
/// without elements.
#[test]
fn what_had_just_begun_to_grow_from_nothing_is_no_key() {
    let (one, none) = (Answer::Integer(1), Answer::Integer(0));
    let cases = [
        (words(&["EXISTS", "k"]), none.clone()),
        (words(&["TYPE", "k"]), Answer::Simple("none".into())),
        (words(&["GET", "k"]), Answer::Null),
        (words(&["HGET", "k", "f"]), Answer::Null),
        (words(&["ZCARD", "k"]), none.clone()),
        (words(&["TTL", "k"]), Answer::Integer(-2)),
        (words(&["EXPIRE", "k", "100"]), none.clone()),
        (words(&["KEYS", "*"]), Answer::Array(Vec::new())),
        (words(&["DBSIZE"]), none.clone()),
        (words(&["DEL", "k"]), none),
        (words(&["SETNX", "k", "v"]), one.clone()),
        (words(&["SET", "k", "v", "NX"]), Answer::ok()),
        (words(&["INCR", "k"]), one.clone()),
        (words(&["HSET", "k", "f", "v"]), one.clone()),
        (words(&["HSET", "k", "f", &"v".repeat(9000)]), one.clone()),
        (words(&["ZADD", "k", "1", "m"]), one.clone()),
        (words(&["ZADD", "k", "1", &"m".repeat(2000)]), one),
    ];
    let pool = TestPool::start(64 << 20, 256 << 10);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let own = Arc::new(pool.open(0));
    let addr = wait_for("the table's name", TIMEOUT, || own.root("kv").ok().flatten());
    let mut keys = Table::open(Arc::clone(&own), addr).expect("the service's table").handle();
    for growing in [ValueKind(3), ValueKind(4)] {
        for (command, expected) in &cases {
            assert_eq!(wire.ask(&["FLUSHDB"]), Answer::ok());
            let form = Form { kind: growing, expires_ms: 0 };
            keys.put_entry(b"k", form, &[7; 16]).expect("a put");
            assert_eq!(wire.ask(command), *expected, "{command:?} of {growing:?}");
        }
    }
}
