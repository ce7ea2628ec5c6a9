//! The objects that `rackpool-test-client churn` has announced.

use std::collections::BTreeMap;
use std::time::Duration;

use rackpool_client::GlobalAddr;

use crate::census::Census;
use crate::client::parse_addr;
use crate::pool::TestPool;
use crate::{census, contents};
use rackpool_testing::wait::{TIMEOUT, wait_until};

/// The objects that a churning client had announced when it was killed.
#[derive(Debug, Default)]
pub struct Announced {
    /// Objects in use, with their sizes in bytes.
    pub live: BTreeMap<GlobalAddr, u64>,
    /// Objects that the client was about to free: each may be free or in use.
    pub doubtful: BTreeMap<GlobalAddr, u64>,
}

impl Announced {
    /// Parses the lines that the client has printed.
    #[must_use]
    #[track_caller]
    pub fn of(said: &[String]) -> Self {
        let mut announced = Self::default();
        for line in said {
            let words: Vec<&str> = line.split(' ').collect();
            let addr = parse_addr(words[1]);
            match words[0] {
                "+" => {
                    // Another thread may announce the object again before the thread that freed it
                    // announces the free.
                    announced.doubtful.remove(&addr);
                    let bytes = words[2].parse().expect("a size");
                    let before = announced.live.insert(addr, bytes);
                    assert_eq!(before, None, "{addr} was handed out twice");
                }
                "-" => {
                    let bytes = announced.live.remove(&addr).expect("an object in use");
                    announced.doubtful.insert(addr, bytes);
                }
                _ => drop(announced.doubtful.remove(&addr)),
            }
        }
        announced
    }

    /// Waits until the objects in use, other than those in `before`, are the announced ones.
    ///
    /// Each of the client's threads may hold one more object: one that `alloc` had returned and the
    /// thread had not announced when it was killed. These are returned. Such an object is an
    /// ordinary object in use: the pool does not reclaim it.
    #[track_caller]
    pub fn wait_until_all_else_is_free(
        &self,
        pool: &TestPool,
        timeout: Duration,
        before: &Census,
        threads: usize,
    ) -> Vec<GlobalAddr> {
        wait_until("the client is gone", timeout, || before.newcomers_are_gone(pool));
        wait_until("nothing is on its way", timeout, || census::exchanges_have_ended(pool));
        let found = census::objects(pool);
        let lost: Vec<_> = self.live.keys().filter(|addr| !found.contains_key(addr)).collect();
        assert!(lost.is_empty(), "free although announced as in use: {lost:?}");
        let unknown: Vec<_> = found
            .into_keys()
            .filter(|addr| !before.objects.contains_key(addr))
            .filter(|addr| !self.live.contains_key(addr) && !self.doubtful.contains_key(addr))
            .collect();
        assert!(unknown.len() <= threads, "in use and nobody's: {unknown:?}");
        unknown
    }

    /// Checks the contents of all announced objects, then frees them and the objects in `in_hand`
    /// from a client of this rack. Afterwards the objects in use are those in `before`.
    #[track_caller]
    pub fn check_and_free(
        &self,
        pool: &TestPool,
        rack: u16,
        in_hand: &[GlobalAddr],
        before: &Census,
    ) {
        let own = pool.open(rack);
        for (addr, bytes) in &self.live {
            let mut found = vec![0; usize::try_from(*bytes).expect("a small size")];
            own.read(*addr, &mut found).expect("an object in use");
            assert_eq!(contents::difference(addr.raw(), &found), None, "{bytes} B at {addr}");
            own.free(*addr).expect("an object that was announced");
        }
        let in_use = census::objects(pool);
        for addr in self.doubtful.keys().filter(|addr| in_use.contains_key(addr)) {
            own.free(*addr).expect("an object that was being freed, and is in use");
        }
        for addr in in_hand {
            own.free(*addr).expect("an object in a client's hands");
        }
        own.close();
        wait_until("all is as before", TIMEOUT, || census::objects(pool) == before.objects);
    }
}
