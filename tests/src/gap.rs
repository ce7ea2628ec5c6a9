//! How long clients get no answer while their server is killed and started again.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rackpool_testing::wait::{TIMEOUT, wait_until};

/// Runs `clients` clients while `restart` kills their server under load and starts it again.
/// Returns the longest time that a client went without an answer.
///
/// `client` makes the work of one client. The work is called repeatedly with rising numbers; it
/// checks the answers and reconnects after an error.
///
/// # Panics
/// When an answer is wrong ([`io::ErrorKind::InvalidData`]), or no more answers arrive.
#[must_use]
#[track_caller]
pub fn longest<W: FnMut(u64) -> io::Result<()> + Send>(
    clients: usize,
    client: impl Fn(usize) -> W,
    restart: impl FnOnce(),
) -> Duration {
    let over = AtomicBool::new(false);
    let answered: Vec<AtomicU64> = (0..clients).map(|_| AtomicU64::new(0)).collect();
    let counts = || answered.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let all: Vec<_> = answered
            .iter()
            .enumerate()
            .map(|(number, answered)| {
                let (work, over) = (client(number), &over);
                scope.spawn(move || work_on(work, answered, over))
            })
            .collect();
        wait_until("the load is on", TIMEOUT, || counts().iter().all(|count| *count >= 50));
        restart();
        let before = counts();
        wait_until("each client is answered again", TIMEOUT, || {
            counts().iter().zip(&before).all(|(now, before)| *now > before + 10)
        });
        over.store(true, Ordering::Relaxed);
        let gaps = all.into_iter().map(|client| match client.join() {
            Ok(Ok(gap)) => gap,
            Ok(Err(wrong)) => panic!("{wrong}"),
            Err(panic) => std::panic::resume_unwind(panic),
        });
        gaps.max().unwrap_or_default()
    })
}

fn work_on(
    mut work: impl FnMut(u64) -> io::Result<()>,
    answered: &AtomicU64,
    over: &AtomicBool,
) -> io::Result<Duration> {
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    for number in 0.. {
        match work(number) {
            Ok(()) => {
                longest = longest.max(last.elapsed());
                last = Instant::now();
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        if over.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(longest)
}
