//! `rackpool doctor`: what this computer has for a pool, where it lies, and what it costs.
//!
//! | module | holds |
//! |---|---|
//! | [`fabrics`] | how racks could reach each other, and what is missing for it |
//! | [`facts`] | what the kernel says: nothing is measured |
//! | [`devices`] | CXL memory and dax devices |
//! | [`cache`] | the last-level cache and the share of it that I/O uses |
//! | [`measure`] | what memory, cores and system calls cost |
//! | [`verdict`] | what follows: fabric, kind of memory, placement, warnings |
//! | `text`, `json` | how it is shown |

pub mod cache;
pub mod devices;
pub mod fabrics;
pub mod facts;
mod json;
pub mod measure;
mod text;
pub mod verdict;

use std::path::PathBuf;

use rackpool_output::chain;
use rackpool_shm::host::HostFiles;

use crate::cluster::racks_in;
use crate::commands::PoolFolder;
use crate::commands::status::rack_status;

use fabrics::CredentialsCheck;
use facts::Facts;
use measure::Measurements;
use verdict::Verdict;

/// What the doctor looks at.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The pool whose racks are shown, if one runs there.
    #[command(flatten)]
    pub pool: PoolFolder,
    /// The folder of this host's credentials, to see whether they can be used.
    #[arg(long, value_name = "DIR")]
    pub credentials: Option<PathBuf>,
    /// Measure nothing: say only what the kernel says.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Everything that is shown.
#[derive(Debug)]
pub struct Report {
    /// What the computer has.
    pub facts: Facts,
    /// What it costs; `None` if nothing was measured.
    pub measurements: Option<Measurements>,
    /// The racks of the pool, with their daemons' reports.
    pub racks: Vec<Rack>,
    /// The recommendations and warnings.
    pub verdict: Verdict,
}

/// A rack of a running pool.
#[derive(Debug)]
pub struct Rack {
    /// The rack's number.
    pub rack: u16,
    /// Kind of memory, placement and fabric as text, or why they are unknown.
    pub says: Result<[String; 3], String>,
}

/// Examines this computer and prints the report.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let facts = Facts::for_pool(&HostFiles::here(), &options.pool.dir);
    let measurements = (!options.quick).then(|| measure::all(&facts));
    let credentials = CredentialsCheck::look(options.credentials.as_deref());
    let verdict = Verdict::of(&facts, &credentials, measurements.as_ref());
    let report = Report { facts, measurements, racks: racks(options), verdict };
    let shown = if options.json { json::of(&report)? } else { text::of(&report) };
    rackpool_output::print(format_args!("{shown}"))?;
    Ok(())
}

fn racks(options: &Options) -> Vec<Rack> {
    // Without a folder there is no pool: the list is empty.
    let racks = racks_in(&options.pool.dir).unwrap_or_default();
    let ask = |rack: u16| {
        let socket = options.pool.dir.join(format!("rack-{rack}")).join("daemon.sock");
        let status = rack_status(&socket.display().to_string());
        status
            .map(|status| [status.memory, status.placement, status.fabric])
            .map_err(|error| chain(error.as_ref()))
    };
    racks.into_iter().map(|rack| Rack { rack: rack.0, says: ask(rack.0) }).collect()
}
