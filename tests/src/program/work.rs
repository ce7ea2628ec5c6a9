//! Working while other clients are killed.

use std::io::BufRead;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use anyhow::ensure;
use rackpool_client::{ClientOptions, GlobalAddr, Pool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Arguments, say};
use crate::contents;

/// The most objects that the program keeps.
const KEEP: usize = 40;
/// Sizes that it allocates: small objects, large ones, and runs of pages.
const SIZES: [u64; 6] = [24, 100, 700, 3000, 10_000, 150_000];

/// `work SEED`: allocates, writes, reads, adds and frees without a pause. Ends with an error when
/// an operation is refused or a byte is wrong. Lines of the standard input:
///
/// | request | does | says |
/// |---|---|---|
/// | `hold` | checks all its objects, closes the pool and waits | `held ADDR:BYTES...` |
/// | `go` | opens the pool again and goes on | `ok` |
///
/// At the end of its input the program frees everything.
pub(super) fn work(options: &ClientOptions, arguments: &mut Arguments) -> anyhow::Result<()> {
    let mut random = SmallRng::seed_from_u64(arguments.number("SEED")?);
    let lines = requests();
    let mut pool = Pool::open(options.clone())?;
    let counter = pool.alloc(24)?;
    let mut held: Vec<(GlobalAddr, u64)> = Vec::new();
    pool.write(counter, &[0; 8])?;
    for count in 0_u64.. {
        match lines.try_recv() {
            Ok(request) if request == "hold" => {
                held.iter().try_for_each(|object| check(&pool, *object))?;
                pool.close();
                let all = held.iter().copied().chain([(counter, 24)]);
                let all = all.map(|(addr, bytes)| format!(" {:x}:{bytes}", addr.raw()));
                say(&format!("held{}", all.collect::<String>()))?;
                ensure!(lines.recv().is_ok_and(|request| request == "go"), "held for ever");
                pool = Pool::open(options.clone())?;
                say("ok")?;
            }
            Ok(request) => anyhow::bail!("there is no request '{request}'"),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => break,
        }
        let found = pool.fetch_and_add(counter, 1)?;
        ensure!(found == count, "{found} additions of {count}");
        turn(&pool, &mut held, &mut random)?;
        // The clients that are to be killed need the cores too.
        std::thread::sleep(Duration::from_micros(200));
    }
    held.iter().try_for_each(|object| check(&pool, *object))?;
    held.iter().map(|(addr, _)| *addr).chain([counter]).try_for_each(|addr| pool.free(addr))?;
    Ok(())
}

fn requests() -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn turn(
    pool: &Pool,
    held: &mut Vec<(GlobalAddr, u64)>,
    random: &mut SmallRng,
) -> anyhow::Result<()> {
    if held.len() < KEEP && random.random_bool(0.55) {
        let bytes = SIZES[random.random_range(0..SIZES.len())];
        let addr = pool.alloc(bytes)?;
        ensure!(held.iter().all(|(other, _)| *other != addr), "{addr} was handed out twice");
        pool.write(addr, &contents::of(addr.raw(), usize::try_from(bytes)?))?;
        held.push((addr, bytes));
    } else if !held.is_empty() {
        let object = held.swap_remove(random.random_range(0..held.len()));
        check(pool, object)?;
        pool.free(object.0)?;
    }
    Ok(())
}

fn check(pool: &Pool, (addr, bytes): (GlobalAddr, u64)) -> anyhow::Result<()> {
    let mut found = vec![0; usize::try_from(bytes)?];
    pool.read(addr, &mut found)?;
    let wrong = contents::difference(addr.raw(), &found);
    ensure!(wrong.is_none(), "{addr} differs at {wrong:?}");
    Ok(())
}
