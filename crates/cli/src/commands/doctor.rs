//! `rackpool doctor`: what this computer has for a pool, where it lies, and what it costs.

use std::path::PathBuf;

use rackpool_admin::rack_status;
use rackpool_cluster::racks_in;
use rackpool_doctor::{RackReport, RackState};
use rackpool_model::RackId;
use rackpool_output::chain;
use rackpool_shm::directory::RackDirectory;
use rackpool_wire::control::{InFlightStatus, RackStatus};

use crate::pool_arguments::PoolFolder;

/// What the doctor looks at.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// The pool whose racks are shown, if it runs.
    #[command(flatten)]
    pub(crate) pool: PoolFolder,
    /// Folder of this host's credentials, to check that they can be used.
    #[arg(long, value_name = "DIR")]
    pub(crate) credentials: Option<PathBuf>,
    /// Do not measure; report only what the kernel says. Measurements take up to 6 s.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Examines this computer and prints the report.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let report = rackpool_doctor::examine(
        &options.pool.dir,
        racks(options),
        options.credentials.as_deref(),
        !options.quick,
    );
    let shown = if options.json { report.to_json()? } else { report.to_text() };
    rackpool_output::print(format_args!("{shown}"))?;
    Ok(())
}

fn racks(options: &Options) -> Vec<RackReport> {
    // Without a folder there is no pool: the list is empty.
    let racks = racks_in(&options.pool.dir).unwrap_or_default();
    let ask = |rack: u16| {
        let socket = options.pool.dir.join(format!("rack-{rack}")).join("daemon.sock");
        rack_status(&socket.display().to_string()).map(state).map_err(|error| chain(error.as_ref()))
    };
    let siblings = |rack: RackId| {
        let siblings = RackDirectory::new(&options.pool.dir, rack).siblings(rack);
        siblings.into_iter().map(|daemon| daemon.0).collect()
    };
    let report =
        |rack: RackId| RackReport { rack: rack.0, siblings: siblings(rack), state: ask(rack.0) };
    racks.into_iter().map(report).collect()
}

fn state(status: RackStatus) -> RackState {
    let InFlightStatus { requests, reads, peer_writes } = status.in_flight;
    let parts = [requests, reads, peer_writes];
    RackState {
        memory: status.memory,
        placement: status.placement,
        fabric: status.fabric,
        memory_bytes: status.frame_memory.bytes,
        kernel_page_bytes: status.frame_memory.page_bytes,
        nodes: status.frame_memory.nodes,
        other_racks: status.other_racks.len(),
        in_flight_limit: parts.iter().map(|part| part.limit).sum(),
        in_flight_peak: parts.iter().map(|part| part.peak).sum(),
    }
}
