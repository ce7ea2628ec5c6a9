//! Access paths of other systems over the fabric that rackpool uses: the baselines of the Rcmp
//! paper's evaluation.
//!
//! A baseline is an *access path* that was written anew after the system's paper, not the system:
//! no recovery, no allocation, no replicas. Where a paper leaves a choice, the cheaper one is
//! taken, so a factor says at least how much dearer the path is. docs/design/figures.md describes
//! them.

mod cache;
mod cxl_over_ethernet;
mod farm;
mod fastswap;
mod gam;
mod network;
mod paged_range;
mod parts;
mod rackpool;

use std::time::Duration;

use anyhow::ensure;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::cpu::of_process;

/// The share of the memory that a node of a baseline caches: as in the Rcmp paper, where a compute
/// pool has 1 GB of DRAM for 100 GB of memory.
const CACHED: u64 = 100;
/// Places at which a client must read what it wrote before it is measured.
const CHECKED: usize = 200;

/// Reads and writes of the memory. An access stays within one item.
pub(crate) trait AccessPath: Send {
    /// Reads from `offset` on.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()>;
    /// Writes from `offset` on.
    fn write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()>;
}

/// A running system.
pub(crate) trait System {
    /// A client in a rack, which one thread uses.
    fn client(&self, rack: usize) -> anyhow::Result<Box<dyn AccessPath>>;
}

/// What a system is started with.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Bytes of the memory of all racks together; all programs use all of it.
    pub(crate) bytes: u64,
    /// Bytes of an item.
    pub(crate) item: usize,
    /// Number of racks.
    pub(crate) racks: usize,
    /// Latency of the fabric.
    pub(crate) latency: Duration,
    /// Whether the machine has a core for each thread, so that those that wait may spin.
    pub(crate) spins: bool,
    /// Arguments of rackpool's daemons.
    pub(crate) daemons: Vec<(&'static str, String)>,
}

/// The systems that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rackpool,
    Fastswap,
    Farm,
    Gam,
    CxlOverEthernet,
}

impl Kind {
    /// All of them; rackpool is the first.
    pub(crate) const ALL: [Self; 5] =
        [Self::Rackpool, Self::Fastswap, Self::Farm, Self::Gam, Self::CxlOverEthernet];

    /// The name in figures.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rackpool => "rackpool",
            Self::Fastswap => "Fastswap's path",
            Self::Farm => "FaRM's path",
            Self::Gam => "GAM's path",
            Self::CxlOverEthernet => "CXL over Ethernet",
        }
    }

    /// Starts the system, and checks that a client of each rack reads what it wrote.
    pub(crate) fn start(self, setting: &Setting) -> anyhow::Result<Box<dyn System>> {
        let system: Box<dyn System> = match self {
            Self::Rackpool => Box::new(rackpool::Rackpool::start(setting)?),
            Self::Fastswap => Box::new(fastswap::Fastswap::start(setting)?),
            Self::Farm => Box::new(farm::Farm::start(setting)?),
            Self::Gam => Box::new(gam::Gam::start(setting)?),
            Self::CxlOverEthernet => Box::new(cxl_over_ethernet::CxlOverEthernet::start(setting)?),
        };
        for rack in 0..setting.racks {
            check(&mut *system.client(rack)?, setting)?;
        }
        Ok(system)
    }
}

/// The core of the threads that answer: the second, if there is one.
fn answering_core() -> usize {
    of_process().ok().and_then(|cores| cores.get(1).copied()).unwrap_or(0)
}

/// What is written is read again, also when other items were used in between.
fn check(path: &mut dyn AccessPath, setting: &Setting) -> anyhow::Result<()> {
    let mut random = SmallRng::seed_from_u64(1);
    let items = setting.bytes / setting.item as u64;
    let places: Vec<u64> =
        (0..CHECKED).map(|_| random.random_range(0..items) * setting.item as u64).collect();
    for at in &places {
        path.write(*at, &bytes_of(*at, setting.item))?;
    }
    let mut found = vec![0; setting.item];
    for at in &places {
        path.read(*at, &mut found)?;
        ensure!(found == bytes_of(*at, setting.item), "other bytes than were written at {at}");
    }
    Ok(())
}

fn bytes_of(at: u64, size: usize) -> Vec<u8> {
    at.to_le_bytes().into_iter().cycle().take(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTING: Setting = Setting {
        bytes: 2 << 20,
        item: 64,
        racks: 2,
        latency: Duration::from_micros(1),
        spins: false,
        daemons: Vec::new(),
    };

    /// Two clients of each rack use all items at once; each has items of its own, which it checks.
    fn is_used_at_once(kind: Kind) -> anyhow::Result<()> {
        let system = kind.start(&SETTING)?;
        let clients: Vec<_> =
            (0..4).map(|client| system.client(client % 2)).collect::<anyhow::Result<_>>()?;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(clients)
                .map(|(client, mut path)| scope.spawn(move || use_items(client, &mut *path)))
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no client panics"))
        })
    }

    fn use_items(client: u64, path: &mut dyn AccessPath) -> anyhow::Result<()> {
        let mut random = SmallRng::seed_from_u64(client);
        let items = SETTING.bytes / 64;
        let mut found = [0; 64];
        for round in 0..500 {
            let any = random.random_range(0..items / 4) * 4 * 64;
            path.read(any, &mut found)?;
            // Lines of other clients lie beside.
            let own = any + client * 64;
            path.write(own, &bytes_of(round, 64))?;
            path.read(own, &mut found)?;
            ensure!(found[..] == bytes_of(round, 64), "item at {own} in round {round}");
        }
        Ok(())
    }

    #[test]
    fn clients_of_farms_path_read_what_they_wrote() {
        is_used_at_once(Kind::Farm).unwrap();
    }

    #[test]
    fn clients_of_cxl_over_ethernet_read_what_they_wrote() {
        is_used_at_once(Kind::CxlOverEthernet).unwrap();
    }

    #[test]
    fn clients_of_gams_path_do_not_wait_for_each_others_lines_for_ever() {
        is_used_at_once(Kind::Gam).unwrap();
    }

    #[test]
    fn clients_of_fastswaps_path_read_what_they_wrote() {
        match is_used_at_once(Kind::Fastswap) {
            Err(error) if error.to_string().contains("userfaultfd") => {
                rackpool_testing::skipped(&format!("{error:#}"));
            }
            other => other.unwrap(),
        }
    }
}
