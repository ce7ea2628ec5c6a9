//! Log messages of daemons that show that an object was returned twice, or that a daemon found data
//! that it does not understand.

use std::collections::BTreeMap;

use crate::pool::TestPool;

const ODD: [&str; 6] =
    ["not in use", "freed twice", "nothing is known", "ERROR", "panicked", "out of use"];

/// Expected: a daemon that is executed instruction by instruction may take longer than a lease to
/// answer.
const NOT_ODD: &str = "is cut off (";

/// The log messages of a pool's daemons.
#[derive(Debug, Default)]
pub struct Log {
    /// Bytes of each rack's log that were checked already.
    seen: BTreeMap<u16, usize>,
}

impl Log {
    /// New messages that no daemon should have logged.
    pub fn odd(&mut self, pool: &TestPool) -> Vec<String> {
        let mut odd = Vec::new();
        for rack in 0..pool.cluster.options().all_daemons() {
            let path = pool.dir().join(format!("rack-{rack}.log"));
            let text = std::fs::read_to_string(path).expect("a daemon's log");
            let seen = self.seen.insert(rack, text.len()).unwrap_or(0);
            let new = text.get(seen..).unwrap_or_default().lines();
            let is_odd =
                |line: &&str| ODD.iter().any(|odd| line.contains(odd)) && !line.contains(NOT_ODD);
            odd.extend(new.filter(is_odd).map(str::to_owned));
        }
        odd
    }
}
