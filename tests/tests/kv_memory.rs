//! The memory limit of the service: what fails above it, and what is evicted.

use std::process::Command;
use std::time::{Duration, Instant};

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

const PAGES: u64 = 256 << 10;
const LIMIT: u64 = 1 << 20;
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";
/// An entry with such a value and a key of a few bytes takes 512 B.
const VALUE_BYTES: usize = 400;
const ENTRY_BYTES: u64 = 512;
/// The entries that the limit has room for.
const FIT: u64 = LIMIT / ENTRY_BYTES;
/// The entries of 16 KiB, by which the estimate of one thread is wrong, and a few. What is stored
/// during a count makes it wrong by more until the next one.
const BEYOND: u64 = (16 << 10) / ENTRY_BYTES + 4;

fn limited(policy: &str) -> (TestPool, Service) {
    let pool = TestPool::start(64 << 20, PAGES);
    let limit = LIMIT.to_string();
    let options = ["--max-memory", &limit, "--max-memory-policy", policy, "--threads", "1"];
    let service = Service::start(&pool, 0, &options);
    (pool, service)
}

fn set(wire: &mut Wire, key: &str) -> Answer {
    wire.ask(&["SET", key, &"v".repeat(VALUE_BYTES)])
}

fn oom() -> Answer {
    Answer::Error(OOM.into())
}

/// A number in `INFO`.
fn info(wire: &mut Wire, section: &str, field: &str) -> u64 {
    let Answer::Bulk(text) = wire.ask(&["INFO", section]) else { panic!("no INFO") };
    let text = String::from_utf8_lossy(&text).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {field} in {text}")).trim().parse().expect("a number")
}

fn exists(wire: &mut Wire, key: &str) -> bool {
    wire.ask(&["EXISTS", key]) == Answer::Integer(1)
}

/// Stores keys of this prefix until one is refused; returns how many were stored.
fn fill(wire: &mut Wire, prefix: &str) -> u64 {
    fill_from(wire, prefix, 0)
}

/// As `fill`, from this number on.
fn fill_from(wire: &mut Wire, prefix: &str, first: u64) -> u64 {
    let refused = (0..10 * FIT).find(|key| {
        let answer = set(wire, &format!("{prefix}{}", first + key));
        assert!(answer == Answer::ok() || answer == oom(), "{answer:?}");
        answer == oom()
    });
    refused.expect("the limit holds")
}

/// Stores keys of this prefix until they were refused for longer than between two counts of the
/// service, so that no estimate made them fail. Returns how many were stored.
fn fill_up(wire: &mut Wire, prefix: &str) -> u64 {
    let (mut stored, mut refused_since) = (0, Instant::now());
    while refused_since.elapsed() < Duration::from_secs(3) {
        let more = fill_from(wire, prefix, stored);
        if more > 0 {
            (stored, refused_since) = (stored + more, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    stored
}

#[test]
fn without_eviction_commands_that_need_memory_fail_and_others_do_not() {
    let (_pool, service) = limited("noeviction");
    let mut wire = service.wire();
    assert_eq!(wire.ask(&["SET", "number", "1"]), Answer::ok());
    let stored = fill_up(&mut wire, "k");
    assert!((FIT - BEYOND..FIT + FIT / 4).contains(&stored), "{stored} of {FIT}");

    for words in [
        &["SET", "k0", "short"][..],
        &["INCR", "number"],
        &["APPEND", "k0", "x"],
        &["HSET", "h", "f", "v"],
        &["ZADD", "z", "1", "m"],
        &["MSET", "a", "1", "b", "2"],
    ] {
        assert_eq!(wire.ask(words), oom(), "{words:?}");
    }
    assert_eq!(wire.ask(&["GET", "number"]), Answer::text("1"));
    assert_eq!(wire.ask(&["EXPIRE", "k1", "1000"]), Answer::Integer(1));
    assert_eq!(wire.ask(&["PERSIST", "k1"]), Answer::Integer(1));
    assert_eq!(info(&mut wire, "stats", "evicted_keys"), 0);
    assert_eq!(info(&mut wire, "memory", "maxmemory"), LIMIT);
    assert!(info(&mut wire, "memory", "used_memory_dataset") > LIMIT);

    // As in Redis, nothing is queued without memory.
    assert_eq!(wire.ask(&["MULTI"]), Answer::ok());
    assert_eq!(wire.ask(&["GET", "number"]), oom());
    assert!(matches!(wire.ask(&["EXEC"]), Answer::Error(e) if e.starts_with("EXECABORT")));

    // Deletions make room at once.
    for key in 0..FIT / 2 {
        assert_eq!(wire.ask(&["DEL", &format!("k{key}")]), Answer::Integer(1));
    }
    for key in 0..100 {
        assert_eq!(set(&mut wire, &format!("again{key}")), Answer::ok());
    }
}

#[test]
fn exec_is_refused_if_a_queued_command_needs_memory() {
    let (_pool, service) = limited("noeviction");
    let (mut wire, mut other) = (service.wire(), service.wire());
    let refused = |command: &[&str], wire: &mut Wire, other: &mut Wire| {
        assert_eq!(wire.ask(&["MULTI"]), Answer::ok());
        assert_eq!(wire.ask(command), Answer::Simple("QUEUED".into()));
        fill(other, command[0]);
        let answer = wire.ask(&["EXEC"]);
        assert_eq!(other.ask(&["FLUSHALL"]), Answer::ok());
        answer
    };
    let answer = refused(&["SET", "a", "1"], &mut wire, &mut other);
    let text = format!("EXECABORT Transaction discarded because of: {OOM}");
    assert_eq!(answer, Answer::Error(text));
    assert!(!exists(&mut wire, "a"));
    let answer = refused(&["EXISTS", "a"], &mut wire, &mut other);
    assert_eq!(answer, Answer::Array(vec![Answer::Integer(0)]));
}

#[test]
fn hot_keys_survive_under_lru_and_no_command_fails() {
    let (_pool, service) = limited("allkeys-lru");
    let mut wire = service.wire();
    let hot: Vec<String> = (0..50).map(|key| format!("hot{key}")).collect();
    let touch = |wire: &mut Wire| hot.iter().filter(|key| !exists(wire, key)).count();
    for key in &hot {
        assert_eq!(set(&mut wire, key), Answer::ok());
    }
    // Six times what the limit has room for, over many units of the time of uses.
    for part in 0..60 {
        for key in 0..FIT / 10 {
            assert_eq!(set(&mut wire, &format!("cold{part}-{key}")), Answer::ok());
            if key % 40 == 0 {
                assert_eq!(touch(&mut wire), 0, "hot keys were evicted in part {part}");
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(touch(&mut wire), 0);
    let Answer::Integer(keys) = wire.ask(&["DBSIZE"]) else { panic!("no DBSIZE") };
    let keys = u64::try_from(keys).expect("a count");
    assert!((FIT / 2..FIT + FIT / 4).contains(&keys), "{keys} of {FIT}");
    wait_until("each key is there or was evicted", TIMEOUT, || {
        let Answer::Integer(keys) = wire.ask(&["DBSIZE"]) else { panic!("no DBSIZE") };
        let evicted = info(&mut wire, "stats", "evicted_keys");
        u64::try_from(keys) == Ok(60 * (FIT / 10) + 50 - evicted)
    });
    assert_eq!(wire.ask(&["CONFIG", "RESETSTAT"]), Answer::ok());
    assert_eq!(info(&mut wire, "stats", "evicted_keys"), 0);
    // What was stored last is there, and what was stored first is not.
    let there = |wire: &mut Wire, part: u64| {
        (0..FIT / 10).filter(|key| exists(wire, &format!("cold{part}-{key}"))).count() as u64
    };
    assert!(there(&mut wire, 59) > FIT / 10 * 9 / 10);
    assert!(there(&mut wire, 0) < FIT / 100);
}

#[test]
fn large_collections_are_evicted_with_all_their_elements() {
    let (pool, service) = limited("allkeys-lru");
    let mut wire = service.wire();
    let value = "x".repeat(3000);
    for hash in 0..200 {
        let name = format!("h{hash}");
        for field in 0..10 {
            let answer = wire.ask(&["HSET", &name, &field.to_string(), &value]);
            assert_eq!(answer, Answer::Integer(1));
        }
    }
    let Answer::Integer(keys) = wire.ask(&["DBSIZE"]) else { panic!("no DBSIZE") };
    assert!((10..100).contains(&keys), "{keys}");
    assert!(info(&mut wire, "stats", "evicted_keys") > 100);
    assert!(info(&mut wire, "memory", "used_memory_dataset") < LIMIT + (256 << 10));
    // Besides the entries there are two directories and some segments.
    assert!(pool.allocated().iter().sum::<u64>() < LIMIT + (4 << 20), "{:?}", pool.allocated());
}

#[test]
fn keys_that_expire_soonest_go_first_and_others_never() {
    let (_pool, service) = limited("volatile-ttl");
    let mut wire = service.wire();
    for key in 0..FIT / 2 {
        assert_eq!(set(&mut wire, &format!("kept{key}")), Answer::ok());
    }
    let volatile = |wire: &mut Wire, key: &str, seconds: u64| {
        let value = "v".repeat(VALUE_BYTES);
        wire.ask(&["SET", key, &value, "EX", &seconds.to_string()])
    };
    for key in 0..FIT / 4 {
        assert_eq!(volatile(&mut wire, &format!("soon{key}"), 1000 + key), Answer::ok());
        assert_eq!(volatile(&mut wire, &format!("late{key}"), 90_000 + key), Answer::ok());
    }
    // Half of the soonest have to go.
    for key in 0..FIT / 8 {
        assert_eq!(volatile(&mut wire, &format!("last{key}"), 900_000), Answer::ok(), "{key}");
    }
    let count = |wire: &mut Wire, prefix: &str, many: u64| {
        (0..many).filter(|key| exists(wire, &format!("{prefix}{key}"))).count() as u64
    };
    let (soon, late) = (count(&mut wire, "soon", FIT / 4), count(&mut wire, "late", FIT / 4));
    assert!(soon <= FIT / 6, "{soon}");
    // A count that was wrong may have made all of the soonest go.
    assert!(late >= FIT / 4 - FIT / 100 || soon < FIT / 50, "{late} beside {soon}");
    assert!(count(&mut wire, "last", FIT / 8) >= FIT / 8 - 1);
    // Keys without expiry push all others out, and then nothing is left that may be evicted.
    let more = fill_up(&mut wire, "more");
    for prefix in ["soon", "late", "last"] {
        assert_eq!(count(&mut wire, prefix, FIT / 4), 0, "{prefix}");
    }
    assert!((FIT / 2 - BEYOND..FIT / 2 + FIT / 4).contains(&more), "{more}");
    assert_eq!(count(&mut wire, "kept", FIT / 2), FIT / 2);
    assert_eq!(count(&mut wire, "more", more), more);
    assert_eq!(set(&mut wire, "more"), oom());
    // A single key with an expiry is found among all others.
    assert_eq!(wire.ask(&["EXPIRE", "kept7", "1000"]), Answer::Integer(1));
    wait_until("it is evicted", TIMEOUT, || !exists(&mut wire, "kept7"));
}

#[test]
fn each_instance_counts_what_all_have_stored() {
    let pool = TestPool::start(64 << 20, PAGES);
    pool.wait_until_racks_meet();
    // The instance that refuses has the higher limit, so the other one has to evict.
    let start = |rack, policy, limit: u64| {
        let limit = limit.to_string();
        let options = ["--max-memory", &limit, "--max-memory-policy", policy, "--threads", "1"];
        Service::start(&pool, rack, &options)
    };
    let refuses = start(0, "noeviction", LIMIT + (64 << 10));
    let evicts = start(1, "allkeys-lru", LIMIT);
    let (mut refuses, mut evicts) = (refuses.wire(), evicts.wire());
    // The instance that evicts is filled by the other one, which may refuse some by its estimate.
    let mut stored = 0;
    wait_until("more is stored than the limit has room for", TIMEOUT, || {
        stored += fill_from(&mut refuses, "k", stored);
        stored >= FIT
    });
    wait_until("the other instance counts", TIMEOUT, || {
        info(&mut evicts, "stats", "evicted_keys") > 0
    });
    wait_until("there is room again", TIMEOUT, || {
        set(&mut refuses, "after") == Answer::ok() && exists(&mut evicts, "after")
    });
    // Both store as much as they can.
    let end = Instant::now() + Duration::from_secs(4);
    let mut number = 0;
    while Instant::now() < end {
        number += 1;
        assert_eq!(set(&mut evicts, &format!("e{number}")), Answer::ok());
        let answer = set(&mut refuses, &format!("r{number}"));
        assert!(answer == Answer::ok() || answer == oom(), "{answer:?}");
    }
    wait_until("the entries take no more than the limit and what was not settled", TIMEOUT, || {
        let used = info(&mut evicts, "memory", "used_memory_dataset");
        (LIMIT / 2..=LIMIT + (32 << 10)).contains(&used)
    });
    wait_until("both count the same keys", TIMEOUT, || {
        refuses.ask(&["DBSIZE"]) == evicts.ask(&["DBSIZE"])
    });
}

#[test]
fn an_instance_that_starts_counts_first() {
    let (pool, service) = limited("noeviction");
    let stored = fill(&mut service.wire(), "k");
    drop(service);
    let limit = (LIMIT / 2).to_string();
    let service = Service::start(&pool, 0, &["--max-memory", &limit, "--threads", "1"]);
    let mut wire = service.wire();
    assert_eq!(set(&mut wire, "one more"), oom());
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(i64::try_from(stored).expect("a count")));
}

#[test]
fn the_limit_and_the_policy_change_while_the_service_runs() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let value = |wire: &mut Wire, name: &str| match wire.ask(&["CONFIG", "GET", name]) {
        Answer::Array(pair) => pair.into_iter().nth(1),
        other => panic!("{other:?}"),
    };
    assert_eq!(value(&mut wire, "maxmemory"), Some(Answer::text("0")));
    assert_eq!(value(&mut wire, "maxmemory-policy"), Some(Answer::text("noeviction")));
    for key in 0..2 * FIT {
        assert_eq!(set(&mut wire, &format!("k{key}")), Answer::ok());
    }
    let mut watcher = service.wire();
    assert_eq!(watcher.ask(&["WATCH", "k7"]), Answer::ok());
    let set_both = ["CONFIG", "SET", "maxmemory", "1MB", "maxmemory-policy", "allkeys-lru"];
    assert_eq!(wire.ask(&set_both), Answer::ok());
    assert_eq!(value(&mut wire, "maxmemory"), Some(Answer::text("1048576")));
    assert_eq!(value(&mut wire, "maxmemory-policy"), Some(Answer::text("allkeys-lru")));
    wait_until("keys are evicted without a command", TIMEOUT, || {
        info(&mut wire, "stats", "evicted_keys") >= FIT - BEYOND
    });
    // Who watches a key notices its eviction.
    assert_eq!(wire.ask(&["CONFIG", "SET", "maxmemory", "1"]), Answer::ok());
    wait_until("all keys are evicted", TIMEOUT, || wire.ask(&["DBSIZE"]) == Answer::Integer(0));
    assert_eq!(watcher.ask(&["MULTI"]), Answer::ok());
    assert_eq!(watcher.ask(&["GET", "k7"]), Answer::Simple("QUEUED".into()));
    assert_eq!(watcher.ask(&["EXEC"]), Answer::Null);

    let failed = |name: &str, why: &str| {
        Answer::Error(format!(
            "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
        ))
    };
    let no_size = failed("maxmemory", "argument must be a memory value");
    for text in ["", "much", "-1", "1.5gb", "99999999999999999999"] {
        assert_eq!(wire.ask(&["CONFIG", "SET", "maxmemory", text]), no_size);
    }
    let policies =
        "argument(s) must be one of the following: noeviction, allkeys-lru, volatile-ttl";
    let no_policy = failed("maxmemory-policy", policies);
    assert_eq!(wire.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lfu"]), no_policy);
    let twice = ["CONFIG", "SET", "maxmemory", "1", "MaxMemory", "2"];
    assert_eq!(wire.ask(&twice), failed("maxmemory", "duplicate parameter"));
    // None of them is set if one cannot be.
    let one_bad = ["CONFIG", "SET", "maxmemory", "77", "port", "1"];
    assert!(matches!(wire.ask(&one_bad), Answer::Error(e) if e.contains("immutable config")));
    assert_eq!(value(&mut wire, "maxmemory"), Some(Answer::text("1")));
    // Without a limit, everything is as before.
    assert_eq!(wire.ask(&["CONFIG", "SET", "maxmemory", "0"]), Answer::ok());
    for key in 0..2 * FIT {
        assert_eq!(set(&mut wire, &format!("k{key}")), Answer::ok());
    }
    assert_eq!(wire.ask(&["DBSIZE"]), Answer::Integer(i64::try_from(2 * FIT).expect("few")));
}

#[test]
fn wrong_options_are_explained() {
    for (option, value, wanted) in [
        ("--max-memory", "plenty", "no size: write bytes, or a whole number with K, M, G or T"),
        ("--max-memory", "-1", "no size"),
        ("--max-memory", "1.5G", "no size"),
        (
            "--max-memory-policy",
            "allkeys-lfu",
            "[possible values: noeviction, allkeys-lru, volatile-ttl]",
        ),
        ("--max-memory-policy", "", "[possible values: noeviction, allkeys-lru, volatile-ttl]"),
    ] {
        let argument = format!("{option}={value}");
        let output = Command::new(program("rackpool-kv")).arg(argument).output();
        let output = output.expect("a program that starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(wanted), "{option} {value}: {text}");
    }
}
