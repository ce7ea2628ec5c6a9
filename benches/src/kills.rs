//! The effect on a client of another client that is killed in the middle of its work: the latency
//! of operations while the daemon reclaims what the dead client held, compared with the same time
//! after a client that closed by itself.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};

use crate::helper::Helper;
use crate::measure::{median, percentile};
use crate::swap::RACKS;
use crate::table::Table;

/// The argument with which this program is a client that is killed.
pub const ARGUMENT: &str = "--victim";
/// Clients that are killed, and as many that close.
const ROUNDS: usize = 40;
/// How long the other client is observed: the daemon reclaims everything of a killed client before
/// its end.
const WATCHED: Duration = Duration::from_millis(50);
/// Objects that the ending client has in use all the time. Those of a killed client stay in use, as
/// they should.
const HELD: usize = 64;
const SIZES: [u64; 5] = [16, 100, 3000, 40_000, 100_000];

/// A statistic of the sorted times of all turns.
type Statistic = fn(&[f64]) -> f64;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section(&format!(
        "a turn of a client while another one in its rack is killed, against while it leaves \
         (medians of {ROUNDS})"
    ));
    let mut options = ClusterOptions::ephemeral()?;
    // Swaps would make remote objects local.
    options.daemon_arguments = vec![("--swap", "off".into())];
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let open = |rack| Pool::open(ClientOptions::new(&dir, rack));
    let (pool, far) = (open(RACKS[0])?, open(RACKS[1])?);
    let objects = [pool.alloc(256)?, far.alloc(256)?];
    let arguments = [dir.display().to_string(), objects[1].raw().to_string()];
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let watch = |end: fn(Helper) -> anyhow::Result<()>| {
            let mut victim = Helper::start(ARGUMENT, &arguments)?;
            victim.hear()?;
            let turns = turns_during(&pool, objects, || end(victim))?;
            until_gone(&pool)?;
            anyhow::Ok(turns)
        };
        rounds.push((watch(Helper::kill)?, watch(Helper::leave)?));
    }
    let figures: [(&str, f64, Statistic); 4] = [
        ("mean", 1.1, |turns| turns.iter().sum::<f64>() / turns.len() as f64),
        ("p50", 1.1, |turns| percentile(turns, 500)),
        ("p99", 1.2, |turns| percentile(turns, 990)),
        ("longest", 1.5, |turns| turns.last().copied().unwrap_or(f64::NAN)),
    ];
    for (name, limit, figure) in figures {
        let both: Vec<(f64, f64)> =
            rounds.iter().map(|(killed, left)| (figure(killed), figure(left))).collect();
        // The ratio is taken in each round, since the host's speed changes between rounds.
        let ratio = median(both.iter().map(|(killed, left)| killed / left).collect());
        let detail = format!(
            "{:.1} us against {:.1} us",
            median(both.iter().map(|both| both.0).collect()),
            median(both.iter().map(|both| both.1).collect())
        );
        table.at_most(name, ratio, limit, "x", &detail);
    }
    drop((pool, far));
    cluster.stop()
}

/// The sorted times in microseconds of the turns of a client's work that follow the event
/// `happens`.
fn turns_during(
    pool: &Pool,
    objects: [GlobalAddr; 2],
    happens: impl FnOnce() -> anyhow::Result<()> + Send,
) -> anyhow::Result<Vec<f64>> {
    let mut turns = Vec::new();
    let done = std::thread::scope(|scope| {
        let event = scope.spawn(happens);
        let start = Instant::now();
        while start.elapsed() < WATCHED {
            let began = Instant::now();
            turn(pool, objects)?;
            turns.push(began.elapsed().as_secs_f64() * 1e6);
        }
        event.join().ok().context("who ends the client panicked")?
    });
    turns.sort_by(f64::total_cmp);
    done.map(|()| turns)
}

/// One turn: writes and reads in both racks, allocates and frees.
fn turn(pool: &Pool, objects: [GlobalAddr; 2]) -> anyhow::Result<()> {
    let mut bytes = [7; 256];
    for addr in objects {
        pool.write(addr, &bytes)?;
        pool.read(addr, &mut bytes)?;
    }
    let addr = pool.alloc(3000)?;
    Ok(pool.free(addr)?)
}

/// Waits until the daemon has no client but those of this process.
fn until_gone(pool: &Pool) -> anyhow::Result<()> {
    let start = Instant::now();
    while pool.rack_status()?.clients > 1 {
        anyhow::ensure!(start.elapsed() < Duration::from_secs(10), "a client does not go");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Runs as a client that holds much and is busy at any time. Arguments: the pool's folder, and an
/// address in the other rack.
pub fn be_victim(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut next = || arguments.next().context("an argument");
    let (dir, far) = (PathBuf::from(next()?), GlobalAddr::from_raw(next()?.parse()?));
    let pool = Pool::open(ClientOptions::new(dir, RackId(0)))?;
    let mut held = Vec::new();
    for size in SIZES.into_iter().cycle().take(HELD) {
        held.push((pool.alloc(size)?, size));
    }
    println!("ready");
    let over = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    let mut bytes = [0; 64];
    for at in (0..held.len()).cycle() {
        pool.read(far, &mut bytes)?;
        let (addr, size) = &mut held[at];
        pool.free(*addr)?;
        *addr = pool.alloc(*size)?;
        if over.is_finished() {
            break;
        }
    }
    held.into_iter().try_for_each(|(addr, _)| pool.free(addr))?;
    pool.close();
    Ok(())
}
