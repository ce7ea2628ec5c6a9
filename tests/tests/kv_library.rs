//! The service behind an ordinary Redis library, in both versions of the protocol.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::{BTreeMap, BTreeSet};

use rackpool_tests::pool::TestPool;
use rackpool_tests::service::Service;
use redis::{Commands, Connection, RedisResult};

fn connect(service: &Service, protocol: &str) -> Connection {
    let place = format!("redis+unix://{}?protocol={protocol}", service.socket.display());
    redis::Client::open(place).unwrap().get_connection().unwrap()
}

#[test]
fn a_library_works_unchanged() {
    let pool = TestPool::small();
    let services = [0, 1].map(|rack| Service::start(&pool, rack, &[]));
    for (round, protocol) in ["resp2", "resp3"].into_iter().enumerate() {
        let mut here = connect(&services[0], protocol);
        let mut there = connect(&services[1], protocol);
        let name = |what: &str| format!("{what}-{round}");

        let () = here.set(name("text"), "words").unwrap();
        assert_eq!(there.get::<_, String>(name("text")).unwrap(), "words");
        assert_eq!(there.incr::<_, _, i64>(name("count"), 41).unwrap(), 41);
        assert_eq!(here.incr::<_, _, i64>(name("count"), 1).unwrap(), 42);
        let () = here.mset(&[(name("one"), 1), (name("two"), 2)]).unwrap();
        let numbers: Vec<Option<i64>> =
            there.mget(&[name("one"), name("none"), name("two")]).unwrap();
        assert_eq!(numbers, [Some(1), None, Some(2)]);

        let fields = [("city", "Bern"), ("country", "Switzerland")];
        let () = here.hset_multiple(name("hash"), &fields).unwrap();
        let found: BTreeMap<String, String> = there.hgetall(name("hash")).unwrap();
        assert_eq!(found, fields.map(|(f, v)| (f.to_owned(), v.to_owned())).into());

        let members = [(1.5, "low"), (2.5, "middle"), (10.0, "high")];
        assert_eq!(here.zadd_multiple::<_, _, _, i64>(name("set"), &members).unwrap(), 3);
        let found: Vec<(String, f64)> =
            there.zrangebyscore_withscores(name("set"), 2, "+inf").unwrap();
        assert_eq!(found, [("middle".to_owned(), 2.5), ("high".to_owned(), 10.0)]);

        assert!(there.expire::<_, bool>(name("text"), 100).unwrap());
        let left: i64 = here.ttl(name("text")).unwrap();
        assert!((1..=100).contains(&left), "{left} s");

        let mut transaction = redis::pipe();
        transaction.atomic().incr(name("count"), 1).get(name("one"));
        let (count, one): (i64, i64) = transaction.query(&mut here).unwrap();
        assert_eq!((count, one), (43, 1));

        let wrong: RedisResult<i64> = here.incr(name("hash"), 1);
        assert!(wrong.unwrap_err().to_string().contains("WRONGTYPE"));

        let pattern = format!("*-{round}");
        let keys: BTreeSet<String> =
            here.scan_match::<_, String>(&pattern).unwrap().map(Result::unwrap).collect();
        let stored = ["text", "count", "one", "two", "hash", "set"].map(name);
        assert_eq!(keys, stored.into());
    }
}
