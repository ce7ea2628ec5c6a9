//! How long clients get no answer while their server is killed and started again.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// Clients of one server.
const CLIENTS: usize = 4;
/// A wait that exceeds this fails the benchmark.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Runs clients while `restart` kills their server under load and starts it again. Returns the
/// longest time in seconds that a client went without an answer.
///
/// `client` makes the work of one client, which checks the answers ([`io::ErrorKind::InvalidData`]
/// for a wrong one) and reconnects after an error.
pub(crate) fn longest<W: FnMut(u64) -> io::Result<()> + Send>(
    client: impl Fn(usize) -> W,
    restart: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let over = AtomicBool::new(false);
    let answered = [const { AtomicU64::new(0) }; CLIENTS];
    let counts = || answered.each_ref().map(|count| count.load(Ordering::Relaxed));
    let wait_for_more = |before: [u64; CLIENTS], more: u64| {
        let deadline = Instant::now() + TIMEOUT;
        while counts().iter().zip(before).any(|(now, before)| *now < before + more) {
            ensure!(Instant::now() < deadline, "a client is not answered");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let mut all = Vec::new();
        for (number, answered) in answered.iter().enumerate() {
            let (work, over) = (client(number), &over);
            all.push(scope.spawn(move || work_on(work, answered, over)));
        }
        let done = wait_for_more([0; CLIENTS], 1000)
            .and_then(|()| restart())
            .and_then(|()| wait_for_more(counts(), 10));
        over.store(true, Ordering::Relaxed);
        let mut longest = 0.0_f64;
        for client in all {
            let gap = client.join().ok().context("a client panicked")??;
            longest = longest.max(gap.as_secs_f64());
        }
        done.map(|()| longest)
    })
}

fn work_on(
    mut work: impl FnMut(u64) -> io::Result<()>,
    answered: &AtomicU64,
    over: &AtomicBool,
) -> io::Result<Duration> {
    let (mut longest, mut last, mut number) = (Duration::ZERO, Instant::now(), 0);
    while !over.load(Ordering::Relaxed) {
        match work(number) {
            Ok(()) => {
                longest = longest.max(last.elapsed());
                last = Instant::now();
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        number += 1;
    }
    Ok(longest)
}
