//! The racks of a pool, and a number of clients that use them at once.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};

use super::ARGUMENT;
use crate::cpu;
use crate::helper::{Helper, at, sleep_until, soon};

const TIME: Duration = Duration::from_millis(1000);
/// Operations between two reads of the clock.
const FEW: u64 = 16;
/// In place of a core: the clients run where the kernel schedules them.
const ANYWHERE: &str = "anywhere";

/// A pool, and the objects that its clients read.
pub(crate) struct Racks {
    cluster: Cluster,
    /// A client of each rack, which keeps the objects alive.
    pools: Vec<Pool>,
    objects: Vec<GlobalAddr>,
    racks: usize,
    daemons: usize,
    /// The core of each daemon's poll loop; the clients keep off it.
    core: Option<usize>,
}

impl Racks {
    /// Starts racks with one daemon each.
    pub(super) fn start(racks: u16, core: Option<usize>) -> anyhow::Result<Self> {
        Self::with_daemons(racks, 1, core)
    }

    /// Starts racks with this number of daemons each.
    pub(crate) fn with_daemons(
        racks: u16,
        daemons: u16,
        core: Option<usize>,
    ) -> anyhow::Result<Self> {
        let mut options = ClusterOptions::ephemeral()?;
        // Swaps would make remote objects local.
        options.daemon_arguments = vec![("--swap", "off".into())];
        (options.racks, options.daemons) = (racks, daemons);
        if let Some(core) = core {
            options.cpus = vec![u32::try_from(core)?; usize::from(racks)];
        }
        let cluster = Cluster::start(options)?;
        let dir = &cluster.options().dir;
        let options = |rack| ClientOptions::new(dir, RackId(rack * daemons)).exact_daemon(true);
        let pools: Vec<Pool> =
            (0..racks).map(|rack| Pool::open(options(rack))).collect::<Result<_, _>>()?;
        let objects = pools.iter().map(|pool| pool.alloc(64)).collect::<Result<_, _>>()?;
        let (racks, daemons) = (usize::from(racks), usize::from(daemons));
        Ok(Self { cluster, pools, objects, racks, daemons, core })
    }

    /// Operations a second of `count` clients together: reads of an object in the other rack, or
    /// round trips to the daemon if there is one rack.
    pub(crate) fn rate(&self, count: usize) -> anyhow::Result<f64> {
        let mut clients: Vec<Helper> = (0..count)
            .map(|client| Helper::start(ARGUMENT, &self.arguments(client)))
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

    fn arguments(&self, client: usize) -> Vec<String> {
        let (racks, daemons) = (self.racks, self.daemons);
        let rack = client % racks;
        // The clients of a rack use its daemons in turn.
        let daemon = rack * daemons + client / racks % daemons;
        // With one rack the object is local: the client then measures round trips instead of reads.
        let other = self.objects[(rack + 1) % racks];
        vec![
            self.cluster.options().dir.display().to_string(),
            daemon.to_string(),
            other.raw().to_string(),
            racks.to_string(),
            self.core.map_or_else(|| ANYWHERE.into(), |core| core.to_string()),
        ]
    }

    /// Stops the racks.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        drop(self.pools);
        self.cluster.stop()
    }
}

/// Runs as one of the clients. Arguments: folder, daemon, an address, number of racks, core to keep
/// off.
pub fn be_client(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut next = || arguments.next().context("an argument");
    let (dir, daemon) = (PathBuf::from(next()?), RackId(next()?.parse()?));
    let addr = GlobalAddr::from_raw(next()?.parse()?);
    let pings = next()? == "1";
    let core = next()?;
    if core != ANYWHERE {
        // Before the pool starts its thread, which inherits the affinity.
        cpu::keep_off(core.parse()?)?;
    }
    let pool = Pool::open(ClientOptions::new(dir, daemon).exact_daemon(true))?;
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
    // Closing costs the daemon time, so a client waits until all are done.
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}
