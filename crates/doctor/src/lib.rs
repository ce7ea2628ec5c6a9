//! What a machine has for a pool, where it lies and what it costs.
//!
//! | module | holds |
//! |---|---|
//! | [`facts`] | what the kernel says: nothing is measured |
//! | [`reach`] | the network and the RDMA software |
//! | [`devices`] | CXL memory and dax devices |
//! | [`measure`] | what memory, cores and system calls cost |
//! | [`fabrics`] | how racks could reach each other, and what is missing for it |
//! | `rack_check` | what follows for the racks that run |
//! | [`verdict`] | what follows: fabric, kind of memory, placement, warnings |
//! | `text`, `json` | how a [`Report`] is shown |
//!
//! ```
//! use std::path::Path;
//!
//! let report = rackpool_doctor::examine(Path::new("/dev/shm/rackpool"), Vec::new(), None, false);
//! println!("{}", report.to_text());
//! ```
#![forbid(unsafe_code)]

pub mod advice;
mod credentials_check;
pub mod devices;
pub mod fabrics;
pub mod facts;
#[cfg(test)]
mod fixture;
mod json;
pub mod measure;
mod rack_check;
pub mod reach;
mod report;
mod text;
pub mod verdict;

use std::path::Path;

use rackpool_shm::host::HostFiles;

use facts::Facts;
use verdict::Verdict;

pub use credentials_check::CredentialsCheck;
pub use report::{RackReport, RackState, Report};

/// Examines this machine for a pool in the folder `pool`, whose racks are `racks`.
///
/// `credentials` is the folder of this host's credentials. `measured` says whether memory, cores
/// and system calls are measured, which takes up to 6 s.
#[must_use]
pub fn examine(
    pool: &Path,
    racks: Vec<RackReport>,
    credentials: Option<&Path>,
    measured: bool,
) -> Report {
    let facts = Facts::for_pool(&HostFiles::here(), pool);
    let measurements = measured.then(|| measure::all(&facts));
    let credentials = CredentialsCheck::look(credentials);
    let mut verdict = Verdict::of(&facts, &credentials, measurements.as_ref());
    verdict.warnings.extend(rack_check::warnings(&facts, &racks));
    Report { facts, measurements, racks, verdict }
}
