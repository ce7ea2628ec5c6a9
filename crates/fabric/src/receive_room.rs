use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Receive room in bytes if the size of the processor's cache is unknown.
const DEFAULT_BYTES: u64 = 1 << 20;

/// The memory in which all peers' data waits until it is processed. The room is a part of the
/// last-level cache into which devices write, so that the data is still cached when it is used
/// (Farshin et al., ATC 2020).
#[derive(Clone, Debug)]
pub struct ReceiveRoom {
    bytes: u64,
    used: Arc<Mutex<u64>>,
}

/// The part of the room that one user has. Dropping it returns the part.
#[derive(Debug)]
pub struct Portion {
    bytes: u64,
    used: Arc<Mutex<u64>>,
}

impl ReceiveRoom {
    /// A room of `bytes` bytes; 1 MiB if `bytes` is 0, that is, unknown.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let bytes = if bytes == 0 { DEFAULT_BYTES } else { bytes };
        Self { bytes, used: Arc::default() }
    }

    /// Takes a part for a new user. `sized` gets half of the room that is left, so that later users
    /// get some too, and returns the bytes to take. It may return the user's minimum even if less
    /// was offered: all parts together then exceed the room by at most the sum of these minimums.
    pub fn take(&self, sized: impl FnOnce(u64) -> u64) -> Portion {
        let mut used = lock(&self.used);
        let bytes = sized(self.bytes.saturating_sub(*used) / 2);
        *used += bytes;
        Portion { bytes, used: Arc::clone(&self.used) }
    }
}

impl Portion {
    /// Size of the part, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        *lock(&self.used) -= self.bytes;
    }
}

fn lock(used: &Mutex<u64>) -> MutexGuard<'_, u64> {
    used.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = 16;
    const MOST: u64 = 128;

    fn take(room: &ReceiveRoom) -> Portion {
        room.take(|offered| offered.clamp(LEAST, MOST))
    }

    #[test]
    fn however_many_come_they_have_the_room_and_the_least_of_each_at_most() {
        for bytes in [1, 100, 1000, 10_000] {
            let room = ReceiveRoom::new(bytes);
            let mut portions = Vec::new();
            for count in 1..100 {
                portions.push(take(&room));
                let all: u64 = portions.iter().map(Portion::bytes).sum();
                assert!(all <= bytes + count * LEAST, "{all} of {bytes} for {count}");
            }
            assert!(portions.iter().all(|portion| (LEAST..=MOST).contains(&portion.bytes())));
        }
    }

    #[test]
    fn who_leaves_makes_room() {
        let room = ReceiveRoom::new(256);
        let first = take(&room);
        let second = take(&room);
        assert_eq!((first.bytes(), second.bytes()), (128, 64));
        drop(first);
        assert_eq!(take(&room.clone()).bytes(), 96);
        drop(second);
        assert_eq!(*lock(&room.used), 0);
    }

    #[test]
    fn an_unknown_cache_has_a_usual_one() {
        assert_eq!(ReceiveRoom::new(0).take(|offered| offered).bytes(), DEFAULT_BYTES / 2);
    }
}
