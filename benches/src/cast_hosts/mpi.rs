//! `MPI_Bcast` of `OpenMPI`, a rank on each host.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use rackpool_tests::hosts::Hosts;

use crate::measure::median;

const SOURCE: &str = include_str!("bcast.c");
/// The broadcast after OpenMPI's own tables, and the best of its algorithms for large messages on
/// such hosts: a pipeline of segments of 256 KiB.
pub(super) const ALGORITHMS: [(&str, &[&str]); 2] = [
    ("as it is set up", &[]),
    (
        "told to form a chain",
        &[
            "--mca",
            "coll_tuned_use_dynamic_rules",
            "1",
            "--mca",
            "coll_tuned_bcast_algorithm",
            "3",
            "--mca",
            "coll_tuned_bcast_algorithm_segmentsize",
            "262144",
        ],
    ),
];

/// The program, and how its ranks reach their hosts.
pub(super) struct Mpi<'a> {
    folder: tempfile::TempDir,
    hosts: &'a Hosts,
}

impl<'a> Mpi<'a> {
    /// Builds the program. `Ok(None)` if OpenMPI is not installed.
    pub(super) fn build(hosts: &'a Hosts) -> anyhow::Result<Option<Self>> {
        let are_there = ["mpicc", "mpirun"].map(|program| {
            let run = Command::new(program).arg("--version").stdout(Stdio::null()).status();
            run.is_ok_and(|status| status.success())
        });
        if are_there != [true; 2] {
            return Ok(None);
        }
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("bcast.c");
        std::fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("mpicc");
        compiler.arg("-O2").arg(&source).arg("-o").arg(folder.path().join("bcast"));
        let built = compiler.output()?;
        ensure!(built.status.success(), "mpicc: {}", String::from_utf8_lossy(&built.stderr));
        let agent = folder.path().join("agent");
        std::fs::write(&agent, agent_script(hosts))?;
        std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o700))?;
        Ok(Some(Self { folder, hosts }))
    }

    /// The median time of a broadcast to this number of hosts, in seconds.
    pub(super) fn seconds(
        &self,
        ranks: usize,
        bytes: usize,
        rounds: usize,
        algorithm: &[&str],
    ) -> anyhow::Result<f64> {
        let addresses: Vec<_> =
            self.hosts.iter().take(ranks).map(|host| format!("{}:1", host.address)).collect();
        let at = |name: &str| self.folder.path().join(name);
        let mut command = self.hosts.switch().command("mpirun");
        command.args(["--allow-run-as-root", "-np", &ranks.to_string()]);
        command.args(["--host", &addresses.join(",")]);
        command.args(["--mca", "plm", "rsh", "--mca", "plm_rsh_no_tree_spawn", "1"]);
        command.args(["--mca", "plm_rsh_agent"]).arg(at("agent"));
        command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "wire"]);
        // There are more ranks than cores.
        command.args(["--mca", "mpi_yield_when_idle", "1"]).args(algorithm);
        // The first round opens the connections.
        command.arg(at("bcast")).args([bytes.to_string(), (rounds + 1).to_string()]);
        let output = command.stdin(Stdio::null()).output()?;
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "mpirun: {errors}");
        let times: Result<Vec<f64>, _> = said.lines().skip(1).map(str::parse).collect();
        let times = times.with_context(|| format!("no figures: {said}"))?;
        ensure!(times.len() == rounds, "not {rounds} figures: {said}");
        Ok(median(times))
    }
}

/// Stands in for ssh: runs a command on the host that has the address. Each host has a name of its
/// own, by which the ranks tell hosts apart.
fn agent_script(hosts: &Hosts) -> String {
    let mut script = String::from("#!/bin/sh\nhost=$1\nshift\ncase $host in\n");
    for host in hosts.iter() {
        let _ = writeln!(script, "{}) namespace={} ;;", host.address, host.namespace());
    }
    script
        + "esac\nexec nsenter --net=$namespace unshare --uts sh -c \"hostname host-${host##*.}; $*\"\n"
}
