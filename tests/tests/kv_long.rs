//! Long commands of `rackpool-kv` do not delay other connections of their thread.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};

const KEYS: usize = 30_000;
const ELEMENTS: usize = 20_000;
/// Answers that others must get during one long command, in one of its repetitions. A thread that
/// executed the command itself would give at most one, to a request that it had read before.
const ANSWERS: usize = 10;

struct World {
    service: Service,
    _pool: TestPool,
    walker: Wire,
    other: Wire,
}

impl World {
    /// A service with one thread.
    fn new() -> Self {
        let pool = TestPool::start(64 << 20, 256 << 10);
        let service = Service::start(&pool, 0, &["--threads", "1"]);
        let (walker, other) = (service.wire(), service.wire());
        Self { service, _pool: pool, walker, other }
    }

    /// Sends requests in batches of a thousand.
    fn load(&mut self, requests: impl Iterator<Item = Vec<String>>) {
        let requests: Vec<_> = requests.collect();
        for some in requests.chunks(1000) {
            for request in some {
                self.walker.request(request).unwrap();
            }
            for _ in some {
                let answer = self.walker.answer().unwrap();
                assert!(!matches!(answer, Answer::Error(_)), "{answer:?}");
            }
        }
    }

    fn load_keys(&mut self) {
        self.load((0..KEYS).map(|key| words(&["SET", &format!("key:{key}"), "value"])));
    }

    /// Creates a hash and a sorted set.
    fn load_collections(&mut self) {
        self.load((0..ELEMENTS).map(|at| words(&["HSET", "hash", &format!("field:{at}"), "v"])));
        let member = |at: usize| words(&["ZADD", "set", &at.to_string(), &format!("member:{at}")]);
        self.load((0..ELEMENTS).map(member));
    }

    /// The number of answers that others get during a command; `is_right` checks the command's own
    /// answer.
    fn answered_during(&mut self, command: &[String], is_right: impl Fn(&Answer) -> bool) -> usize {
        self.walker.request(command).unwrap();
        let mut answered = 0;
        while !self.walker.has_come() {
            assert_eq!(self.other.ask(&["PING"]), Answer::Simple("PONG".into()));
            answered += 1;
        }
        let answer = self.walker.answer().unwrap();
        assert!(is_right(&answer), "{}", command[0]);
        answered
    }

    /// Repeats a command until others were answered during it.
    fn leaves_others_alone(&mut self, command: &[String], is_right: impl Fn(&Answer) -> bool) {
        wait_until(&format!("others are answered during {}", command[0]), TIMEOUT, || {
            self.answered_during(command, &is_right) > ANSWERS
        });
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn has_elements(answer: &Answer, count: usize) -> bool {
    matches!(answer, Answer::Array(elements) if elements.len() == count)
}

#[test]
fn walks_along_all_keys_and_commands_of_many_keys_leave_others_alone() {
    let mut world = World::new();
    world.load_keys();
    let count = i64::try_from(KEYS).unwrap();
    world.leaves_others_alone(&words(&["KEYS", "*"]), |answer| has_elements(answer, KEYS));
    world.leaves_others_alone(&words(&["DBSIZE"]), |answer| *answer == Answer::Integer(count));
    world.leaves_others_alone(
        &words(&["SCAN", "0", "COUNT", "100000"]),
        |answer| matches!(answer, Answer::Array(parts) if has_elements(&parts[1], KEYS)),
    );
    let names = || (0..10_000).map(|key| format!("key:{key}"));
    let of_many = |name: &str| words(&[name]).into_iter().chain(names()).collect::<Vec<_>>();
    world.leaves_others_alone(&of_many("MGET"), |answer| has_elements(answer, 10_000));
    world.leaves_others_alone(&of_many("EXISTS"), |answer| *answer == Answer::Integer(10_000));
    let pairs = names().flat_map(|name| [name, "other".into()]);
    let mset: Vec<_> = words(&["MSET"]).into_iter().chain(pairs).collect();
    world.leaves_others_alone(&mset, |answer| *answer == Answer::ok());
}

#[test]
fn walks_along_large_collections_leave_others_alone() {
    let mut world = World::new();
    world.load_collections();
    let count = i64::try_from(ELEMENTS).unwrap();
    for (command, elements) in [
        (&["HGETALL", "hash"][..], 2 * ELEMENTS),
        (&["HKEYS", "hash"], ELEMENTS),
        (&["HVALS", "hash"], ELEMENTS),
        (&["ZRANGE", "set", "0", "-1"], ELEMENTS),
        (&["ZRANGEBYSCORE", "set", "-inf", "+inf"], ELEMENTS),
    ] {
        world.leaves_others_alone(&words(command), |answer| has_elements(answer, elements));
    }
    // These read leaves only and are short, so they are repeated many times.
    for (command, sum) in [
        (&["HLEN", "hash"][..], count),
        (&["ZCARD", "set"], count),
        (&["ZCOUNT", "set", "-inf", "+inf"], count),
        (&["ZREVRANK", "set", "member:0"], count - 1),
    ] {
        assert_eq!(world.walker.ask(command), Answer::Integer(sum), "{command:?}");
        let sums = Answer::Array(vec![Answer::Integer(sum); 200]);
        wait_until(&format!("others are answered during {command:?}"), TIMEOUT, || {
            world.walker.ask(&["MULTI"]);
            for _ in 0..200 {
                world.walker.ask(command);
            }
            world.answered_during(&words(&["EXEC"]), |answer| *answer == sums) > ANSWERS
        });
    }
}

/// Others read and write meanwhile; keys from before the command are gone after it.
#[test]
fn a_flush_leaves_others_alone() {
    let mut world = World::new();
    wait_until("others are answered during FLUSHALL", TIMEOUT, || {
        world.load_keys();
        world.walker.request(&["FLUSHALL"]).unwrap();
        let mut answered = 0;
        while !world.walker.has_come() {
            let value = answered.to_string();
            assert_eq!(world.other.ask(&["SET", "others", &value]), Answer::ok());
            // The key is deleted at one point in time of the flush.
            let found = world.other.ask(&["GET", "others"]);
            assert!(found == Answer::Null || found == Answer::text(&value), "{found:?}");
            answered += 1;
        }
        assert_eq!(world.walker.answer().unwrap(), Answer::ok());
        world.other.ask(&["DEL", "others"]);
        assert_eq!(world.other.ask(&["DBSIZE"]), Answer::Integer(0));
        answered > ANSWERS
    });
}

#[test]
fn answers_stay_in_order_around_long_commands() {
    let mut world = World::new();
    world.load_keys();
    let (count, pong) = (i64::try_from(KEYS).unwrap(), Answer::Simple("PONG".into()));
    for _ in 0..3 {
        let requests: [&[&str]; 9] = [
            &["DBSIZE"],
            &["SET", "key:0", "first"],
            &["DBSIZE"],
            &["GET", "key:0"],
            &["SET", "key:0", "second"],
            &["KEYS", "key:0"],
            &["GET", "key:0"],
            &["PING"],
            &["DBSIZE"],
        ];
        requests.iter().for_each(|request| world.walker.request(request).unwrap());
        let answers: Vec<_> = requests.iter().map(|_| world.walker.answer().unwrap()).collect();
        let key = Answer::Array(vec![Answer::text("key:0")]);
        let number = Answer::Integer(count);
        let expected = [
            number.clone(),
            Answer::ok(),
            number.clone(),
            Answer::text("first"),
            Answer::ok(),
            key,
            Answer::text("second"),
            pong.clone(),
            number,
        ];
        assert_eq!(answers, expected);
    }
}

#[test]
fn a_long_transaction_is_one_and_its_watched_keys_count() {
    let mut world = World::new();
    let long = |world: &mut World| {
        world.walker.ask(&["MULTI"]);
        for _ in 0..1000 {
            assert_eq!(world.walker.ask(&["INCR", "sum"]), Answer::Simple("QUEUED".into()));
        }
    };
    world.walker.ask(&["WATCH", "watched"]);
    long(&mut world);
    world.other.ask(&["SET", "watched", "1"]);
    assert_eq!(world.walker.ask(&["EXEC"]), Answer::Null);
    assert_eq!(world.other.ask(&["GET", "sum"]), Answer::Null);
    world.walker.ask(&["WATCH", "watched"]);
    long(&mut world);
    world.walker.request(&["EXEC"]).unwrap();
    // All of the result, or none.
    while !world.walker.has_come() {
        let sum = world.other.ask(&["GET", "sum"]);
        assert!(sum == Answer::Null || sum == Answer::text("1000"), "{sum:?}");
    }
    assert!(has_elements(&world.walker.answer().unwrap(), 1000));
    assert_eq!(world.other.ask(&["GET", "sum"]), Answer::text("1000"));
}

#[test]
fn a_client_that_goes_during_a_long_command_leaves_nothing() {
    let mut world = World::new();
    world.load_keys();
    for _ in 0..20 {
        let mut gone = world.service.wire();
        gone.ask(&["WATCH", "key:0"]);
        gone.request(&["KEYS", "*"]).unwrap();
        drop(gone);
        assert_eq!(world.other.ask(&["PING"]), Answer::Simple("PONG".into()));
    }
    wait_until("their connections have ended", TIMEOUT, || {
        let Answer::Bulk(info) = world.other.ask(&["INFO", "clients"]) else { panic!() };
        String::from_utf8_lossy(&info).contains("connected_clients:2")
    });
}
