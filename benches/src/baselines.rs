//! Access paths of other systems over the fabric that rackpool uses: the baselines of the Rcmp
//! paper's evaluation.
//!
//! A baseline is an *access path* that was written anew after the system's paper, not the system:
//! no recovery, no allocation, no replicas. docs/design/figures.md describes them, and says where
//! a path is quicker or slower than that of its system.

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

use crate::cpu::{of_process, pin_self};

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

    /// Waits until all requests that were posted are answered.
    fn finish(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
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
    /// Number of homes over which a baseline's memory is spread.
    pub(crate) homes: usize,
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

/// Binds a thread that answers to the second core, where it may spin; elsewhere the kernel
/// chooses.
fn pin_answering(spins: bool) {
    let second = of_process().ok().and_then(|cores| cores.get(1).copied());
    if let Some(core) = second.filter(|_| spins) {
        // Unbound it is slower only.
        let _ = pin_self(core);
    }
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
        homes: 2,
        latency: Duration::from_micros(1),
        spins: false,
        daemons: Vec::new(),
    };

    /// Two clients of each rack at once, each on its own thread.
    fn at_once(
        kind: Kind,
        work: fn(u64, &mut dyn AccessPath) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let system = kind.start(&SETTING)?;
        let clients: Vec<_> =
            (0..4).map(|client| system.client(client % 2)).collect::<anyhow::Result<_>>()?;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(clients)
                .map(|(client, mut path)| scope.spawn(move || work(client, &mut *path)))
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no client panics"))
        })
    }

    /// Uses a quarter of the items, which no other client uses: racks' caches are not coherent.
    fn check_own(client: u64, path: &mut dyn AccessPath) -> anyhow::Result<()> {
        let mut random = SmallRng::seed_from_u64(client);
        let quarter = SETTING.bytes / 4;
        let mut any = || client * quarter + random.random_range(0..quarter / 64) * 64;
        let mut found = [0; 64];
        for round in 0..500 {
            let at = any();
            path.write(at, &bytes_of(round, 64))?;
            path.read(any(), &mut found)?;
            path.read(at, &mut found)?;
            ensure!(found[..] == bytes_of(round, 64), "item at {at} in round {round}");
        }
        Ok(())
    }

    /// Writes the same few lines of both homes as all others.
    fn write_shared(client: u64, path: &mut dyn AccessPath) -> anyhow::Result<()> {
        let mut random = SmallRng::seed_from_u64(client);
        let half = SETTING.bytes / 2;
        for _ in 0..2000 {
            let home = random.random_range(0..2) * half;
            path.write(home + random.random_range(0..256) * 64, &[1; 64])?;
        }
        path.finish()
    }

    #[test]
    fn clients_of_farms_path_read_what_they_wrote() {
        at_once(Kind::Farm, check_own).unwrap();
    }

    #[test]
    fn clients_of_cxl_over_ethernet_read_what_they_wrote() {
        at_once(Kind::CxlOverEthernet, check_own).unwrap();
    }

    #[test]
    fn clients_of_gams_path_do_not_wait_for_each_others_lines_for_ever() {
        at_once(Kind::Gam, write_shared).unwrap();
    }

    #[test]
    fn clients_of_fastswaps_path_read_what_they_wrote() {
        match at_once(Kind::Fastswap, check_own) {
            Err(error) if error.to_string().contains("userfaultfd") => {
                rackpool_testing::skipped(&format!("{error:#}"));
            }
            other => other.unwrap(),
        }
    }
}
