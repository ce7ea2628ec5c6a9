//! The load on the services: requests for a bounded set of keys of all kinds.

use std::io;
use std::path::Path;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Counts;
use crate::service::Wire;

/// Pause after a request without an answer: the service may be restarting.
const PAUSE: Duration = Duration::from_millis(5);

/// Sends requests to an instance until the loads end.
pub(super) fn ask(socket: &Path, seed: u64, counts: &Counts) {
    let mut random = SmallRng::seed_from_u64(seed);
    while !counts.has_ended() {
        let Ok(mut wire) = Wire::try_open(socket) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        while !counts.has_ended() && step(&mut wire, &mut random).is_ok() {
            counts.done();
        }
    }
}

/// A random one of `count` keys with this prefix.
fn key(random: &mut SmallRng, prefix: &str, count: u32) -> String {
    format!("{prefix}{}", random.random_range(0..count))
}

fn step(wire: &mut Wire, random: &mut SmallRng) -> io::Result<()> {
    let (hash, set) = (key(random, "H", 6), key(random, "Z", 6));
    match random.random_range(0..33) {
        0..5 => say(wire, &["SET", &key(random, "s", 200), &value(random, 6000)]),
        5 => {
            let life = random.random_range(1..2000).to_string();
            say(wire, &["SET", &key(random, "s", 200), &value(random, 3000), "PX", &life])
        }
        6 => say(wire, &["SET", &key(random, "L", 4), &value(random, 200_000)]),
        7 | 8 => say(wire, &["DEL", &key(random, "s", 200)]),
        9..12 => {
            let (hash, field) = (key(random, "h", 40), key(random, "f", 30));
            say(wire, &["HSET", &hash, &field, &value(random, 60)])
        }
        12..17 => many(wire, random, "HSET", &hash),
        17..21 => many(wire, random, "ZADD", &set),
        21 => say(wire, &["DEL", &hash]),
        22 => say(wire, &["DEL", &set]),
        23 => say(wire, &["ZADD", &key(random, "z", 20), "1", &key(random, "m", 20)]),
        24 => say(wire, &["HDEL", &hash, &key(random, "f", 800), &key(random, "f", 800)]),
        25 => say(wire, &["ZREM", &set, &key(random, "m", 600)]),
        26 => {
            let life = random.random_range(1..500).to_string();
            say(wire, &["PEXPIRE", if random.random_bool(0.5) { &hash } else { &set }, &life])
        }
        27 => say(wire, &["RENAME", &hash, &key(random, "H", 6)]),
        28 => {
            // The sweep frees the hash's map.
            say(wire, &["SET", &hash, "in the place of a large hash"])?;
            say(wire, &["DEL", &hash])
        }
        29 => say(wire, &["DEL", &hash, &set, &key(random, "s", 200)]),
        _ => transaction(wire, random, &hash, &set),
    }
}

fn say(wire: &mut Wire, words: &[&str]) -> io::Result<()> {
    wire.try_ask(words).map(drop)
}

fn value(random: &mut SmallRng, longest: usize) -> String {
    "v".repeat(random.random_range(0..longest))
}

/// Sets a hundred fields of a hash or members of a sorted set; three calls make it a large one.
fn many(wire: &mut Wire, random: &mut SmallRng, command: &str, name: &str) -> io::Result<()> {
    let mut words = vec![command.to_owned(), name.to_owned()];
    for _ in 0..100 {
        let number = random.random_range(0..800).to_string();
        match command {
            "HSET" => words.extend([format!("f{number}"), value(random, 60)]),
            _ => words.extend([number.clone(), format!("m{number}")]),
        }
    }
    wire.try_ask(&words).map(drop)
}

fn transaction(wire: &mut Wire, random: &mut SmallRng, hash: &str, set: &str) -> io::Result<()> {
    let ends_hash = random.random_bool(0.2);
    let (string, field) = (key(random, "s", 200), key(random, "f", 800));
    say(wire, &["MULTI"])?;
    say(wire, &["SET", &string, &value(random, 600)])?;
    say(wire, &["HSET", hash, &field, &value(random, 60)])?;
    say(wire, &["ZADD", set, "5", &key(random, "m", 600)])?;
    if ends_hash {
        say(wire, &["DEL", hash])?;
    }
    say(wire, &["EXEC"])
}
