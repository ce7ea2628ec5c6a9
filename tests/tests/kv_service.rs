//! The service with garbage, a full pool, and many clients.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rackpool_kv::Table;
use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

const PAGES: u64 = 256 << 10;

#[test]
fn counters_of_all_types_are_raised_once_each_from_two_racks() {
    const EACH: i64 = 300;
    let pool = TestPool::start(64 << 20, PAGES);
    pool.wait_until_racks_meet();
    let services = [0, 1].map(|rack| Service::start(&pool, rack, &["--threads", "2"]));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let service = &services[worker % 2];
            scope.spawn(move || {
                let mut wire = service.wire();
                for _ in 0..EACH {
                    assert!(matches!(wire.ask(&["INCR", "count"]), Answer::Integer(_)));
                    assert!(matches!(wire.ask(&["HINCRBY", "hash", "f", "2"]), Answer::Integer(_)));
                    assert!(matches!(wire.ask(&["ZINCRBY", "zset", "1", "m"]), Answer::Bulk(_)));
                    assert!(matches!(wire.ask(&["APPEND", "text", "x"]), Answer::Integer(_)));
                }
            });
        }
    });
    for service in &services {
        let mut wire = service.wire();
        let total = 4 * EACH;
        assert_eq!(wire.ask(&["GET", "count"]), Answer::text(&total.to_string()));
        assert_eq!(wire.ask(&["HGET", "hash", "f"]), Answer::text(&(total * 2).to_string()));
        assert_eq!(wire.ask(&["ZSCORE", "zset", "m"]), Answer::text(&total.to_string()));
        assert_eq!(wire.ask(&["STRLEN", "text"]), Answer::Integer(total));
    }
}

#[test]
fn the_library_works_on_the_same_keys() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &[]);
    let mut wire = service.wire();
    let own = Arc::new(pool.open(1));
    let addr = wait_for("the table's name", TIMEOUT, || own.root("kv").ok().flatten());
    let mut handle = Table::open(Arc::clone(&own), addr).expect("the service's table").handle();
    assert_eq!(wire.ask(&["SET", "a", "from redis"]), Answer::ok());
    let mut value = Vec::new();
    assert!(handle.get(b"a", &mut value).expect("a read"));
    assert_eq!(value, b"from redis");
    handle.put(b"b", b"from the library").expect("a put");
    assert_eq!(wire.ask(&["GET", "b"]), Answer::text("from the library"));
    assert_eq!(wire.ask(&["HSET", "h", "f", "v"]), Answer::Integer(1));
    let error = handle.get(b"h", &mut value).expect_err("a hash is no string");
    assert!(error.to_string().contains("not a string"), "{error}");
    assert_eq!(wire.ask(&["SET", "short", "x", "PX", "1"]), Answer::ok());
    wait_until("it is over", TIMEOUT, || !handle.get(b"short", &mut value).expect("a read"));
    assert!(handle.insert(b"short", b"again").expect("an insert"));
    assert_eq!(wire.ask(&["TTL", "short"]), Answer::Integer(-1));
}

#[test]
fn keys_expire_whether_anybody_asks_or_not() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &[]);
    let mut wire = service.wire();
    for number in 0..200 {
        assert_eq!(wire.ask(&["SET", &format!("k{number}"), "v", "PX", "50"]), Answer::ok());
    }
    assert_eq!(wire.ask(&["SET", "stays", "v"]), Answer::ok());
    wait_until("the sweep has deleted them", TIMEOUT, || {
        let Answer::Bulk(stats) = wire.ask(&["INFO", "stats"]) else { panic!("no figures") };
        String::from_utf8_lossy(&stats).lines().any(|line| line == "expired_keys:200")
    });
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(1));
    assert_eq!(wire.ask(&["GET", "k7"]), Answer::Null);
}

#[test]
fn a_full_pool_says_so_and_goes_on_when_something_is_deleted() {
    let pool = TestPool::start(16 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let value = vec![b'x'; 60_000];
    let mut stored: u64 = 0;
    let error = loop {
        let key = format!("k{stored}");
        match wire.ask(&[b"SET", key.as_bytes(), &value]) {
            Answer::Error(error) => break error,
            _ => stored += 1,
        }
        assert!(stored < 10_000, "the pool is never full");
    };
    assert!(error.starts_with("OOM ") && error.contains("free objects"), "{error}");
    for number in 0..stored {
        assert_eq!(wire.ask(&["STRLEN", &format!("k{number}")]), Answer::Integer(60_000));
    }
    for number in 0..stored {
        assert_eq!(wire.ask(&["DEL", &format!("k{number}")]), Answer::Integer(1));
    }
    wait_until("there is room again", TIMEOUT, || {
        wire.ask(&[&b"SET"[..], b"again", &value]) == Answer::ok()
    });
}

#[test]
fn a_restart_of_the_daemon_is_ridden_out() {
    let mut pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &[]);
    let mut wire = service.wire();
    assert_eq!(wire.ask(&["SET", "before", "1"]), Answer::ok());
    pool.kill_daemon(0);
    pool.restart_daemon(0);
    assert_eq!(wire.ask(&["GET", "before"]), Answer::text("1"));
    for number in 0..2000 {
        let key = format!("after{number}");
        assert_eq!(wire.ask(&["SET", &key, "2"]), Answer::ok(), "{key}");
    }
}

#[test]
fn garbage_and_huge_lengths_cost_only_their_connection() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut good = service.wire();
    for garbage in [
        &b"*1\r\n$1073741824\r\n"[..],
        b"*99999999\r\n",
        b"*2\r\n:1\r\n",
        b"\"unbalanced\r\n",
        b"*1\r\n$-5\r\n",
    ] {
        let mut wire = service.wire();
        wire.send(garbage).expect("a service that listens");
        let answer = wire.answer().expect("a last word");
        assert!(
            matches!(&answer, Answer::Error(e) if e.starts_with("ERR Protocol error")),
            "{answer:?}"
        );
        assert!(wire.answer().is_err(), "the connection goes on after {garbage:?}");
    }
    // Announced and never sent: the service reserves nothing for it.
    let mut patient: Vec<Wire> = (0..100).map(|_| service.wire()).collect();
    for wire in &mut patient {
        wire.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc")
            .expect("a service that listens");
    }
    assert_eq!(good.ask(&["SET", "k", "v"]), Answer::ok());
    let bytes = service.memory();
    assert!(bytes < 400 << 20, "{bytes} B with nothing but announcements");
    drop(patient);
    // Longer than any entry and no string to store: the service drops it as it arrives, and the
    // connection stays usable.
    let long = vec![b'x'; 2 << 20];
    let answer = good.ask(&[&b"ECHO"[..], &long]);
    assert!(matches!(&answer, Answer::Error(e) if e.contains("exceeds maximum")), "{answer:?}");
    let answer = good.ask(&[&b"SET"[..], &vec![b'k'; 100_000], b"v"]);
    assert!(matches!(&answer, Answer::Error(e) if e.contains("65535")), "{answer:?}");
    assert_eq!(good.ask(&["GET", "k"]), Answer::text("v"));
}

#[test]
fn who_reads_slowly_stops_only_itself() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let (mut slow, mut quick) = (service.wire(), service.wire());
    let value = vec![b'y'; 100_000];
    assert_eq!(quick.ask(&[&b"SET"[..], b"big", &value]), Answer::ok());
    const ASKED: usize = 300;
    for _ in 0..ASKED {
        slow.request(&["GET", "big"]).expect("a service that takes requests");
    }
    for _ in 0..100 {
        assert_eq!(quick.ask(&["PING"]), Answer::Simple("PONG".into()));
    }
    for _ in 0..ASKED {
        assert_eq!(slow.answer().expect("an answer"), Answer::Bulk(value.clone()));
    }
}

/// As most clients do with a pipeline. Regression: the service stopped reading while 1 MiB of
/// answers waited, and both sides waited for each other.
#[test]
fn who_writes_all_requests_before_it_reads_is_answered() {
    const ASKED: usize = 200_000;
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let value = [b'v'; 64];
    assert_eq!(wire.ask(&[&b"SET"[..], b"key", &value]), Answer::ok());
    wire.send(&b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".repeat(ASKED)).expect("a service that reads");
    wire.request(&["INCR", "last"]).expect("a service that reads");
    wire.shut().expect("a connection");
    for _ in 0..ASKED {
        assert_eq!(wire.answer().expect("an answer"), Answer::Bulk(value.into()));
    }
    assert_eq!(wire.answer().expect("what came before the end is done"), Answer::Integer(1));
    assert!(wire.answer().is_err(), "that was all");
}

/// A client that is always a little behind. Regression: the service kept answers that had been
/// read, until it ended the connection for an endless answer.
#[test]
fn answers_that_were_read_are_not_kept() {
    // 300 MB, in a second.
    const ASKED: usize = 3000;
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let value = vec![b'y'; 100_000];
    assert_eq!(wire.ask(&[&b"SET"[..], b"big", &value]), Answer::ok());
    wire.send(&b"*2\r\n$3\r\nGET\r\n$3\r\nbig\r\n".repeat(ASKED)).expect("a service that reads");
    for _ in 0..ASKED {
        assert!(wire.answer().expect("an answer") == Answer::Bulk(value.clone()));
        // The client's reading speed, not a wait.
        std::thread::sleep(Duration::from_micros(300));
    }
}

#[test]
fn a_transaction_is_alone_on_its_instance() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "2"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (service, stop) = (&service, &stop);
            scope.spawn(move || {
                let mut wire = service.wire();
                while !stop.load(Ordering::Relaxed) {
                    for words in [&["MULTI"][..], &["INCR", "a"], &["INCR", "b"]] {
                        wire.ask(words);
                    }
                    let Answer::Array(both) = wire.ask(&["EXEC"]) else { panic!("no answers") };
                    assert_eq!(both[0], both[1]);
                }
            });
        }
        let mut wire = service.wire();
        for _ in 0..300 {
            let Answer::Array(both) = wire.ask(&["MGET", "a", "b"]) else { panic!("no answers") };
            assert_eq!(both[0], both[1]);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_watch_notices_changes_of_all_kinds() {
    let pool = TestPool::start(64 << 20, PAGES);
    pool.wait_until_racks_meet();
    let services = [0, 1].map(|rack| Service::start(&pool, rack, &["--threads", "2"]));
    let [mut watcher, mut here] = [services[0].wire(), services[0].wire()];
    let mut there = services[1].wire();
    for number in 0..300 {
        let (name, text) = (format!("n{number}"), number.to_string());
        assert_eq!(here.ask(&["HSET", "large", &name, &"v".repeat(40)]), Answer::Integer(1));
        assert_eq!(here.ask(&["ZADD", "ranks", &text, &name]), Answer::Integer(1));
    }
    let done = Answer::Array(vec![Answer::Simple("PONG".into())]);
    let mut commits = |by: &mut Wire, key: &str, changes: &[&[&str]]| {
        assert_eq!(watcher.ask(&["WATCH", key]), Answer::ok());
        for words in changes {
            let answer = by.ask(words);
            assert!(!matches!(answer, Answer::Error(_)), "{words:?}: {answer:?}");
        }
        watcher.ask(&["MULTI"]);
        watcher.ask(&["PING"]);
        match watcher.ask(&["EXEC"]) {
            Answer::Null => false,
            answer => answer == done,
        }
    };
    // For either instance, in this order: each transaction needs the state that the one before has
    // left.
    let noticed: [(&str, &[&[&str]]); 10] = [
        ("text", &[&["SET", "text", "1"]]),
        ("text", &[&["SET", "text", "1"]]),
        ("text", &[&["EXPIRE", "text", "1000"]]),
        ("text", &[&["DEL", "text"]]),
        ("large", &[&["HSET", "large", "n7", "other"]]),
        ("large", &[&["HDEL", "large", "n8"]]),
        ("large", &[&["HSET", "large", "n8", "x"], &["HDEL", "large", "n8"]]),
        ("ranks", &[&["ZADD", "ranks", "1000", "n9"]]),
        ("ranks", &[&["ZREM", "ranks", "n10"]]),
        ("ranks", &[&["DEL", "ranks"]]),
    ];
    for (key, changes) in noticed {
        assert!(!commits(&mut here, key, changes), "{changes:?} here was not noticed");
    }
    for (key, changes) in &noticed[..6] {
        if changes[0][0] != "HDEL" {
            assert!(!commits(&mut there, key, changes), "{changes:?} there was not noticed");
        }
    }
    assert!(!commits(&mut there, "large", &[&["HDEL", "large", "n11"]]), "a field there");
    // Created and deleted by this instance: nothing remains by which `WATCH` could see it.
    let passing: [&[&str]; 2] = [&["SET", "short", "1"], &["DEL", "short"]];
    assert!(!commits(&mut here, "short", &passing), "a key that came and went");
    let unchanged: [(&str, &[&[&str]]); 5] = [
        ("short", &[&["DEL", "short"]]),
        ("large", &[&["HDEL", "large", "nothing"], &["HGET", "large", "n7"]]),
        ("large", &[&["HSETNX", "large", "n7", "no"]]),
        ("other", &[&["SET", "different", "1"]]),
        ("different", &[&["SET", "different", "2", "NX"], &["PERSIST", "different"]]),
    ];
    for (key, changes) in unchanged {
        assert!(commits(&mut here, key, changes), "{changes:?} changes nothing");
    }
}

#[test]
fn a_client_ends_others() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "2"]);
    let [mut killer, mut victim] = [service.wire(), service.wire()];
    let Answer::Integer(id) = victim.ask(&["CLIENT", "ID"]) else { panic!("no number") };
    assert_eq!(killer.ask(&["CLIENT", "KILL", "ID", &id.to_string()]), Answer::Integer(1));
    assert_eq!(killer.ask(&["CLIENT", "KILL", "ID", &id.to_string()]), Answer::Integer(0));
    assert!(victim.answer().is_err(), "it goes on");
    let Answer::Bulk(list) = killer.ask(&["CLIENT", "LIST", "ID", &id.to_string()]) else {
        panic!("no list")
    };
    assert_eq!(list, b"", "it is still there");
}

#[test]
fn redis_own_programs_work() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "2", "--password", "secret"]);
    let run = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.arg("-s").arg(&service.socket).args(["-a", "secret"]).args(words);
        command.output()
    };
    let Ok(output) = run("redis-cli", &["SET", "k", "v"]) else {
        return skipped("redis-cli is not installed: deploy/prepare.sh does that");
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "OK\n");
    let output = run("redis-cli", &["-3", "HELLO"]).expect("redis-cli");
    assert!(String::from_utf8_lossy(&output.stdout).contains("proto"), "{output:?}");
    let words = ["-t", "set,get,incr,hset,zadd,mset", "-n", "2000", "-c", "20", "-P", "4", "-q"];
    let output = run("redis-benchmark", &words).expect("redis-benchmark");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("MSET"), "{output:?}");
    let mut unauthenticated_peer = service.wire();
    let answer = unauthenticated_peer.ask(&["GET", "k"]);
    assert_eq!(answer, Answer::Error("NOAUTH Authentication required.".into()));
    assert!(matches!(unauthenticated_peer.ask(&["AUTH", "wrong"]), Answer::Error(_)));
    assert_eq!(unauthenticated_peer.ask(&["AUTH", "secret"]), Answer::ok());
    assert_eq!(unauthenticated_peer.ask(&["GET", "k"]), Answer::text("v"));
}

#[test]
fn ycsb_scans_through_the_service_and_finds_what_it_wrote() {
    let pool = TestPool::start(64 << 20, PAGES);
    pool.wait_until_racks_meet();
    let options = ["--threads", "2", "--listen", "127.0.0.1:0"];
    let services = [0, 1].map(|rack| Service::start(&pool, rack, &options));
    let run = |service: &Service, words: &[&str]| {
        let target = format!("resp://127.0.0.1:{}", service.port());
        let common = ["ycsb", "--target", &target, "--records", "500", "--threads", "2"];
        let mut command = Command::new(program("rackpool"));
        let command = command.args(common).args(["--ops", "1000", "--verify", "--quiet"]);
        let output = command.args(words).output().expect("a program that starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output:?}");
        assert!(said.contains("values verified, 0 wrong."), "{said}");
        said
    };
    let said = run(&services[0], &["--workload", "e"]);
    let row = said.lines().find(|line| line.starts_with("E ") && line.contains("1,000"));
    assert!(row.is_some() && said.to_ascii_lowercase().contains("scan"), "{said}");
    // Either instance finds the records that the other loaded and inserted.
    run(&services[1], &["--workload", "e", "--no-load"]);
    let Answer::Integer(keys) = services[1].wire().ask(&["ZCARD", "_indices"]) else {
        panic!("no index")
    };
    assert!(keys > 500, "{keys} keys: no insert of workload E is in the index");
}

#[test]
fn large_hashes_and_sorted_sets_keep_everything() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "2"]);
    let mut wire = service.wire();
    const COUNT: i64 = 2000;
    for number in 0..COUNT {
        let (name, text) = (format!("n{number:05}"), number.to_string());
        assert_eq!(wire.ask(&["HSET", "h", &name, &text]), Answer::Integer(1));
        assert_eq!(wire.ask(&["ZADD", "z", &text, &name]), Answer::Integer(1));
    }
    assert_eq!(wire.ask(&["OBJECT", "ENCODING", "h"]), Answer::text("hashtable"));
    assert_eq!(wire.ask(&["OBJECT", "ENCODING", "z"]), Answer::text("skiplist"));
    assert_eq!(wire.ask(&["HLEN", "h"]), Answer::Integer(COUNT));
    assert_eq!(wire.ask(&["ZCARD", "z"]), Answer::Integer(COUNT));
    assert_eq!(wire.ask(&["HGET", "h", "n01234"]), Answer::text("1234"));
    let found = wire.ask(&["ZRANGEBYSCORE", "z", "700", "+inf", "LIMIT", "0", "2"]);
    assert_eq!(found, Answer::Array(vec![Answer::text("n00700"), Answer::text("n00701")]));
    for number in 0..COUNT {
        let name = format!("n{number:05}");
        assert_eq!(wire.ask(&["HDEL", "h", &name]), Answer::Integer(1));
        assert_eq!(wire.ask(&["ZREM", "z", &name]), Answer::Integer(1));
    }
    assert_eq!(wire.ask(&["EXISTS", "h", "z"]), Answer::Integer(0));
    assert_eq!(wire.ask(&["KEYS", "*"]), Answer::Array(Vec::new()));
    let nothing = Answer::Array(vec![Answer::text("0"), Answer::Array(Vec::new())]);
    assert_eq!(wire.ask(&["SCAN", "0", "COUNT", "100"]), nothing);
    assert_eq!(wire.ask(&["TYPE", "h"]), Answer::Simple("none".into()));
    assert_eq!(wire.ask(&["HSET", "h", "f", "v"]), Answer::Integer(1));
    assert_eq!(wire.ask(&["DEL", "h"]), Answer::Integer(1));
}
