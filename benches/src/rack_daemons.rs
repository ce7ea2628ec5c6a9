//! Several daemons in a rack: accesses to a sibling's part against those to the own one, and the
//! remote throughput of all clients of racks with two daemons against racks with one.

use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};

use crate::clients::{compare, racks::Racks};
use crate::cpu::pin_self;
use crate::measure::{in_turn, time_each};
use crate::table::Table;

/// Bytes of the memory that is read in each part, in steps of a page of the processor.
const SPAN: usize = 1 << 20;
const STEP: usize = 4096;
const READS: usize = 1_000_000;
/// Numbers of clients.
const CLIENTS: [usize; 3] = [2, 4, 8];
const ROUNDS: usize = 7;
/// Cores that two racks with two daemons each, and their clients, need to show their throughput.
const CORES: usize = 8;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("a rack with two daemons");
    // First, because the other binds this thread to a core.
    throughput(table)?;
    accesses(table)
}

fn accesses(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    (options.racks, options.daemons, options.memory) = (1, 2, 256 << 20);
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let open = |daemon| Pool::open(ClientOptions::new(&dir, RackId(daemon)).exact_daemon(true));
    let (own, sibling) = (open(0)?, open(1)?);
    let (here, beside) = (own.alloc(SPAN as u64)?, sibling.alloc(SPAN as u64)?);
    pin_self(0)?;
    let reads = |base: GlobalAddr| {
        let mut bytes = [0; 64];
        time_each(READS, || {
            for index in 0..READS {
                let at = base.add((index * STEP % SPAN) as u64).expect("an address");
                own.read(at, &mut bytes).expect("an object");
            }
        })
    };
    let read = in_turn(|| reads(beside), || reads(here));
    let writes = |base: GlobalAddr| {
        let bytes = [1; 64];
        time_each(READS, || {
            for index in 0..READS {
                let at = base.add((index * STEP % SPAN) as u64).expect("an address");
                own.write(at, &bytes).expect("an object");
            }
        })
    };
    let write = in_turn(|| writes(beside), || writes(here));
    for (what, pair) in [("read", read), ("write", write)] {
        let detail = format!("{:.1} and {:.1} ns", pair.ours, pair.peer);
        let name = format!("{what} of 64 B in the part of the other daemon, times one in the own");
        // Two translation caches are looked up instead of one.
        table.at_most(&name, pair.ratio, 3.0, "", &detail);
    }
    drop((own, sibling));
    cluster.stop()
}

fn throughput(table: &mut Table) -> anyhow::Result<()> {
    let (one, two) = (Racks::with_daemons(2, 1, None)?, Racks::with_daemons(2, 2, None)?);
    let rates = |racks: &Racks| {
        let mut rates = [0.0; CLIENTS.len()];
        for (rate, count) in rates.iter_mut().zip(CLIENTS) {
            *rate = racks.rate(count)?;
        }
        anyhow::Ok(rates)
    };
    let (mut with_one, mut with_two) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with_two.push(rates(&two)?);
        with_one.push(rates(&one)?);
    }
    let cores = crate::cpu::usable()?.len();
    let limit = if cores >= CORES { 1.8 } else { 0.95 };
    for (index, count) in CLIENTS.into_iter().enumerate() {
        let (ratio, detail) = compare(&with_two, index, &with_one, index);
        let name = format!("64 B of the other rack, {count} clients, {cores} cores: two daemons");
        table.at_least(&name, ratio, limit, "x", &detail);
    }
    one.stop()?;
    two.stop()
}
