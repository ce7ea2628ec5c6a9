//! The service and a real Redis get the same requests and must give equal answers.

use rackpool_testing::skipped;
use rackpool_tests::pool::TestPool;
use rackpool_tests::service::{Answer, Service, Wire};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// A connection to each of both servers.
struct Pair {
    ours: Wire,
    redis: Wire,
    _servers: [Service; 2],
    _pool: TestPool,
}

impl Pair {
    fn start() -> Option<Self> {
        let pool = TestPool::start(64 << 20, 256 << 10);
        let Some(redis) = Service::redis(pool.dir()) else {
            skipped("redis-server is not installed: deploy/prepare.sh does that");
            return None;
        };
        let ours = Service::start(&pool, 0, &["--threads", "2"]);
        Some(Self { ours: ours.wire(), redis: redis.wire(), _servers: [ours, redis], _pool: pool })
    }

    #[track_caller]
    fn ask(&mut self, words: &[Vec<u8>]) {
        let name = String::from_utf8_lossy(&words[0]).to_ascii_lowercase();
        let [ours, redis] =
            [&mut self.ours, &mut self.redis].map(|wire| alike(&name, wire.ask(words)));
        let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        assert!(near(&name, &ours, &redis), "{shown:?}: {ours:?}, Redis says {redis:?}");
    }
}

/// An answer without the parts that are not promised: the order of keys, and of the fields of a
/// large hash.
fn alike(name: &str, answer: Answer) -> Answer {
    match answer {
        Answer::Array(mut all) if ["keys", "hkeys", "hvals", "config"].contains(&name) => {
            all.sort();
            Answer::Array(all)
        }
        Answer::Array(all) if name == "hgetall" => {
            let mut pairs: Vec<_> = all.chunks(2).map(<[Answer]>::to_vec).collect();
            pairs.sort();
            Answer::Array(pairs.concat())
        }
        Answer::Array(all) if name.ends_with("scan") => {
            Answer::Array(all.into_iter().map(sorted).collect())
        }
        // The commands of the transaction are not known here.
        Answer::Array(all) if name == "exec" => {
            Answer::Array(all.into_iter().map(sorted).collect())
        }
        other => other,
    }
}

fn sorted(answer: Answer) -> Answer {
    match answer {
        Answer::Array(mut all) => {
            all.sort();
            Answer::Array(all)
        }
        other => other,
    }
}

/// Returns true if the answers are equal, or differ by no more than two clocks do.
fn near(name: &str, ours: &Answer, redis: &Answer) -> bool {
    let slack = match name {
        "ttl" => 2,
        "pttl" | "exec" => 2000,
        _ => 0,
    };
    match (ours, redis) {
        (Answer::Integer(a), Answer::Integer(b)) if *a > 0 && *b > 0 => (a - b).abs() <= slack,
        (Answer::Array(a), Answer::Array(b)) if name == "exec" && a.len() == b.len() => {
            a.iter().zip(b).all(|(a, b)| near(name, a, b))
        }
        (a, b) => a == b,
    }
}

/// Random words that often form a meaningful request.
struct Words(SmallRng);

impl Words {
    fn one(&mut self, of: &[&str]) -> Vec<u8> {
        of.choose(&mut self.0).expect("some words").as_bytes().to_vec()
    }

    fn key(&mut self) -> Vec<u8> {
        // Each type has keys of its own, and sometimes any key is used for any type.
        match self.0.random_range(0..13) {
            12 => Vec::new(),
            number => format!("key{number}").into_bytes(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.0.random_range(0..10) {
            0..4 => self.0.random_range(-20..1000).to_string().into_bytes(),
            4 => self.one(&["", "abc", "1.5", "-0", "01", "9223372036854775807", "3.0e3"]),
            5 => vec![b'x'; self.0.random_range(0..300)],
            6 => (0..self.0.random_range(1..20)).map(|_| self.0.random()).collect(),
            _ => self.one(&["one", "two", "three"]),
        }
    }

    fn number(&mut self) -> Vec<u8> {
        match self.0.random_range(0..12) {
            0 => self.one(&["x", "", "1.5", "9223372036854775807", "-9223372036854775808", "+1"]),
            _ => self.0.random_range(-12..12).to_string().into_bytes(),
        }
    }

    /// A number with few binary digits, which all releases of Redis print alike.
    fn score(&mut self) -> Vec<u8> {
        match self.0.random_range(0..16) {
            0 => self.one(&["inf", "-inf", "nan", "x", "(1", "+2"]),
            1..4 => b"0.5".to_vec(),
            _ => self.0.random_range(-9..30).to_string().into_bytes(),
        }
    }

    fn member(&mut self) -> Vec<u8> {
        let most = if self.0.random_range(0..20) == 0 { 400 } else { 30 };
        format!("m{}", self.0.random_range(0..most)).into_bytes()
    }

    fn field(&mut self) -> Vec<u8> {
        format!("f{}", self.0.random_range(0..20)).into_bytes()
    }

    fn bound(&mut self) -> Vec<u8> {
        match self.0.random_range(0..4) {
            0 => self.one(&["-inf", "+inf", "(3", "(5.5"]),
            _ => self.score(),
        }
    }

    fn request(&mut self) -> Vec<Vec<u8>> {
        let mut words = match self.0.random_range(0..10) {
            0..3 => self.string(),
            3..5 => self.general(),
            5..7 => self.hash(),
            7..9 => self.sorted_set(),
            _ => self.transaction(),
        };
        // Sometimes an argument too many or too few.
        match self.0.random_range(0..60) {
            0 => words.push(self.value()),
            1 => drop(words.pop().filter(|_| words.len() > 1)),
            2 => words[0] = words[0].to_ascii_lowercase(),
            _ => {}
        }
        if words.is_empty() {
            words.push(b"PING".to_vec());
        }
        words
    }

    fn string(&mut self) -> Vec<Vec<u8>> {
        let name = self.one(&[
            "GET",
            "SET",
            "SET",
            "SETNX",
            "GETSET",
            "GETDEL",
            "APPEND",
            "STRLEN",
            "INCR",
            "DECR",
            "INCRBY",
            "DECRBY",
            "GETRANGE",
            "SETRANGE",
            "MGET",
            "MSET",
            "SETEX",
            "GETEX",
            "INCRBYFLOAT",
        ]);
        let mut words = vec![name, self.key()];
        match std::str::from_utf8(&words[0]).expect("a name") {
            "SET" => {
                words.push(self.value());
                for _ in 0..self.0.random_range(0..3) {
                    let option = self.one(&[
                        "NX",
                        "XX",
                        "GET",
                        "KEEPTTL",
                        "EX 100",
                        "PX 100000",
                        "EX 0",
                        "FOO",
                    ]);
                    words.extend(option.split(|byte| *byte == b' ').map(<[u8]>::to_vec));
                }
            }
            "SETNX" | "GETSET" | "APPEND" => words.push(self.value()),
            "INCRBY" | "DECRBY" => words.push(self.number()),
            "INCRBYFLOAT" => words.push(self.one(&["0.5", "-1.25", "x", "3"])),
            "GETRANGE" => words.extend([self.number(), self.number()]),
            "SETRANGE" => words.extend([self.number(), self.value()]),
            "MGET" => words.extend([self.key(), self.key()]),
            "MSET" => words.extend([self.value(), self.key(), self.value()]),
            "SETEX" => words.extend([self.one(&["100", "0", "-1", "x"]), self.value()]),
            "GETEX" => words
                .extend(self.one(&["PERSIST", "EX 100"]).split(|b| *b == b' ').map(<[u8]>::to_vec)),
            _ => {}
        }
        words
    }

    fn general(&mut self) -> Vec<Vec<u8>> {
        let name = self.one(&[
            "DEL", "DEL", "EXISTS", "TYPE", "TTL", "PTTL", "PERSIST", "EXPIRE", "PEXPIRE", "KEYS",
            "DBSIZE", "UNLINK", "ECHO", "EXPIREAT", "NOSUCH", "SELECT", "PING", "FLUSHDB",
        ]);
        match std::str::from_utf8(&name).expect("a name") {
            "DEL" | "EXISTS" => vec![name, self.key(), self.key()],
            "EXPIRE" => {
                let time = self.one(&["100", "1000", "-1", "x", "9223372036854775807"]);
                let mut words = vec![name, self.key(), time];
                if self.0.random() {
                    words.push(self.one(&["NX", "XX", "GT", "LT", "FOO"]));
                }
                words
            }
            "PEXPIRE" => vec![name, self.key(), self.one(&["100000", "200000"])],
            "EXPIREAT" => vec![name, self.key(), self.one(&["1", "33177117420"])],
            "KEYS" => vec![name, self.one(&["*", "key1*", "key[2-4]", "k?y1", "nothing"])],
            "DBSIZE" | "PING" => vec![name],
            "FLUSHDB" if self.0.random_range(0..20) == 0 => vec![name],
            "FLUSHDB" => vec![b"DBSIZE".to_vec()],
            "ECHO" => vec![name, self.value()],
            "SELECT" => vec![name, self.one(&["0", "x"])],
            "NOSUCH" => vec![name, self.member(), self.member()],
            _ => vec![name, self.key()],
        }
    }

    fn hash(&mut self) -> Vec<Vec<u8>> {
        let name = self.one(&[
            "HSET",
            "HSET",
            "HSET",
            "HGET",
            "HMGET",
            "HGETALL",
            "HDEL",
            "HEXISTS",
            "HLEN",
            "HINCRBY",
            "HKEYS",
            "HVALS",
            "HSETNX",
            "HSTRLEN",
            "HMSET",
            "HINCRBYFLOAT",
        ]);
        let mut words = vec![name, self.key()];
        match std::str::from_utf8(&words[0]).expect("a name") {
            "HSET" | "HMSET" => {
                for _ in 0..self.0.random_range(1..4) {
                    words.extend([self.field(), self.value()]);
                }
            }
            "HGET" | "HEXISTS" | "HSTRLEN" => words.push(self.field()),
            "HMGET" | "HDEL" => words.extend([self.field(), self.field()]),
            "HINCRBY" => words.extend([self.field(), self.number()]),
            "HINCRBYFLOAT" => words.extend([self.field(), self.one(&["0.5", "-1.25", "x"])]),
            "HSETNX" => words.extend([self.field(), self.value()]),
            _ => {}
        }
        words
    }

    fn sorted_set(&mut self) -> Vec<Vec<u8>> {
        let name = self.one(&[
            "ZADD",
            "ZADD",
            "ZADD",
            "ZREM",
            "ZSCORE",
            "ZCARD",
            "ZRANGE",
            "ZRANGEBYSCORE",
            "ZREVRANGE",
            "ZREVRANGEBYSCORE",
            "ZINCRBY",
            "ZRANK",
            "ZREVRANK",
            "ZCOUNT",
            "ZREMRANGEBYSCORE",
        ]);
        let mut words = vec![name, self.key()];
        match std::str::from_utf8(&words[0]).expect("a name") {
            "ZADD" => {
                for _ in 0..self.0.random_range(0..3) {
                    words.push(self.one(&["NX", "XX", "GT", "LT", "CH", "INCR"]));
                }
                let most = if self.0.random_range(0..10) == 0 { 40 } else { 4 };
                for _ in 0..self.0.random_range(1..most) {
                    words.extend([self.score(), self.member()]);
                }
            }
            "ZREM" => words.extend([self.member(), self.member(), self.member()]),
            "ZSCORE" | "ZRANK" | "ZREVRANK" => words.push(self.member()),
            "ZINCRBY" => words.extend([self.score(), self.member()]),
            "ZCOUNT" | "ZREMRANGEBYSCORE" => words.extend([self.bound(), self.bound()]),
            "ZRANGE" | "ZREVRANGE" => {
                words.extend([self.number(), self.number()]);
                if self.0.random() {
                    words.push(self.one(&["WITHSCORES", "REV", "BYSCORE"]));
                }
            }
            "ZRANGEBYSCORE" | "ZREVRANGEBYSCORE" => {
                words.extend([self.bound(), self.bound()]);
                if self.0.random() {
                    words.push(b"WITHSCORES".to_vec());
                }
                if self.0.random() {
                    words.extend([b"LIMIT".to_vec(), self.number(), self.number()]);
                }
            }
            _ => {}
        }
        words
    }

    fn transaction(&mut self) -> Vec<Vec<u8>> {
        // The exact effect of `WATCH` is not promised: docs/design/kv-service.md.
        vec![self.one(&["MULTI", "EXEC", "EXEC", "DISCARD", "UNWATCH"])]
    }
}

#[test]
fn random_commands_are_answered_as_redis_does() {
    const COMMANDS: usize = 12_000;
    for seed in [1, 2] {
        let Some(mut pair) = Pair::start() else { return };
        let mut words = Words(SmallRng::seed_from_u64(seed));
        for _ in 0..COMMANDS {
            pair.ask(&words.request());
        }
    }
}

/// The requests of a transcript.
fn requests(text: &str) -> impl Iterator<Item = Vec<Vec<u8>>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    lines.map(|line| {
        let word = |word: &str| word.replace("\\s", " ").replace("\\e", "").into_bytes();
        line.split(' ').map(word).collect()
    })
}

#[test]
fn edges_and_errors_have_the_words_of_redis() {
    let Some(mut pair) = Pair::start() else { return };
    let mut asked = 0;
    for words in requests(include_str!("../transcripts/redis.txt")) {
        pair.ask(&words);
        asked += 1;
    }
    assert!(asked > 500, "only {asked} requests in the transcript");
}
