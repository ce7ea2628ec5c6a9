//! The `rackpool` program: starts a pool on this machine, shows it, and measures it.
#![forbid(unsafe_code)]

mod commands;
mod pool_arguments;

use clap::{Parser, Subcommand};
use commands::{
    audit, credentials, demo, doctor, explain, heat, root, server, status, table, top, up, ycsb,
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
    /// Run a metadata server: rackpool-metaserver.
    Metaserver(server::Options),
    /// Serve a rack: rackpool-daemon.
    Daemon(server::Options),
    /// Show a pool's racks and their metrics.
    Status(status::Options),
    /// Show what a pool does, live: operations, swaps, the hottest pages.
    Top(top::Options),
    /// Tell a page's history: where it lives, and why it moved or stayed.
    Explain(explain::Options),
    /// List the named addresses of a pool, or remove one.
    Root(root::Options),
    /// List, make, measure or remove the tables of a pool.
    Table(table::Options),
    /// Say what the bytes in use are: of which root, of clients, or of nobody that a root leads to.
    Audit(audit::Options),
    /// Say what this computer has for a pool, where it lies and what it costs.
    Doctor(doctor::Options),
    /// Make credentials for a pool that spans hosts.
    Credentials(credentials::Options),
    /// Run YCSB workloads on the key-value table in a pool.
    Ycsb(ycsb::Options),
    /// Try thresholds of the swap on a recorded trace.
    Heat(heat::Options),
    /// Start two racks, run the YCSB workloads from both, and write a report.
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
        Command::Audit(options) => audit::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Credentials(options) => credentials::run(&options),
        Command::Ycsb(options) => ycsb::run(&options),
        Command::Heat(options) => heat::run(&options),
        Command::Demo(options) => demo::run(&options),
    }
}
