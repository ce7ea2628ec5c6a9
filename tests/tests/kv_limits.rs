//! The service at its limits: emptied collections, a pool full of small values, and clients whose
//! requests are too large.

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

const PAGES: u64 = 256 << 10;

/// Fills a hash until it is in a map, and empties it again.
fn emptied(wire: &mut Wire, key: &str) {
    let value = "x".repeat(9000);
    assert_eq!(wire.ask(&["HSET", key, "f", &value]), Answer::Integer(1));
    assert_eq!(wire.ask(&["EXPIRE", key, "600"]), Answer::Integer(1));
    assert_eq!(wire.ask(&["OBJECT", "ENCODING", key]), Answer::text("hashtable"));
    assert_eq!(wire.ask(&["HDEL", key, "f"]), Answer::Integer(1));
}

#[test]
fn an_emptied_large_collection_is_absent() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let cases: [(&[&str], Answer); 14] = [
        (&["GET", "k"], Answer::Null),
        (&["STRLEN", "k"], Answer::Integer(0)),
        (&["SETNX", "k", "v"], Answer::Integer(1)),
        (&["SET", "k", "v", "NX"], Answer::ok()),
        (&["SET", "k", "v", "XX"], Answer::Null),
        (&["INCR", "k"], Answer::Integer(1)),
        (&["APPEND", "k", "abc"], Answer::Integer(3)),
        (&["ZADD", "k", "1", "m"], Answer::Integer(1)),
        (&["ZCARD", "k"], Answer::Integer(0)),
        (&["EXPIRE", "k", "5"], Answer::Integer(0)),
        (&["PERSIST", "k"], Answer::Integer(0)),
        (&["OBJECT", "ENCODING", "k"], Answer::Null),
        (&["DEL", "k"], Answer::Integer(0)),
        (&["HSET", "k", "g", "v"], Answer::Integer(1)),
    ];
    for (words, expected) in cases {
        emptied(&mut wire, "k");
        assert_eq!(wire.ask(words), expected, "{words:?}");
        wire.ask(&["DEL", "k"]);
    }
    emptied(&mut wire, "k");
    assert_eq!(wire.ask(&["HSET", "k", "g", "v"]), Answer::Integer(1));
    assert_eq!(wire.ask(&["TTL", "k"]), Answer::Integer(-1));
    assert_eq!(
        wire.ask(&["HGETALL", "k"]),
        Answer::Array(vec![Answer::text("g"), Answer::text("v")])
    );
}

#[test]
fn an_emptied_large_collection_is_not_counted() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    assert_eq!(wire.ask(&["SET", "string", "v"]), Answer::ok());
    emptied(&mut wire, "hash");
    for member in 0..200 {
        wire.ask(&["ZADD", "set", "1", &format!("member {member}")]);
    }
    assert_eq!(wire.ask(&["OBJECT", "ENCODING", "set"]), Answer::text("skiplist"));
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(2));
    assert_eq!(wire.ask(&["ZREMRANGEBYSCORE", "set", "1", "1"]), Answer::Integer(200));
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(1));
    assert_eq!(wire.ask(&["HSET", "hash", "again", "v"]), Answer::Integer(1));
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(2));
    assert_eq!(wire.ask(&["SET", "short", "v", "PX", "1"]), Answer::ok());
    wait_until("its time is over", TIMEOUT, || {
        wire.ask(&["EXISTS", "short"]) == Answer::Integer(0)
    });
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(2));
}

#[test]
fn a_refused_field_leaves_no_key() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let answer = wire.ask(&["HSET", "k", "f", &"x".repeat(100_000)]);
    assert!(matches!(&answer, Answer::Error(e) if e.contains("exceeds maximum")), "{answer:?}");
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(0));
}

#[test]
fn one_of_many_deletions_of_a_large_collection_has_done_it() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "4"]);
    let value = "x".repeat(9000);
    let mut wires: Vec<Wire> = (0..4).map(|_| service.wire()).collect();
    for round in 0..100 {
        assert_eq!(wires[0].ask(&["HSET", "k", "f", &value]), Answer::Integer(1));
        wires.iter_mut().for_each(|wire| wire.request(&["DEL", "k"]).expect("a service"));
        let answers = wires.iter_mut().map(|wire| match wire.answer().expect("an answer") {
            Answer::Integer(count) => count,
            other => panic!("{other:?}"),
        });
        assert_eq!(answers.sum::<i64>(), 1, "round {round}");
    }
}

#[test]
fn a_pool_full_of_small_values_can_be_read_scanned_and_emptied() {
    let pool = TestPool::start(16 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let value = "v".repeat(100);
    // Large values first, until there is room for small ones only.
    let large = "l".repeat(60_000);
    let is_stored =
        |number: &u32| wire.ask(&["SET", &format!("l{number}"), &large]) == Answer::ok();
    let large_count = (0..10_000).take_while(is_stored).count();
    assert!(large_count < 10_000, "the pool is never full");
    let (mut stored, mut refused) = (Vec::new(), 0);
    // Continues after the first refusal: room for a value is not room for a segment.
    for number in 0.. {
        let key = format!("k{number}");
        match wire.ask(&["SET", &key, &value]) {
            Answer::Error(error) => {
                assert!(error.starts_with("OOM "), "{error}");
                refused += 1;
            }
            _ => stored.push(key),
        }
        if refused == 100 {
            break;
        }
    }
    // A request that creates a large collection at once needs the most memory, and leaves nothing
    // behind when it is refused.
    let Answer::Error(error) = wire.ask(&["HSET", "hash", "field", &"f".repeat(9000)]) else {
        panic!("a full pool has room")
    };
    assert!(error.starts_with("OOM "), "{error}");
    assert_eq!(wire.ask(&["EXISTS", "hash"]), Answer::Integer(0));
    let Answer::Array(keys) = wire.ask(&["KEYS", "*"]) else { panic!("no keys") };
    assert_eq!(keys.len(), stored.len() + large_count);
    for key in stored.iter().step_by(7) {
        assert_eq!(wire.ask(&["GET", key]), Answer::text(&value));
        assert_eq!(wire.ask(&["DEL", key]), Answer::Integer(1));
    }
    assert_eq!(wire.ask(&["FLUSHDB"]), Answer::ok());
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(0));
    wait_until("there is room again", TIMEOUT, || wire.ask(&["SET", "k", &value]) == Answer::ok());
}

#[test]
fn a_web_page_can_give_no_commands() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    for head in ["POST / HTTP/1.1\r\n", "Host: localhost:6379\r\n"] {
        let mut wire = service.wire();
        wire.send(format!("{head}SET stolen 1\r\n").as_bytes()).expect("a service that listens");
        assert!(wire.answer().is_err(), "{head:?} is answered");
    }
    assert_eq!(service.wire().ask(&["EXISTS", "stolen"]), Answer::Integer(0));
}

#[test]
fn an_answer_without_end_costs_only_its_connection() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let (mut good, mut greedy) = (service.wire(), service.wire());
    let value = "x".repeat(200_000);
    assert_eq!(good.ask(&["SET", "k", &value]), Answer::ok());
    // 400 MB.
    let mut words = vec!["k"; 2001];
    words[0] = "MGET";
    let answer = greedy.ask(&words);
    assert!(matches!(&answer, Answer::Error(e) if e.contains("too long")), "{answer:?}");
    assert!(greedy.answer().is_err(), "the connection goes on");
    assert_eq!(good.ask(&["STRLEN", "k"]), Answer::Integer(200_000));
}
