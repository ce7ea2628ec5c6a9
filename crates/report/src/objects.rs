//! The part of a demo that shows the object store.

use rackpool_model::ByteSize;
use rackpool_output::numbers::latency;
use serde::{Deserialize, Serialize};

/// Times of puts and gets of objects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Objects {
    /// A sentence that describes the run.
    pub setting: String,
    /// The times of each size, from small to large.
    pub sizes: Vec<ObjectTimes>,
}

/// The median times of the objects of one size, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectTimes {
    /// The length of an object in bytes.
    pub bytes: u64,
    /// Number of objects.
    pub objects: u64,
    /// A put.
    pub put_ns: u64,
    /// A get in the rack of the object.
    pub get_ns: u64,
    /// The first get in another rack, which transfers the object.
    pub first_get_ns: u64,
    /// A later get in that rack, of its replica.
    pub later_get_ns: u64,
}

impl ObjectTimes {
    /// The size as text.
    #[must_use]
    pub fn size(&self) -> String {
        ByteSize(self.bytes).to_string()
    }

    /// The times as text.
    #[must_use]
    pub fn times(&self) -> String {
        let [put, get, first, later] = self.all().map(latency);
        format!("put {put}, get {get}; in another rack the first get {first}, later ones {later}")
    }

    /// Put, get, first get in another rack, later gets there.
    pub(super) fn all(&self) -> [f64; 4] {
        // No time is zero on a logarithmic axis.
        [self.put_ns, self.get_ns, self.first_get_ns, self.later_get_ns].map(|ns| ns.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_words() {
        let [put_ns, get_ns, first_get_ns, later_get_ns] = [1_240_000, 0, 3_100_000, 1250];
        let times =
            ObjectTimes { bytes: 16 << 20, objects: 4, put_ns, get_ns, first_get_ns, later_get_ns };
        assert_eq!(times.size(), "16 MiB");
        let expected =
            "put 1.24 ms, get 1 ns; in another rack the first get 3.10 ms, later ones 1.25 µs";
        assert_eq!(times.times(), expected);
    }
}
