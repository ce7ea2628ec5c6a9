//! Raises one counter from many threads in two racks, and checks the total.
//!
//! A fetch-and-add takes effect at most once, in whatever rack the counter's page lies. A call may
//! stay without an answer when a daemon is killed; the program shows how such calls are counted.
//! Run each of these in a terminal of its own, and kill a `rackpool-daemon` meanwhile:
//! `rackpool up` restarts it.
//!
//! ```sh
//! cargo run --release --bin rackpool -- up --racks 2
//! cargo run --release -p rackpool-examples --bin counter -- --rounds 1000000
//! ```
//!
//! The counter stays in the pool, and the next run raises it further; run one at a time.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use rackpool_client::zerocopy::little_endian::U64;
use rackpool_client::{AccessError, ClientOptions, DaemonError, GlobalAddr, Pool, RackId, within};

const ROOT: &str = "example-counter";
/// How long a thread goes on without any answer.
const GIVE_UP: Duration = Duration::from_secs(30);

/// Raise one counter from many threads in two racks.
#[derive(Parser)]
struct Options {
    /// Folder of the pool.
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm/rackpool")]
    dir: PathBuf,
    /// Number of threads in each rack.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=500))]
    threads: u16,
    /// How often each thread raises the counter.
    #[arg(long, default_value_t = 10_000)]
    rounds: u64,
    /// Milliseconds that one call may take.
    #[arg(long, default_value_t = 2000)]
    limit_ms: u64,
}

/// Calls by what is known of their outcome.
#[derive(Clone, Copy, Default)]
struct Tally {
    done: u64,
    unknown: u64,
}

/// Finds the counter by its root, or creates it.
fn open_or_create(pool: &Pool) -> Result<GlobalAddr> {
    if let Some(counter) = pool.root(ROOT)? {
        return Ok(counter);
    }
    let made = pool.alloc(8)?;
    pool.write_value(made, &U64::new(0))?;
    let counter = pool.set_root(ROOT, None, Some(made))?;
    if !counter.changed {
        pool.free(made)?;
    }
    counter.addr.context("the counter's root was removed meanwhile")
}

/// Raises the counter `rounds` times, each time within `limit`.
fn raise(pool: &Pool, counter: GlobalAddr, rounds: u64, limit: Duration) -> Result<Tally> {
    let (mut tally, mut answered) = (Tally::default(), Instant::now());
    while tally.done + tally.unknown < rounds {
        match within(limit, || pool.fetch_and_add(counter, 1)) {
            Ok(_) => (tally.done, answered) = (tally.done + 1, Instant::now()),
            // A daemon ended during the call, or the limit passed: the call may have been executed,
            // or may still be. A second call might count twice, so there is none.
            Err(
                AccessError::Indeterminate(_)
                | AccessError::PageBusy(..)
                | AccessError::Daemon(DaemonError::Unavailable),
            ) => tally.unknown += 1,
            // The counter's rack is away and has not executed the call: try again.
            Err(AccessError::RackUnavailable(_)) => thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(error.into()),
        }
        ensure!(answered.elapsed() < GIVE_UP, "no answer for {GIVE_UP:?}: see `rackpool status`");
    }
    Ok(tally)
}

fn main() -> Result<()> {
    let Options { dir, threads, rounds, limit_ms } = Options::parse();
    let limit = Duration::from_millis(limit_ms);
    // One process opens the pool in both racks: they are on one host here.
    let open = |rack| Pool::open(ClientOptions::new(&dir, RackId(rack)).threads(threads + 1));
    let racks = [open(0)?, open(1)?];
    let counter = open_or_create(&racks[0])?;
    let read = || racks[0].read_value::<U64>(counter).map(U64::get);

    let before = read()?;
    let tallies = thread::scope(|scope| -> Result<Vec<Tally>> {
        let start = |pool| scope.spawn(move || raise(pool, counter, rounds, limit));
        let pools = racks.iter().flat_map(|pool| (0..threads).map(move |_| pool));
        let running: Vec<_> = pools.map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().map_err(|_| anyhow!("a thread panicked"))?
        };
        running.into_iter().map(join).collect()
    })?;
    let raised = read()? - before;

    let done: u64 = tallies.iter().map(|tally| tally.done).sum();
    let unknown: u64 = tallies.iter().map(|tally| tally.unknown).sum();
    ensure!(
        (done..=done + unknown).contains(&raised),
        "the counter rose by {raised}, by {done} calls and {unknown} of unknown outcome: \
         does another program raise it?"
    );
    println!("the counter rose by {raised}: {done} calls, and {unknown} of unknown outcome");
    Ok(())
}
