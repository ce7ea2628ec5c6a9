use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_sync::atomic::{AtomicU32, Ordering};
use rackpool_sync::futex;

use super::timing::{Measured, least, ns_each, pin};

/// A cache line that two cores write in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct PingPong {
    /// The two processors.
    pub cpus: [u32; 2],
    /// Time of one way in ns.
    pub one_way_ns: Measured<f64>,
}

/// Number of processors that are paired with the first one.
const PARTNERS: usize = 4;
const RUNS: usize = 7;
const ROUNDS: u32 = 5_000;
const WAKES: u32 = 60;
/// A partner that does not answer for this long has lost its core to another process.
const STUCK: Duration = Duration::from_millis(500);
/// A thread that is about to sleep is asleep after this time.
const FALL_ASLEEP: Duration = Duration::from_micros(200);
const TOO_BUSY: &str = "the other core did not answer: this computer is too busy";

/// Returns the time of the shortest system call in ns.
pub(super) fn syscall_ns() -> f64 {
    const CALLS: u32 = 20_000;
    let run = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            std::hint::black_box(nix::unistd::getppid());
        }
        ns_each(start, CALLS)
    };
    least((0..RUNS).map(run))
}

/// Pairs the first processor with others that are spread over the range of numbers.
pub(super) fn ping_pongs(cpus: &[u32]) -> Vec<PingPong> {
    let Some((first, others)) = cpus.split_first() else { return Vec::new() };
    let step = others.len().div_ceil(PARTNERS).max(1);
    let partners = others.iter().step_by(step);
    partners
        .map(|other| PingPong { cpus: [*first, *other], one_way_ns: exchange(*first, *other) })
        .collect()
}

/// Returns the median time from the call that wakes a thread, asleep on another processor, until
/// that thread runs, in ns. The best cases would be those of a core that had not entered an idle
/// state.
pub(super) fn futex_wake_ns(cpus: &[u32]) -> Measured<f64> {
    let [waking, sleeping, ..] = *cpus else { return Err("there is one processor".into()) };
    may_run(waking)?;
    may_run(sleeping)?;
    // Odd while the sleeper is about to sleep or asleep, until the waker changes it.
    let word = Arc::new(AtomicU32::new(0));
    let sleeper = {
        let word = Arc::clone(&word);
        std::thread::spawn(move || -> Measured<Vec<Instant>> {
            pin(sleeping)?;
            (0..WAKES).map(|wake| sleep(&word, 2 * wake)).collect()
        })
    };
    let waker = std::thread::spawn(move || -> Measured<Vec<Instant>> {
        pin(waking)?;
        (0..WAKES).map(|wake| rouse(&word, 2 * wake)).collect()
    });
    let failed = |_| "a thread failed".to_owned();
    let (called, ran) = (waker.join().map_err(failed)??, sleeper.join().map_err(failed)??);
    let mut took: Vec<Duration> = called
        .iter()
        .zip(&ran)
        .map(|(called, ran)| ran.saturating_duration_since(*called))
        .collect();
    took.sort_unstable();
    let median = took.get(took.len() / 2).ok_or("nothing was run")?;
    Ok(median.as_secs_f64() * 1e9)
}

/// Sleeps until the waker changes the word. Returns the time of waking up.
fn sleep(word: &AtomicU32, even: u32) -> Measured<Instant> {
    // SYNC: pairs with the load in `spin_until`, called by `rouse`.
    word.store(even + 1, Ordering::Release);
    let start = Instant::now();
    // SYNC: pairs with the store in `rouse`.
    while word.load(Ordering::Acquire) == even + 1 {
        futex::wait(word, even + 1, STUCK);
        if start.elapsed() > STUCK {
            return Err(TOO_BUSY.into());
        }
    }
    Ok(Instant::now())
}

/// Waits until the sleeper is surely asleep, then wakes it. Returns the time of the call.
fn rouse(word: &AtomicU32, even: u32) -> Measured<Instant> {
    if !spin_until(word, even + 1) {
        return Err(TOO_BUSY.into());
    }
    let seen = Instant::now();
    while seen.elapsed() < FALL_ASLEEP {
        std::hint::spin_loop();
    }
    let called = Instant::now();
    // SYNC: pairs with the load in `sleep`.
    word.store(even + 2, Ordering::Release);
    futex::wake_all(word);
    Ok(called)
}

/// Returns whether a thread may run on the processor.
fn may_run(cpu: u32) -> Measured<()> {
    std::thread::spawn(move || pin(cpu)).join().map_err(|_| "a thread failed".to_owned())?
}

/// Returns half the round-trip time between threads on two processors, in ns.
fn exchange(first: u32, second: u32) -> Measured<f64> {
    may_run(first)?;
    may_run(second)?;
    let run = |_| {
        let word = Arc::new(AtomicU32::new(0));
        let answering = {
            let word = Arc::clone(&word);
            std::thread::spawn(move || -> Measured<()> {
                pin(second)?;
                (0..ROUNDS).try_for_each(|round| turn(&word, 2 * round + 1))
            })
        };
        let asking = std::thread::spawn(move || -> Measured<f64> {
            pin(first)?;
            // The clock starts when the partner runs.
            turn(&word, 0)?;
            turn(&word, 2)?;
            let start = Instant::now();
            (2..ROUNDS).try_for_each(|round| turn(&word, 2 * round))?;
            Ok(ns_each(start, ROUNDS - 2) / 2.0)
        });
        let measured = asking.join().map_err(|_| "a thread failed".to_owned())?;
        answering.join().map_err(|_| "a thread failed".to_owned())??;
        measured
    };
    // One undisturbed run is enough; a second failure is no accident.
    let mut best = f64::INFINITY;
    let mut failed = None;
    for measured in (0..RUNS).map(run) {
        match measured {
            Ok(found) => best = best.min(found),
            Err(reason) if failed.is_none() => failed = Some(reason),
            Err(_) => break,
        }
    }
    match failed {
        Some(reason) if best.is_infinite() => Err(reason),
        _ => Ok(best),
    }
}

/// Waits until the word is `mine`, then increments it.
fn turn(word: &AtomicU32, mine: u32) -> Measured<()> {
    if !spin_until(word, mine) {
        return Err(TOO_BUSY.into());
    }
    // SYNC: pairs with the load in `spin_until` of the partner.
    word.store(mine + 1, Ordering::Release);
    Ok(())
}

fn spin_until(word: &AtomicU32, value: u32) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..10_000 {
            // SYNC: pairs with the stores in `turn` and `sleep` of the partner.
            if word.load(Ordering::Acquire) == value {
                return true;
            }
            // No pause instruction: its time would add to that of the cache line.
        }
        if start.elapsed() > STUCK {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_of_this_computer_are_plausible() {
        let cpus =
            super::super::super::facts::Facts::gather(&rackpool_shm::host::HostFiles::here())
                .usable_cpus;
        let call = syscall_ns();
        assert!(call > 1.0 && call < 1e6, "{call} ns for a system call");
        for pair in ping_pongs(&cpus) {
            // On a busy computer the measurement may fail, but it is never wrong.
            if let Ok(ns) = pair.one_way_ns {
                assert!(ns > 1.0 && ns < 1e8, "{ns} ns for a cache line");
            }
        }
        if let Ok(ns) = futex_wake_ns(&cpus) {
            assert!(ns > 100.0 && ns < 5e8, "{ns} ns for a wake");
        }
    }

    #[test]
    fn one_processor_has_nobody_to_talk_to() {
        assert_eq!(ping_pongs(&[3]), []);
        assert_eq!(ping_pongs(&[]), []);
        assert!(futex_wake_ns(&[0]).is_err());
    }

    #[test]
    fn a_processor_that_is_not_there_is_a_reason_not_a_number() {
        let pairs = ping_pongs(&[0, 100_000]);
        assert!(pairs[0].one_way_ns.is_err());
    }
}
