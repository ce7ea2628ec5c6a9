//! What `rackpool-test-client churn` has announced.

use std::collections::BTreeMap;

use rackpool_client::{FreeError, GlobalAddr, Pool};

use crate::client::parse_addr;
use crate::contents;
use crate::pool::{PAGE, TestPool};

/// What a churning client had announced when it was killed.
#[derive(Debug, Default)]
pub struct Announced {
    /// Objects in use, with their sizes.
    pub live: BTreeMap<GlobalAddr, u64>,
    /// Objects it was about to free: free by now, or not.
    pub doubtful: BTreeMap<GlobalAddr, u64>,
}

/// Bytes that an object of `bytes` takes.
#[must_use]
pub const fn taken(bytes: u64) -> u64 {
    if bytes > PAGE {
        bytes.next_multiple_of(PAGE)
    } else if bytes < 16 {
        16
    } else {
        bytes.next_power_of_two()
    }
}

impl Announced {
    /// From the lines it has said.
    #[must_use]
    #[track_caller]
    pub fn of(said: &[String]) -> Self {
        let mut announced = Self::default();
        for line in said {
            let words: Vec<&str> = line.split(' ').collect();
            let addr = parse_addr(words[1]);
            match words[0] {
                "+" => {
                    // Another thread may have got it before the first one could say that it is
                    // free.
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

    /// Bytes that the objects in use take.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live.values().map(|bytes| taken(*bytes)).sum()
    }

    /// Checks the contents of all objects in use and frees them, from this rack.
    #[track_caller]
    pub fn check_and_free(&self, pool: &TestPool, rack: u16) {
        let pool = pool.open(rack);
        for (addr, bytes) in &self.live {
            let mut found = vec![0; usize::try_from(*bytes).expect("a small size")];
            pool.read(*addr, &mut found).expect("an object in use");
            assert_eq!(contents::difference(addr.raw(), &found), None, "{bytes} B at {addr}");
            pool.free(*addr).expect("an object in use");
        }
        self.free_doubtful(&pool);
        pool.close();
    }

    fn free_doubtful(&self, pool: &Pool) {
        for addr in self.doubtful.keys() {
            match pool.free(*addr) {
                Ok(()) | Err(FreeError::NotAllocated(_) | FreeError::Access(_)) => {}
                // Its page may be used for something else by now.
                Err(FreeError::NotAnObject { .. }) => {}
                Err(error) => panic!("{addr}: {error}"),
            }
        }
    }
}

/// Whether `extra` bytes are explained by at most so many objects of these sizes.
#[must_use]
pub fn is_explained(extra: u64, objects: usize, sizes: &[u64]) -> bool {
    extra == 0
        || objects > 0
            && sizes.iter().any(|size| {
                extra.checked_sub(taken(*size)).is_some_and(|r| is_explained(r, objects - 1, sizes))
            })
}
