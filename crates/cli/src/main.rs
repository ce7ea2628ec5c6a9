//! The `rackpool` program.

use clap::{Parser, Subcommand};
use rackpool_cli::commands::{demo, status, up, ycsb};

/// A memory pool that joins CXL inside the rack with RDMA between racks.
#[derive(Debug, Parser)]
#[command(name = "rackpool", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a pool on this machine: a metadata server and one daemon for each rack.
    Up(up::Options),
    /// Show a pool's racks and their figures.
    Status(status::Options),
    /// Run YCSB workloads on the key-value table in a pool.
    Ycsb(ycsb::Options),
    /// Start two racks, run the YCSB workloads from both, and write a report.
    Demo(demo::Options),
}

fn main() -> std::process::ExitCode {
    let result = match Arguments::parse().command {
        Command::Up(options) => up::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Ycsb(options) => ycsb::run(&options),
        Command::Demo(options) => demo::run(&options),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rackpool: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
