//! Futexes on shared words, within and between processes.

use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

use crate::atomic::AtomicU32;

/// Blocks until another thread calls [`wake_all`] on the word; does not block if the word does not
/// hold `expected`. Returns after `timeout` at the latest and may return early, so the caller must
/// check its condition again.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // A changed word, a signal and the timeout mean the same to the caller: check again.
    let _ = futex::wait(word, Flags::empty(), expected, Some(&timeout));
}

/// Wakes all threads that sleep on the word, in every process that maps it.
pub fn wake_all(word: &AtomicU32) {
    // The word is mapped, so no error is possible that a caller could handle.
    let _ = futex::wake(word, Flags::empty(), i32::MAX as u32);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::atomic::Ordering;

    #[test]
    fn a_changed_word_does_not_sleep() {
        let word = AtomicU32::new(1);
        let start = Instant::now();
        wait(&word, 0, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_sleeper_is_woken() {
        let word = Arc::new(AtomicU32::new(0));
        let sleeper = {
            let word = Arc::clone(&word);
            std::thread::spawn(move || {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0, Duration::from_secs(60));
                }
            })
        };
        word.store(1, Ordering::Release);
        wake_all(&word);
        sleeper.join().unwrap();
    }
}
