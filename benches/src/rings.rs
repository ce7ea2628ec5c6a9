//! Messages within the rack compared with the cost of passing a cache line between the same cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};

use crate::cpu::{pin_process, pin_self};
use crate::measure::{in_turn, time_each};
use crate::table::Table;

pub(crate) const ROUND_TRIPS: usize = 1_000_000;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let (cluster, pool) = pinned()?;
    table.section("client to daemon and back, on a core each");
    let trip = in_turn(|| round_trips(&pool), ping_pong);
    let detail = format!("{:.0} ns against {:.0} ns", trip.ours, trip.peer);
    table.at_most("round trip against a raw cache-line ping-pong", trip.ratio, 1.5, "x", &detail);
    drop(pool);
    cluster.stop()
}

/// A rack whose daemon runs on core 1, and a client of it on core 0.
pub(crate) fn pinned() -> anyhow::Result<(Cluster, Pool)> {
    let mut options = ClusterOptions::ephemeral()?;
    options.racks = 1;
    let mut cluster = Cluster::start(options)?;
    let pool = Pool::open(ClientOptions::new(&cluster.options().dir, RackId(0)))?;
    pin_self(0)?;
    pin_process(cluster.daemon(RackId(0))?.id(), 1)?;
    Ok((cluster, pool))
}

pub(crate) fn round_trips(pool: &Pool) -> f64 {
    time_each(ROUND_TRIPS, || {
        for _ in 0..ROUND_TRIPS {
            pool.ping().expect("the daemon answers");
        }
    })
}

/// An atomic in a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Two threads on the same two cores with a cache line for each direction. There is no pause
/// between two polls, since it would show in the result.
fn ping_pong() -> f64 {
    let lines = Arc::new((Line::default(), Line::default()));
    let other = {
        let lines = Arc::clone(&lines);
        std::thread::spawn(move || {
            pin_self(1).expect("core 1");
            for round in 1..=ROUND_TRIPS as u64 {
                while lines.0.0.load(Ordering::Acquire) != round {}
                lines.1.0.store(round, Ordering::Release);
            }
        })
    };
    // The first exchange waits until the other thread runs.
    lines.0.0.store(1, Ordering::Release);
    while lines.1.0.load(Ordering::Acquire) != 1 {}
    let each = time_each(ROUND_TRIPS - 1, || {
        for round in 2..=ROUND_TRIPS as u64 {
            lines.0.0.store(round, Ordering::Release);
            while lines.1.0.load(Ordering::Acquire) != round {}
        }
    });
    other.join().expect("it does not panic");
    each
}
