//! Transactions of the service, and commands of several keys: each takes effect at one point in
//! time for all instances.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::execs;
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

const PAGES: u64 = 256 << 10;

fn two_instances() -> (TestPool, [Service; 2]) {
    let pool = TestPool::start(64 << 20, PAGES);
    pool.wait_until_racks_meet();
    let services = [0, 1].map(|rack| Service::start(&pool, rack, &["--threads", "2"]));
    (pool, services)
}

fn integer(answer: &Answer) -> i64 {
    match answer {
        Answer::Bulk(bytes) => String::from_utf8_lossy(bytes).parse().expect("a number"),
        Answer::Integer(number) => *number,
        other => panic!("no number: {other:?}"),
    }
}

#[test]
fn each_exec_that_was_acknowledged_has_happened_once_among_all_instances() {
    let report = execs::run(800, 0);
    assert!(report.problems.is_empty(), "{report}");
    assert!(report.acknowledged >= 800 && report.refused > 0 && report.looks > 100, "{report}");
}

#[test]
fn each_exec_that_was_acknowledged_has_happened_once_though_instances_are_killed() {
    let report = execs::run(600, 100);
    assert!(report.problems.is_empty(), "{report}");
    assert!(report.kills >= 4, "{report}");
}

/// A lock without scripts: `SET NX` takes it, and `WATCH`, `GET`, `MULTI`, `DEL` release it if this
/// client still holds it. Its expiry passes while it is held, so other clients take it meanwhile.
#[test]
fn a_lock_that_is_released_is_never_another_holders() {
    let (_pool, services) = two_instances();
    let end = Instant::now() + Duration::from_secs(3);
    let (taken, deleted) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (service, taken, deleted) = (&services[worker % 2], &taken, &deleted);
            scope.spawn(move || {
                let mut wire = service.wire();
                for round in 0_u64.. {
                    if Instant::now() > end {
                        break;
                    }
                    let token = format!("{worker}:{round}");
                    if wire.ask(&["SET", "lock", &token, "NX", "PX", "2"]) == Answer::Null {
                        continue;
                    }
                    taken.fetch_add(1, Ordering::Relaxed);
                    wire.ask(&["WATCH", "lock"]);
                    if wire.ask(&["GET", "lock"]) != Answer::text(&token) {
                        wire.ask(&["UNWATCH"]);
                        continue;
                    }
                    // The transaction that deletes the lock also returns its value.
                    for words in [&["MULTI"][..], &["GETDEL", "lock"]] {
                        wire.ask(words);
                    }
                    match wire.ask(&["EXEC"]) {
                        Answer::Null => {}
                        Answer::Array(found) => {
                            assert_eq!(found, [Answer::text(&token)], "another holder's token");
                            deleted.fetch_add(1, Ordering::Relaxed);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    let [taken, deleted] = [taken, deleted].map(AtomicU64::into_inner);
    assert!(taken > 50 && deleted > 10, "{taken} taken, {deleted} deleted");
}

/// Writers and readers of several keys by single commands, at both instances.
#[test]
fn commands_of_several_keys_are_atomic_among_all_instances() {
    let (_pool, services) = two_instances();
    let stop = AtomicBool::new(false);
    let looks = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for service in &services {
            let (stop, looks) = (&stop, &looks);
            scope.spawn(move || {
                let mut wire = service.wire();
                for round in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let text = format!("{round}{}", if round % 2 == 0 { "" } else { "0000000" });
                    assert_eq!(
                        wire.ask(&["MSET", "a", &text, "b", &text, "c", &text]),
                        Answer::ok()
                    );
                    if round % 3 == 0 {
                        let gone = integer(&wire.ask(&["DEL", "a", "b", "c"]));
                        assert!(gone == 0 || gone == 3, "{gone} of 3 keys deleted");
                    }
                }
            });
            scope.spawn(move || {
                let mut wire = service.wire();
                while looks.load(Ordering::Relaxed) < 600 {
                    let Answer::Array(all) = wire.ask(&["MGET", "a", "b", "c"]) else {
                        panic!("no answers")
                    };
                    assert!(all[0] == all[1] && all[1] == all[2], "torn: {all:?}");
                    let there = integer(&wire.ask(&["EXISTS", "a", "b", "c"]));
                    assert!(there == 0 || there == 3, "{there} of 3 keys are there");
                    looks.fetch_add(1, Ordering::Relaxed);
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
}

/// One client takes and deletes all fields of a large hash in one transaction; others keep adding
/// fields.
#[test]
fn what_is_taken_from_a_large_collection_and_what_is_added_to_it_is_all_of_it() {
    const EACH: usize = 1500;
    let (_pool, services) = two_instances();
    let (adding, mut taken) = (AtomicU64::new(2), 0);
    std::thread::scope(|scope| {
        for (worker, service) in services.iter().enumerate() {
            let adding = &adding;
            scope.spawn(move || {
                let mut wire = service.wire();
                for number in 0..EACH {
                    let field = format!("{worker}:{number}");
                    let added = wire.ask(&["HSET", "queue", &field, &"v".repeat(60)]);
                    assert_eq!(added, Answer::Integer(1));
                }
                adding.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let mut wire = services[0].wire();
        let end = Instant::now() + Duration::from_secs(60);
        while taken < 2 * EACH && Instant::now() < end {
            let is_last = adding.load(Ordering::Relaxed) == 0;
            for words in [&["MULTI"][..], &["HGETALL", "queue"], &["DEL", "queue"]] {
                wire.ask(words);
            }
            let Answer::Array(answers) = wire.ask(&["EXEC"]) else { panic!("no answers") };
            let Answer::Array(fields) = &answers[0] else { panic!("{answers:?}") };
            assert_eq!(integer(&answers[1]), i64::from(!fields.is_empty()));
            taken += fields.len() / 2;
            if is_last {
                break;
            }
            // A varying pause, not a wait: sometimes the fields taken are a large hash, sometimes a
            // small one.
            std::thread::sleep(Duration::from_millis(taken as u64 % 60));
        }
    });
    assert_eq!(taken, 2 * EACH, "fields that were added are neither taken nor there");
}

/// Writers of several elements of large collections at both instances, and transactions that read
/// them.
#[test]
fn several_elements_of_a_large_collection_change_atomically() {
    let (_pool, services) = two_instances();
    let mut wire = services[0].wire();
    for number in 0..400 {
        let name = format!("e{number}");
        assert_eq!(wire.ask(&["HSET", "h", &name, &"0".repeat(40)]), Answer::Integer(1));
        assert_eq!(wire.ask(&["ZADD", "z", "0", &name]), Answer::Integer(1));
    }
    wire.ask(&["HSET", "h", "e1", "-1", "e200", "-1", "e399", "-1"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (worker, service) in services.iter().enumerate() {
            let stop = &stop;
            scope.spawn(move || {
                let mut wire = service.wire();
                for number in 0_usize.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let text = (number * 2 + worker).to_string();
                    let set = ["HSET", "h", "e1", &text, "e200", &text, "e399", &text];
                    assert_eq!(wire.ask(&set), Answer::Integer(0));
                    let add = ["ZADD", "z", &text, "e1", &text, "e200", &text, "e399"];
                    assert_eq!(wire.ask(&add), Answer::Integer(0));
                }
            });
        }
        for _ in 0..200 {
            for words in [
                &["MULTI"][..],
                &["HMGET", "h", "e1", "e200", "e399"],
                &["ZSCORE", "z", "e1"],
                &["ZSCORE", "z", "e200"],
                &["ZSCORE", "z", "e399"],
            ] {
                wire.ask(words);
            }
            let Answer::Array(mut scores) = wire.ask(&["EXEC"]) else { panic!("no answers") };
            let Answer::Array(fields) = scores.remove(0) else { panic!("no fields") };
            for all in [fields, scores] {
                assert!(all[0] == all[1] && all[1] == all[2], "torn: {all:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A transaction that reads all of a large hash commits, though other clients keep changing it.
#[test]
fn a_transaction_that_reads_much_gets_through_while_others_write() {
    let (_pool, services) = two_instances();
    let mut wire = services[0].wire();
    for number in 0..3000 {
        wire.request(&["HSET", "h", &format!("f{number}"), &"0".repeat(40)]).expect("it is read");
    }
    (0..3000).for_each(|_| assert_eq!(wire.answer().expect("an answer"), Answer::Integer(1)));
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (service, stop, written) = (&services[worker % 2], &stop, &written);
            scope.spawn(move || {
                let mut wire = service.wire();
                for number in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let field = format!("f{}", (number * 7 + worker as u64) % 3000);
                    assert_eq!(wire.ask(&["HSET", "h", &field, "1"]), Answer::Integer(0));
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..5 {
            let before = written.load(Ordering::Relaxed);
            for words in [&["MULTI"][..], &["HGETALL", "h"], &["INCR", "looks"]] {
                wire.ask(words);
            }
            let answer = wire.ask(&["EXEC"]);
            let is_whole = matches!(&answer, Answer::Array(all) if matches!(&all[0], Answer::Array(fields) if fields.len() == 6000));
            assert!(is_whole, "{answer:?}");
            let went_on = || written.load(Ordering::Relaxed) > before + 100;
            wait_until("others go on", TIMEOUT, went_on);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(wire.ask(&["GET", "looks"]), Answer::text("5"));
}

/// A transaction's later commands see the changes of its earlier ones, also in large collections.
#[test]
fn a_transaction_sees_its_own_changes() {
    let pool = TestPool::start(64 << 20, PAGES);
    let service = Service::start(&pool, 0, &["--threads", "1"]);
    let mut wire = service.wire();
    let long = "v".repeat(300);
    let mut fields = vec!["HSET".to_owned(), "h".to_owned()];
    fields.extend((0..100).flat_map(|number| [format!("f{number}"), long.clone()]));
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    let transaction = |wire: &mut Wire, commands: &[&[&str]]| {
        assert_eq!(wire.ask(&["MULTI"]), Answer::ok());
        for words in commands {
            assert_eq!(wire.ask(words), Answer::Simple("QUEUED".into()));
        }
        match wire.ask(&["EXEC"]) {
            Answer::Array(answers) => answers,
            other => panic!("{other:?}"),
        }
    };
    let answers = transaction(
        &mut wire,
        &[
            &["SET", "s", "1"],
            &["INCR", "s"],
            // The hash becomes a large one within the transaction.
            &fields,
            &["HLEN", "h"],
            &["HGET", "h", "f7"],
            &["HDEL", "h", "f7", "f8"],
            &["HLEN", "h"],
            &["KEYS", "*"],
            &["DBSIZE"],
            &["DEL", "s"],
            &["GET", "s"],
            &["DBSIZE"],
        ],
    );
    let (two, hundred) = (Answer::Integer(2), Answer::Integer(100));
    assert_eq!(
        answers[..5],
        [Answer::ok(), two.clone(), hundred.clone(), hundred, Answer::text(&long)]
    );
    assert_eq!(answers[5..7], [two.clone(), Answer::Integer(98)]);
    let Answer::Array(keys) = &answers[7] else { panic!("{answers:?}") };
    assert_eq!((keys.len(), &answers[8]), (2, &two));
    assert_eq!(answers[9..], [Answer::Integer(1), Answer::Null, Answer::Integer(1)]);
    assert_eq!(wire.ask(&["HLEN", "h"]), Answer::Integer(98));
    assert_eq!(wire.ask(&["OBJECT", "ENCODING", "h"]), Answer::text("hashtable"));
    let again =
        transaction(&mut wire, &[&["DEL", "h"], &["EXISTS", "h"], &["HSET", "h", "a", "b"]]);
    assert_eq!(again, [1, 0, 1].map(Answer::Integer));
    assert_eq!(wire.ask(&["HGETALL", "h"]), Answer::Array(["a", "b"].map(Answer::text).into()));
    // A failing command does not prevent the others.
    let mixed = transaction(&mut wire, &[&["INCR", "h"], &["SET", "s", "x"]]);
    assert!(matches!(&mixed[..], [Answer::Error(_), Answer::Simple(_)]), "{mixed:?}");
    let flushed = transaction(
        &mut wire,
        &[&["SET", "before", "1"], &["FLUSHDB"], &["DBSIZE"], &["SET", "after", "1"], &["DBSIZE"]],
    );
    assert_eq!(flushed[1..3], [Answer::ok(), Answer::Integer(0)]);
    assert_eq!(flushed[4], Answer::Integer(1));
    assert_eq!(wire.ask(&["KEYS", "*"]), Answer::Array(vec![Answer::text("after")]));
}
