//! What the service reports about itself and its keys: measured values, in Redis' formats.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

const PAGES: u64 = 256 << 10;

fn started(options: &[&str]) -> (TestPool, Service) {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, options);
    (pool, service)
}

fn array(answer: Answer) -> Vec<Answer> {
    match answer {
        Answer::Array(all) => all,
        other => panic!("{other:?} is no array"),
    }
}

fn text(answer: &Answer) -> String {
    match answer {
        Answer::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Answer::Simple(text) => text.clone(),
        other => panic!("{other:?} is no text"),
    }
}

/// A field of `INFO`.
fn info(wire: &mut Wire, section: &str, field: &str) -> Option<String> {
    let told = text(&wire.ask(&["INFO", section]));
    let mut lines = told.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(name, _)| *name == field).map(|(_, value)| value.to_owned())
}

/// The numbers of the keyspace line; zeros without a key.
fn keyspace(wire: &mut Wire) -> [u64; 3] {
    let line = info(wire, "keyspace", "db0").unwrap_or_default();
    ["keys", "expires", "avg_ttl"].map(|wanted| {
        let mut parts = line.split(',').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| *name == wanted).map_or(0, |(_, n)| n.parse().expect("a number"))
    })
}

#[test]
fn the_keyspace_line_counts_keys_and_those_that_expire() {
    let (_pool, service) = started(&["--threads", "2"]);
    let mut wire = service.wire();
    assert_eq!(keyspace(&mut wire), [0; 3]);
    for number in 0..30 {
        wire.ask(&["SET", &format!("plain {number}"), "v"]);
        wire.ask(&["SET", &format!("short {number}"), &"v".repeat(number * 500), "EX", "1000"]);
    }
    wire.ask(&["HSET", "hash", "f", "v"]);
    wire.ask(&["HSET", "large", "f", &"v".repeat(9000)]);
    wire.ask(&["EXPIRE", "large", "1000"]);
    // The numbers may be a little old if a busy host took long to count.
    wait_until("the keys are counted", TIMEOUT, || keyspace(&mut wire)[..2] == [62, 31]);
    let [.., ttl] = keyspace(&mut wire);
    assert!((900_000..=1_000_000).contains(&ttl), "{ttl} ms are left on average");
    wire.ask(&["PERSIST", "short 1"]);
    wire.ask(&["HDEL", "large", "f"]);
    wire.ask(&["DEL", "plain 1"]);
    wait_until("what went is not counted", TIMEOUT, || keyspace(&mut wire)[..2] == [60, 29]);
}

#[test]
fn info_says_what_was_measured() {
    let (_pool, service) = started(&["--threads", "2", "--max-clients", "77"]);
    let mut wire = service.wire();
    let mut number = |section: &str, field: &str| {
        let told = info(&mut wire, section, field);
        told.and_then(|told| told.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {field}"))
    };
    let others: Vec<Wire> = (0..5).map(|_| service.wire()).collect();
    wait_for("its other connections are counted", TIMEOUT, || {
        (number("clients", "connected_clients") >= 6.0).then_some(())
    });
    assert!(number("stats", "total_connections_received") >= 6.0);
    drop(others);
    wait_for("they are gone", TIMEOUT, || {
        (number("clients", "connected_clients") < 6.0).then_some(())
    });
    assert_eq!(number("clients", "maxclients").to_bits(), 77_f64.to_bits());
    assert_eq!(number("cpu", "used_cpu_threads").to_bits(), 2_f64.to_bits());
    assert_eq!(number("server", "process_id").to_bits(), f64::from(service.id()).to_bits());
    let before = ["total_commands_processed", "total_error_replies"].map(|f| number("stats", f));
    let memory = number("memory", "used_memory");
    let mut worker = service.wire();
    for key in 0..200 {
        worker.ask(&["SET", &format!("k{key}"), &"v".repeat(4000)]);
        worker.ask(&["INCR", &format!("k{key}")]);
    }
    assert!(number("stats", "total_commands_processed") >= before[0] + 400.0);
    assert!(number("stats", "total_error_replies") >= before[1] + 200.0);
    wait_for("the memory is counted", TIMEOUT, || {
        (number("memory", "used_memory") >= memory + 400_000.0).then_some(())
    });
    assert!(number("cpu", "used_cpu_user") + number("cpu", "used_cpu_sys") > 0.0);
}

#[test]
fn config_get_says_what_the_service_was_started_with() {
    let options = ["--threads", "3", "--max-clients", "50", "--listen", "127.0.0.1:0"];
    let (_pool, service) = started(&[&options[..], &["--password", "pass word"]].concat());
    let mut wire = service.wire();
    assert!(
        matches!(wire.ask(&["CONFIG", "GET", "*"]), Answer::Error(_)),
        "to an unauthenticated peer"
    );
    assert_eq!(wire.ask(&["AUTH", "pass word"]), Answer::ok());
    let port = text(&array(wire.ask(&["CONFIG", "GET", "port"]))[1]);
    let socket = service.socket.display().to_string();
    for (name, value) in [
        ("requirepass", "pass word"),
        ("io-threads", "3"),
        ("maxclients", "50"),
        ("bind", "127.0.0.1"),
        ("unixsocket", &socket),
        ("databases", "1"),
    ] {
        let told = wire.ask(&["CONFIG", "GET", name]);
        assert_eq!(told, Answer::Array(vec![Answer::text(name), Answer::text(value)]));
    }
    let address = format!("127.0.0.1:{port}").parse().expect("an address");
    let mut other = Wire::try_connect(address).expect("the port that it says");
    assert_eq!(other.ask(&["AUTH", "pass word"]), Answer::ok());
    // A longer value is not even announced.
    let told = wire.ask(&["CONFIG", "GET", "proto-max-bulk-len"]);
    let longest: usize = text(&array(told)[1]).parse().expect("a number");
    assert_eq!(longest, 512 << 20);
    let announced = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", longest + 1);
    wire.send(announced.as_bytes()).expect("a service");
    let answer = wire.answer().expect("an answer");
    assert!(matches!(&answer, Answer::Error(e) if e.contains("invalid bulk")), "{answer:?}");
    drop((service, wire, other));
    let (_pool, service) = started(&[]);
    let told = service.wire().ask(&["CONFIG", "GET", "requirepass"]);
    assert_eq!(told, Answer::Array(vec![Answer::text("requirepass"), Answer::text("")]));
}

#[test]
fn client_list_tells_connections_apart() {
    let (_pool, service) = started(&["--listen", "127.0.0.1:0"]);
    let local = format!("127.0.0.1:{}", service.port());
    let mut here = service.wire();
    let mut there = Wire::try_connect(local.parse().expect("an address")).expect("a connection");
    here.ask(&["HELLO", "3", "SETNAME", "here"]);
    there.ask(&["CLIENT", "SETNAME", "there"]);
    there.ask(&["CLIENT", "SETINFO", "LIB-NAME", "own"]);
    let list = text(&here.ask(&["CLIENT", "LIST"]));
    let line = |name: &str| -> BTreeMap<String, String> {
        let own = format!(" name={name} ");
        let line = list.lines().find(|line| line.contains(&own)).expect("its line");
        fields(line.trim_start_matches("txt:")).into_iter().collect()
    };
    let (mine, other) = (line("here"), line("there"));
    assert_eq!((mine["resp"].as_str(), other["resp"].as_str()), ("3", "2"));
    assert_eq!(mine["laddr"], format!("{}:0", service.socket.display()));
    assert_eq!((&other["laddr"], other["lib-name"].as_str()), (&local, "own"));
    assert_ne!(other["addr"], local);
    assert_eq!(here.ask(&["RESET"]), Answer::Simple("RESET".into()));
    assert!(text(&here.ask(&["CLIENT", "INFO"])).contains(" resp=2 "));
    let none = here.ask(&["CLIENT", "KILL", "LADDR", "127.0.0.1:1"]);
    assert_eq!(none, Answer::Integer(0));
    assert_eq!(here.ask(&["CLIENT", "KILL", "LADDR", &local]), Answer::Integer(1));
    assert!(there.answer().is_err(), "it goes on");
}

/// The fields of a connection in `CLIENT INFO`, or in a line of `CLIENT LIST`.
fn fields(line: &str) -> Vec<(String, String)> {
    let fields = line.trim().split(' ').filter_map(|field| field.split_once('='));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[test]
fn clients_are_described_with_the_fields_of_redis_and_what_is_true() {
    let (pool, service) = started(&["--threads", "1"]);
    let (mut here, mut there) = (service.wire(), service.wire());
    let Answer::Integer(id) = there.ask(&["CLIENT", "ID"]) else { panic!("no number") };
    let id = id.to_string();
    let mut other = |names: &[&str]| -> Vec<String> {
        let line = text(&here.ask(&["CLIENT", "LIST", "ID", &id]));
        let all: BTreeMap<_, _> = fields(&line).into_iter().collect();
        names.iter().map(|name| all[*name].clone()).collect()
    };
    let what = ["cmd", "multi", "flags", "qbuf", "obl", "events"];
    assert_eq!(other(&what), ["client|id", "-1", "U", "0", "0", "r"]);
    there.ask(&["GeT", "k"]);
    assert_eq!(other(&what)[..2], ["get", "-1"]);
    there.ask(&["MULTI"]);
    assert_eq!(other(&what)[..3], ["multi", "0", "xU"]);
    there.ask(&["CONFIG", "GET", "port"]);
    assert_eq!(other(&what)[..3], ["config|get", "1", "xU"]);
    let [queued, all] = ["multi-mem", "tot-mem"].map(|n| other(&[n])[0].parse().expect("a number"));
    assert!((13_u64..all).contains(&queued), "{queued} of {all}");
    there.ask(&["CLIENT", "INFO"]);
    let told = array(there.ask(&["EXEC"]));
    let told: BTreeMap<_, _> = fields(&text(&told[1])).into_iter().collect();
    assert_eq!(["cmd", "multi", "qbuf"].map(|name| told[name].as_str()), ["exec", "2", "14"]);
    assert_eq!(other(&what)[..3], ["exec", "-1", "U"]);
    there.ask(&["nosuch"]);
    assert_eq!(other(&what)[0], "NULL");
    let idle = |told: &[String]| told[0].parse::<u64>().expect("a number");
    wait_until("it is idle", TIMEOUT, || idle(&other(&["idle"])) >= 2);
    there.ask(&["PING"]);
    assert!(idle(&other(&["idle"])) < 2);
    let Some(redis) = Service::redis(pool.dir()) else {
        return skipped("redis-server is not installed: deploy/prepare.sh does that");
    };
    let names = |wire: &mut Wire| -> Vec<String> {
        let told = fields(&text(&wire.ask(&["CLIENT", "INFO"]))).into_iter();
        told.map(|(name, _)| name).filter(|name| !name.starts_with("lib-")).collect()
    };
    assert_eq!(names(&mut here), names(&mut redis.wire()));
}

#[test]
fn help_tells_of_every_subcommand() {
    let (_pool, service) = started(&["--threads", "1"]);
    let mut wire = service.wire();
    for (command, some) in
        [("CLIENT", "LIST"), ("CONFIG", "GET"), ("COMMAND", "DOCS"), ("OBJECT", "ENCODING")]
    {
        let lines: Vec<String> = array(wire.ask(&[command, "help"])).iter().map(text).collect();
        let told = |name: &str| lines.iter().any(|line| line.split(' ').next() == Some(name));
        assert!(told(some) && told("HELP"), "{lines:?}");
        // Every subcommand in the help exists: with too many arguments it is still recognized.
        for name in lines.iter().skip(1).step_by(2).filter_map(|line| line.split(' ').next()) {
            let many = [&[command, name][..], &["x"; 9]].concat();
            let answer = wire.ask(&many);
            let unknown = matches!(&answer, Answer::Error(e) if e.contains("unknown subcommand"));
            assert!(!unknown, "{command} {name}: {answer:?}");
        }
        let (answer, hint) = (wire.ask(&[command, "NO"]), format!("Try {command} HELP."));
        assert!(matches!(&answer, Answer::Error(e) if e.ends_with(&hint)), "{answer:?}");
    }
}

/// A command as `COMMAND` and `COMMAND DOCS` describe it.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    arity: Answer,
    keys: Vec<Answer>,
    /// The flags for reading or writing, and for refusal when memory is full.
    access: BTreeSet<String>,
    group: String,
    since: String,
}

/// A server's descriptions of some commands.
fn told(wire: &mut Wire, names: &[String]) -> BTreeMap<String, Told> {
    let ask = |wire: &mut Wire, what: &str| {
        let words = ["COMMAND", what].into_iter().chain(names.iter().map(String::as_str));
        array(wire.ask(&words.collect::<Vec<_>>()))
    };
    let mut docs = BTreeMap::new();
    for pair in ask(wire, "DOCS").chunks(2) {
        let fields = array(pair[1].clone());
        let fields: BTreeMap<_, _> =
            fields.chunks(2).map(|field| (text(&field[0]), field[1].clone())).collect();
        docs.insert(text(&pair[0]), ["group", "since"].map(|name| text(&fields[name])));
    }
    let all = ask(wire, "INFO").into_iter().map(array).map(|command| {
        let name = text(&command[0]);
        let [group, since] = docs.remove(&name).expect("a document of each");
        let flags = array(command[2].clone());
        let flags = flags.iter().map(text);
        let access = flags.filter(|flag| ["readonly", "write", "denyoom"].contains(&flag.as_str()));
        let keys = command[3..6].to_vec();
        let arity = command[1].clone();
        (name, Told { arity, keys, access: access.collect(), group, since })
    });
    all.collect()
}

#[test]
fn another_database_is_refused_with_what_to_do() {
    let (_pool, service) = started(&[]);
    let mut wire = service.wire();
    assert_eq!(wire.ask(&["SELECT", "0"]), Answer::ok());
    for database in ["1", "15"] {
        let refused = wire.ask(&["SELECT", database]);
        let says = |text: &str| text.contains("database 0 only") && text.contains("--table");
        assert!(matches!(&refused, Answer::Error(text) if says(text)), "{refused:?}");
    }
}

#[test]
fn commands_are_described_as_redis_describes_them() {
    let (pool, service) = started(&[]);
    let Some(redis) = Service::redis(pool.dir()) else {
        return skipped("redis-server is not installed: deploy/prepare.sh does that");
    };
    let (mut ours, mut theirs) = (service.wire(), redis.wire());
    let listed = |wire: &mut Wire| -> BTreeSet<String> {
        array(wire.ask(&["COMMAND", "LIST"])).iter().map(text).collect()
    };
    let (all, all_of_redis) = (listed(&mut ours), listed(&mut theirs));
    let (within, names): (Vec<String>, Vec<String>) =
        all.into_iter().partition(|name| name.contains('|'));
    // Redis 7.2 has two more.
    let later = ["client|no-touch", "client|setinfo"];
    assert!(within.len() > 25 && names.len() > 80);
    for name in within.iter().filter(|name| !later.contains(&name.as_str())) {
        assert!(all_of_redis.contains(name), "{name}");
        let [ours, theirs] = [&mut ours, &mut theirs].map(|wire| {
            let told = array(array(wire.ask(&["COMMAND", "INFO", name])).remove(0));
            let readonly = array(told[2].clone()).contains(&Answer::Simple("readonly".into()));
            (told[..2].to_vec(), readonly, told[3..6].to_vec())
        });
        assert_eq!(ours, theirs, "{name}");
    }
    let count = i64::try_from(names.len()).expect("few");
    assert_eq!(ours.ask(&["COMMAND", "COUNT"]), Answer::Integer(count));
    for all in [&["COMMAND"][..], &["COMMAND", "INFO"]] {
        assert_eq!(array(ours.ask(all)).len(), names.len());
    }
    assert_eq!(array(ours.ask(&["COMMAND", "DOCS"])).len(), 2 * names.len());
    let unknown = ["COMMAND", "INFO", "nosuch", "GET"];
    let [ours_of, theirs_of] = [&mut ours, &mut theirs].map(|wire| array(wire.ask(&unknown)));
    assert_eq!((&ours_of[0], &theirs_of[0]), (&Answer::Null, &Answer::Null));
    assert_eq!(ours_of[1..].len(), theirs_of[1..].len());
    for words in [
        &["COMMAND", "DOCS", "nosuch"][..],
        &["COMMAND", "LIST", "FILTERBY", "MODULE", "nosuch"],
        &["COMMAND", "LIST", "FILTERBY", "ACLCAT", "nosuch"],
        &["COMMAND", "LIST", "FILTERBY", "PATTERN", "getr*"],
        &["COMMAND", "GETKEYS", "MSET", "a", "1", "b", "2"],
        &["COMMAND", "GETKEYSANDFLAGS"],
        &["COMMAND", "GETKEYSANDFLAGS", "nosuch", "a"],
        &["COMMAND", "GETKEYSANDFLAGS", "PING", "a"],
        &["COMMAND", "GETKEYSANDFLAGS", "MSET", "a", "1", "b", "2"],
        &["COMMAND", "GETKEYSANDFLAGS", "SET", "a", "1", "PX", "5", "GET"],
        &["COMMAND", "LIST", "FILTERBY", "PATTERN", "object|*t"],
    ] {
        assert_eq!(ours.ask(words), theirs.ask(words), "{words:?}");
    }
    // Each command with as many arguments as it needs shows how it accesses its keys.
    for name in &names {
        let info = array(array(ours.ask(&["COMMAND", "INFO", name])).remove(0));
        let Answer::Integer(arity) = info[1] else { panic!("{info:?}") };
        let least = usize::try_from(arity.unsigned_abs()).expect("few").max(2);
        let mut words = vec!["COMMAND", "GETKEYSANDFLAGS", name];
        words.extend(std::iter::repeat_n("encoding", least - 1));
        if info[3] != Answer::Integer(0) && name != "object" {
            assert_eq!(ours.ask(&words), theirs.ask(&words), "{words:?}");
        }
    }
    let (ours, mut theirs) = (told(&mut ours, &names), told(&mut theirs, &names));
    assert_eq!(ours.len(), names.len());
    for (name, ours) in ours {
        let mut theirs = theirs.remove(&name).expect("a command that Redis has");
        if name == "object" {
            // Redis reports this for each of its subcommands instead.
            theirs.keys.clone_from(&ours.keys);
            theirs.access.clone_from(&ours.access);
        }
        assert_eq!(ours, theirs, "{name}");
    }
}

/// All bytes that a server answers to these lines, each a request.
fn bytes_of(service: &Service, lines: &[&str]) -> String {
    let mut stream = UnixStream::connect(&service.socket).expect("a service that listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    let all: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    stream.write_all(format!("{all}QUIT\r\n").as_bytes()).expect("a service that reads");
    let mut answers = Vec::new();
    stream.read_to_end(&mut answers).expect("answers and an end");
    String::from_utf8_lossy(&answers).into_owned()
}

/// Requests. Where the order is not promised they concern one key, field or member only.
const LINES: [&str; 58] = [
    "FLUSHALL",
    "SCAN 0",
    "HSET h a 1",
    "SCAN 0",
    "SCAN 0 MATCH h* COUNT 100 TYPE hash",
    "SCAN 0 TYPE string",
    "KEYS *",
    "HGETALL h",
    "HGETALL no",
    "HKEYS h",
    "HVALS h",
    "HSCAN h 0",
    "HMGET h a no",
    "HGET h no",
    "HEXISTS h a",
    "HINCRBYFLOAT h a 1.5",
    "ZADD z 1.5 m 2 n -inf low inf high",
    "ZADD z INCR 1 m",
    "ZADD z NX INCR 1 m",
    "ZRANGE z 0 -1",
    "ZRANGE z 0 -1 WITHSCORES",
    "ZRANGE z 0 -1 REV WITHSCORES",
    "ZRANGE z -inf 3 BYSCORE WITHSCORES",
    "ZRANGEBYSCORE z -inf +inf WITHSCORES LIMIT 1 2",
    "ZREVRANGE z 0 0 WITHSCORES",
    "ZREVRANGEBYSCORE z 9 0 WITHSCORES",
    "ZRANGE no 0 -1 WITHSCORES",
    "ZSCORE z m",
    "ZSCORE z low",
    "ZSCORE z no",
    "ZINCRBY z 0.25 m",
    "ZADD z 1e100 m",
    "ZSCORE z m",
    "ZSCAN z 0",
    "ZRANK z m",
    "ZRANK z no",
    "ZCOUNT z 0 5",
    "GET no",
    "MGET h no",
    "GETEX no",
    "GETDEL no",
    "SET s v GET",
    "SET s v NX",
    "GET h",
    "INCRBYFLOAT f 1.5",
    "OBJECT ENCODING no",
    "TYPE no",
    "CLIENT GETNAME",
    "CLIENT TRACKINGINFO",
    "CONFIG GET appendonly",
    "CONFIG GET nosuch",
    "COMMAND DOCS nosuch",
    "COMMAND INFO nosuch",
    "WATCH w",
    "SET w 1",
    "MULTI",
    "EXEC",
    "PING",
];

#[test]
fn answers_have_the_shapes_of_redis_in_both_versions_of_the_protocol() {
    let (pool, service) = started(&["--threads", "1"]);
    let Some(redis) = Service::redis(pool.dir()) else {
        return skipped("redis-server is not installed: deploy/prepare.sh does that");
    };
    for version in ["2", "3"] {
        let hello = format!("HELLO {version}");
        let lines = [&[hello.as_str()], &LINES[..]].concat();
        let [ours, theirs] = [&service, &redis].map(|server| {
            let all = bytes_of(server, &lines);
            let (hello, rest) = all.split_once("$7\r\nmodules\r\n").expect("the end of HELLO");
            // Each connection has a number of its own.
            let (before, number) = hello.split_once("$2\r\nid\r\n:").expect("its number");
            let after = number.split_once("\r\n").expect("a line").1;
            (before.to_owned(), after.to_owned(), rest.to_owned())
        });
        assert_eq!((ours.0.lines().next(), ours.1), (theirs.0.lines().next(), theirs.1));
        let (mine, due): (Vec<_>, Vec<_>) = (ours.2.lines().collect(), theirs.2.lines().collect());
        let differ = mine.iter().zip(&due).position(|(mine, due)| mine != due);
        let near = differ.map(|at| (&mine[at.saturating_sub(8)..=at], due[at]));
        assert_eq!(near, None, "in version {version}");
        assert_eq!(mine.len(), due.len(), "in version {version}");
        assert_eq!(ours.2.contains(",2.75"), version == "3");
    }
}

/// Scans all keys in steps; returns how often each was returned.
fn scanned(wire: &mut Wire, options: &[&str]) -> BTreeMap<String, u32> {
    let (mut found, mut cursor) = (BTreeMap::new(), "0".to_owned());
    loop {
        let words: Vec<&str> =
            ["SCAN", &cursor].into_iter().chain(options.iter().copied()).collect();
        let [next, keys] = &array(wire.ask(&words))[..] else { panic!("no scan") };
        for key in array(keys.clone()) {
            *found.entry(text(&key)).or_default() += 1;
        }
        cursor = text(next);
        if cursor == "0" {
            return found;
        }
    }
}

#[test]
fn a_scan_gives_every_key_that_stays_while_others_come_and_go() {
    const STAY: usize = 600;
    let (_pool, service) = started(&["--threads", "2"]);
    let mut wire = service.wire();
    for number in 0..STAY {
        let key = format!("stays:{number}");
        match number % 3 {
            0 => wire.ask(&["SET", &key, "v"]),
            1 => wire.ask(&["HSET", &key, "f", &"v".repeat(if number < 60 { 9000 } else { 9 })]),
            _ => wire.ask(&["ZADD", &key, "1", "m"]),
        };
    }
    let stays = |kind: Option<usize>| -> BTreeSet<String> {
        let chosen = (0..STAY).filter(|number| kind.is_none_or(|kind| number % 3 == kind));
        chosen.map(|number| format!("stays:{number}")).collect()
    };
    let (over, changed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (service, over, changed) = (&service, &over, &changed);
            scope.spawn(move || {
                let mut wire = service.wire();
                let mut number = 0;
                while !over.load(Ordering::Relaxed) {
                    // The table grows meanwhile, and segments are split.
                    let key = format!("goes:{worker}:{}", number % 6000);
                    wire.ask(&["SET", &key, "v"]);
                    wire.ask(&["SET", &format!("stays:{}", 3 * (number % 200)), "other"]);
                    if number % 3 != 0 {
                        wire.ask(&["DEL", &key]);
                    }
                    number += 1;
                    changed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let cases: [(&[&str], Option<usize>); 6] = [
            (&[], None),
            (&["COUNT", "1"], None),
            (&["COUNT", "1000", "MATCH", "stays:*"], None),
            (&["TYPE", "hash", "COUNT", "7"], Some(1)),
            (&["TYPE", "zset", "MATCH", "s*:*"], Some(2)),
            (&["MATCH", "stays:*", "TYPE", "string", "COUNT", "50"], Some(0)),
        ];
        for (options, kind) in cases {
            let before = changed.load(Ordering::Relaxed);
            wait_until("keys change", TIMEOUT, || changed.load(Ordering::Relaxed) > before + 50);
            let found = scanned(&mut wire, options);
            let missing: Vec<_> =
                stays(kind).into_iter().filter(|key| !found.contains_key(key)).collect();
            assert!(missing.is_empty(), "{options:?} leaves out {missing:?}");
            let is_chosen = |key: &String| options.len() < 3 || stays(kind).contains(key);
            let other = found.keys().find(|key| !is_chosen(key));
            assert_eq!(other, None, "{options:?}");
        }
        over.store(true, Ordering::Relaxed);
    });
    let [found, counted] = [scanned(&mut wire, &[]).len(), {
        let Answer::Integer(count) = wire.ask(&["DBSIZE"]) else { panic!("no count") };
        usize::try_from(count).expect("a count")
    }];
    assert_eq!(found, counted);
}
