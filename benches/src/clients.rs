//! Many client processes on two cores: together they must get as much done as two.
//!
//! Nothing is bound to a core: clients and daemons share the two as the kernel sees fit. Each
//! client asks, waits for its answer and asks again, all from one moment to another. What is done
//! between the two counts, whenever a client gets a core: of sixteen on one core each waits tens of
//! milliseconds for its first turn, and for the one in which it notices that time is up.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use rackpool_cli::cluster::{Cluster, ClusterOptions};
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};

use crate::helper::{Helper, at, sleep_until, soon};
use crate::measure::median;
use crate::table::Table;

/// The argument with which this program is one of the clients.
pub const ARGUMENT: &str = "--client";
/// How many clients; the first number is what the others are held against.
const CLIENTS: [usize; 4] = [2, 4, 8, 16];
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(1000);
/// Two runs of the same clients differ by more: where the totals are alike, the last percents are a
/// toss of a coin.
const NOISE: f64 = 0.02;
/// Operations between two looks at the clock.
const FEW: u64 = 16;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("clients in processes of their own, two cores: all together against two");
    for racks in [1, 2] {
        let mut options = ClusterOptions::ephemeral()?;
        // What is remote stays remote.
        options.daemon_arguments = vec![("--swap", "off".into())];
        options.racks = racks;
        let cluster = Cluster::start(options)?;
        compare(table, &cluster)?;
        cluster.stop()?;
    }
    Ok(())
}

fn compare(table: &mut Table, cluster: &Cluster) -> anyhow::Result<()> {
    let options = cluster.options();
    let what = if options.racks == 1 { "round trips" } else { "64 B of the other rack" };
    let pools: Vec<Pool> = (0..options.racks)
        .map(|rack| Pool::open(ClientOptions::new(&options.dir, RackId(rack))))
        .collect::<Result<_, _>>()?;
    let objects: Vec<GlobalAddr> = pools.iter().map(|p| p.alloc(64)).collect::<Result<_, _>>()?;
    let arguments = |client: usize| {
        let rack = client % pools.len();
        // One that is home in its own rack means: no access, but a round trip.
        let other = objects[(rack + 1) % pools.len()];
        let dir = options.dir.display().to_string();
        vec![dir, rack.to_string(), other.raw().to_string(), pools.len().to_string()]
    };
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    for _ in 0..ROUNDS {
        let all = CLIENTS.iter().map(|count| rate(*count, &arguments));
        rounds.push(all.collect::<anyhow::Result<_>>()?);
    }
    let of = |i: usize| median(rounds.iter().map(|round| round[i]).collect());
    for (i, count) in CLIENTS.into_iter().enumerate().skip(1) {
        let ratio = median(rounds.iter().map(|round| round[i] / round[0]).collect());
        let detail = format!("{:.0} k/s against {:.0} k/s", of(i) / 1e3, of(0) / 1e3);
        table.at_least(&format!("{what}: {count} clients"), ratio, 1.0 - NOISE, "x", &detail);
    }
    Ok(())
}

/// Operations a second of so many clients together.
fn rate(count: usize, arguments: &dyn Fn(usize) -> Vec<String>) -> anyhow::Result<f64> {
    let mut clients: Vec<Helper> = (0..count)
        .map(|client| Helper::start(ARGUMENT, &arguments(client)))
        .collect::<anyhow::Result<_>>()?;
    for client in &mut clients {
        client.hear()?;
    }
    let start = soon()?;
    for client in &mut clients {
        client.tell(start)?;
    }
    let mut total = 0.0;
    for client in &mut clients {
        total += client.hear()?.parse::<f64>()?;
    }
    Ok(total)
}

/// One of the clients: folder, rack, an address, how many racks.
pub fn be_client(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut next = || arguments.next().context("an argument");
    let (dir, rack) = (PathBuf::from(next()?), RackId(next()?.parse()?));
    let addr = GlobalAddr::from_raw(next()?.parse()?);
    let pings = next()? == "1";
    let pool = Pool::open(ClientOptions::new(dir, rack))?;
    let mut bytes = [0; 64];
    let mut work = || -> anyhow::Result<()> {
        for _ in 0..FEW {
            if pings {
                pool.ping()?;
            } else {
                pool.read(addr, &mut bytes)?;
            }
        }
        Ok(())
    };
    work()?;
    println!("ready");
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line)? == 0 {
        return Ok(());
    }
    let start = line.trim().parse()?;
    sleep_until(start)?;
    let end = at(start + TIME.as_nanos())?;
    let mut count = 0_u32;
    loop {
        work()?;
        if Instant::now() > end {
            break;
        }
        count += u32::try_from(FEW)?;
    }
    println!("{}", f64::from(count) / TIME.as_secs_f64());
    // Leaving costs the daemon something: not before all are done.
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}
