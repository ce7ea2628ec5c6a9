//! `rackpool-plasma` compared with Plasma's own store, both used by pyarrow 11. `cargo x bench
//! plasma` installs pyarrow, which brings that store.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use rackpool_cluster::{Cluster, ClusterOptions};

use crate::service::{Server, program};
use crate::table::Table;

/// Where the virtual environment is in cargo's target folder.
const PROGRAMS: &str = "peers/plasma/venv/bin";
const MEASURE: &str = include_str!("plasma.py");
/// The memory of each store, in bytes.
const MEMORY: u64 = 1 << 30;
const SIZES: [(&str, u64); 3] = [("1 KiB", 1 << 10), ("1 MiB", 1 << 20), ("64 MiB", 64 << 20)];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("objects by pyarrow 11: rackpool-plasma against Plasma's store");
    let Some(programs) = programs()? else {
        table.not_measured("`cargo x bench plasma` installs pyarrow 11");
        return Ok(());
    };
    let mut options = ClusterOptions::ephemeral()?;
    options.daemon_arguments = vec![("--swap", "off".into())];
    options.racks = 1;
    options.memory = 2 * MEMORY;
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let sockets = ["ours.sock", "plasma.sock"].map(|name| dir.join(name));
    let [ours, peer] = sockets.each_ref().map(|path| path.display().to_string());
    let (pool_dir, memory) = (dir.display().to_string(), MEMORY.to_string());
    let words = ["--dir", &pool_dir, "-s", &ours, "-m", &memory];
    let own = Server::start(&program("rackpool-plasma")?, &words, sockets[0].clone())?;
    let words = ["-s", &peer, "-m", &memory];
    let plasma = Server::start(&programs.join("plasma_store"), &words, sockets[1].clone())?;

    let output = Command::new(programs.join("python"))
        .args(["-W", "ignore", "-c", MEASURE, &ours, &peer])
        .args(SIZES.map(|(_, bytes)| bytes.to_string()))
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the program for pyarrow failed: {errors}");
    let text = String::from_utf8(output.stdout)?;
    let lines: Vec<&str> = text.lines().collect();
    ensure!(lines.len() == SIZES.len(), "the program for pyarrow says {text}");
    for ((size, _), line) in SIZES.iter().zip(lines) {
        let figures: Vec<f64> =
            line.split(' ').map(str::parse).collect::<Result<_, _>>().context(line.to_owned())?;
        let [put, get, their_put, their_get, puts, gets] = figures[..] else {
            anyhow::bail!("the program for pyarrow says {line}");
        };
        for (name, ratio, own, their) in
            [("put", puts, put, their_put), ("get", gets, get, their_get)]
        {
            let detail = format!("{own:.1} us against {their:.1} us");
            table.at_most(&format!("{name} of {size}"), ratio, 1.0, "x", &detail);
        }
    }
    drop((own, plasma));
    cluster.stop()
}

/// The folder of the environment's programs, if it was made.
fn programs() -> anyhow::Result<Option<PathBuf>> {
    let own = std::env::current_exe()?;
    let mut folders = own.ancestors().map(|folder| folder.join(PROGRAMS));
    Ok(folders.find(|folder| folder.join("plasma_store").is_file()))
}
