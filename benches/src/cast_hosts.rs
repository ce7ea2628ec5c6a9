//! Casts between hosts joined by a switch, over TCP and cables of limited bandwidth, beside
//! `MPI_Bcast` of `OpenMPI` on the same hosts.

mod mpi;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rackpool_tests::host_pool::HostPool;
use rackpool_tests::hosts::Hosts;
use serde_json::Value;

use crate::cpu::Busy;
use crate::measure::median;
use crate::table::Table;
use mpi::{ALGORITHMS, Mpi};

const HOSTS: u8 = 8;
/// The rate of each host's cable in Mbit/s: slow, so that the cables and not the two cores are the
/// limit.
const MEGABITS: u32 = 250;
const BYTES: usize = 64 << 20;
const ROUNDS: usize = 3;
/// The sizes of a group, with its root.
const GROUPS: [usize; 2] = [4, 8];
const DAEMON: &str = "memory = '512M'\nswap = 'off'";
/// Agents serve within this time.
const START: Duration = Duration::from_secs(20);

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let title = format!(
        "{} MiB to many hosts over TCP, {MEGABITS} Mbit/s each, against MPI_Bcast of OpenMPI",
        BYTES >> 20
    );
    table.section(&title);
    let hosts = match Hosts::try_join(HOSTS) {
        Ok(hosts) => hosts,
        Err(reason) => {
            table.not_measured(&reason);
            return Ok(());
        }
    };
    for host in 0..usize::from(HOSTS) {
        hosts.limit(host, MEGABITS);
    }
    let pool = HostPool::start(hosts, DAEMON);
    let Some(mpi) = Mpi::build(&pool.hosts)? else {
        table.not_measured("OpenMPI is not installed (Debian: openmpi-bin, libopenmpi-dev)");
        return Ok(());
    };
    let casts = Casts::start(&pool)?;
    for group in GROUPS {
        let casts: Vec<_> =
            (0..=ROUNDS).map(|_| casts.cast(group)).collect::<anyhow::Result<_>>()?;
        // The first round opens tables and connections.
        let own = median(casts.iter().skip(1).map(|cast| cast.0).collect());
        let busy = median(casts.iter().skip(1).map(|cast| cast.1).collect());
        for (what, algorithm) in ALGORITHMS {
            let peer = mpi.seconds(group, BYTES, ROUNDS, algorithm)?;
            let detail = format!(
                "{:.0} against {:.0} ms; cores {:.0} % busy",
                peer * 1e3,
                own * 1e3,
                busy * 1e2
            );
            let name = format!("MPI_Bcast, {what} / a cast, a group of {group}");
            table.at_least(&name, peer / own, 1.03, "x", &detail);
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let ideal = BYTES as f64 * 8.0 / (f64::from(MEGABITS) * 1e6);
        let detail = format!("{:.0} against {:.0} ms", own * 1e3, ideal * 1e3);
        table.figure(&format!("a cast / one copy, a group of {group}"), own / ideal, "x", &detail);
    }
    Ok(())
}

/// The agents of a pool, and an object to cast.
struct Casts<'a> {
    pool: &'a HostPool,
    file: tempfile::NamedTempFile,
    agents: Vec<Child>,
}

impl<'a> Casts<'a> {
    fn start(pool: &'a HostPool) -> anyhow::Result<Self> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), vec![7; BYTES])?;
        let agents = (1..usize::from(HOSTS)).map(|rack| {
            let mut agent = pool.rackpool_in(rack, &["agent"]);
            agent.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
        });
        let agents = agents.collect::<Result<_, _>>()?;
        let casts = Self { pool, file, agents };
        let began = Instant::now();
        while casts.cast(usize::from(HOSTS)).is_err() {
            ensure!(began.elapsed() < START, "the agents do not serve");
        }
        Ok(casts)
    }

    /// Casts an object to a group; returns the seconds, and how busy the cores were (0 to 1).
    fn cast(&self, group: usize) -> anyhow::Result<(f64, f64)> {
        done(self.pool.rackpool_in(0, &["objects", "put", "object"]).arg(self.file.path()))?;
        let racks = (1..group).map(|rack| rack.to_string()).collect::<Vec<_>>().join(",");
        let busy = Busy::now()?;
        let cast = ["cast", "object", "--to", &racks, "--grace", "60", "--json"];
        let said = done(&mut self.pool.rackpool_in(0, &cast));
        let busy = busy.since()?;
        done(&mut self.pool.rackpool_in(0, &["objects", "rm", "object"]))?;
        let report: Value = serde_json::from_slice(&said?)?;
        Ok((report["seconds"].as_f64().context("the time of a cast")?, busy))
    }
}

impl Drop for Casts<'_> {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// Runs a command; returns what it prints.
fn done(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
