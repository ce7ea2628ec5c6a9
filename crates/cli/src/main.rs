//! The `rackpool` program: starts a pool on this machine, shows it, and measures it.
#![forbid(unsafe_code)]

mod commands;
mod pool_arguments;

use clap::{Parser, Subcommand};
use commands::{
    agent, audit, cast, credentials, dca, demo, doctor, explain, group, heat, numa, objects, root,
    server, status, table, top, up, ycsb,
};
use rackpool_config::ConfigFile;

/// A memory pool that joins CXL inside the rack with RDMA between racks.
#[derive(Debug, Parser)]
#[command(name = "rackpool", version, propagate_version = true)]
struct Arguments {
    #[command(flatten)]
    config: ConfigFile,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a pool on this machine: a metadata server and one daemon for each rack.
    Up(up::Options),
    /// Run a metadata server: starts rackpool-metaserver with the given options.
    Metaserver(server::Options),
    /// Serve a rack: starts rackpool-daemon with the given options.
    Daemon(server::Options),
    /// Show a pool's racks and their metrics.
    Status(status::Options),
    /// Show live metrics of a pool: operations, swaps, the hottest pages.
    Top(top::Options),
    /// Show a page's home and hotness, and the history of its swaps.
    Explain(explain::Options),
    /// List the named addresses of a pool, or remove one.
    Root(root::Options),
    /// List, create, measure or remove the tables of a pool.
    Table(table::Options),
    /// List, show, read, store or remove the objects of an object store.
    Objects(objects::Options),
    /// Count the allocated objects by owner: a root, a client, or none (leaked).
    Audit(audit::Options),
    /// Copy an object into many racks at once, or show by which plan.
    Cast(cast::Options),
    /// Send lines to programs in other racks, or receive them.
    Group(group::Options),
    /// Take part in casts for a rack: receive objects, and pass them on.
    Agent(agent::Options),
    /// Report this machine's memory, processors and fabrics, their cost, and what to set up.
    Doctor(doctor::Options),
    /// Create credentials for a pool that spans hosts.
    Credentials(credentials::Options),
    /// Run YCSB workloads on a key-value table in a pool, or on a Redis server.
    Ycsb(ycsb::Options),
    /// Replay a recorded trace with other swap thresholds.
    Heat(heat::Options),
    /// Simulate the processor's cache into which network cards write.
    Dca(dca::Options),
    /// Measure what NUMA placement costs one-sided operations.
    Numa(numa::Options),
    /// Start an ephemeral pool, run the YCSB workloads from every rack, and write a report.
    Demo(demo::Options),
}

fn main() -> std::process::ExitCode {
    rackpool_output::run_command("rackpool", run)
}

fn run() -> anyhow::Result<()> {
    let Arguments { config, command } = rackpool_config::parse("rackpool");
    match command {
        Command::Up(options) => up::run(&options),
        Command::Metaserver(options) => server::run("rackpool-metaserver", &config, &options),
        Command::Daemon(options) => server::run("rackpool-daemon", &config, &options),
        Command::Status(options) => status::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Root(options) => root::run(&options),
        Command::Table(options) => table::run(&options),
        Command::Objects(options) => objects::run(&options),
        Command::Audit(options) => audit::run(&options),
        Command::Cast(options) => cast::run(&options),
        Command::Group(options) => group::run(&options),
        Command::Agent(options) => agent::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Credentials(options) => credentials::run(&options),
        Command::Ycsb(options) => ycsb::run(&options),
        Command::Heat(options) => heat::run(&options),
        Command::Dca(options) => dca::run(&options),
        Command::Numa(options) => numa::run(&options),
        Command::Demo(options) => demo::run(&options),
    }
}
