//! The properties as given: files (`-P`), then single properties (`-p`).

use std::path::{Path, PathBuf};

use super::error::PropertyError;
use super::parse::parse;
use crate::workload::WorkloadName;

/// The properties with the shares of the operations, in the order of `Operation::ALL`.
pub(super) const SHARES: [&str; 5] = [
    "readproportion",
    "updateproportion",
    "insertproportion",
    "scanproportion",
    "readmodifywriteproportion",
];

/// Names and values in the order given; the last value of a name counts.
#[derive(Debug, Default)]
pub(super) struct Properties {
    pub(super) pairs: Vec<(String, String)>,
    /// Whether a file is among them; YCSB's defaults then apply.
    pub(super) from_file: bool,
}

impl Properties {
    /// Reads the properties of the files, then the single ones.
    pub(super) fn read(files: &[PathBuf], single: &[String]) -> Result<Self, PropertyError> {
        let mut all = Self { from_file: !files.is_empty(), ..Self::default() };
        for file in files {
            let text = match (std::fs::read(file), builtin(file)) {
                (Ok(bytes), _) => String::from_utf8_lossy(&bytes).into_owned(),
                (Err(_), Some(text)) => text,
                (Err(cause), None) => {
                    let (file, cause) = (file.clone(), cause.to_string());
                    return Err(PropertyError::File { file, cause });
                }
            };
            all.pairs.extend(parse(&text));
        }
        for given in single {
            let (name, value) = given
                .split_once('=')
                .ok_or_else(|| PropertyError::NoValue { given: given.clone() })?;
            all.pairs.push((name.trim().to_owned(), value.trim().to_owned()));
        }
        Ok(all)
    }
}

/// Returns the contents of YCSB's own file, `workloada` to `workloadf`, for a path of that name.
fn builtin(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let letter = name.strip_prefix("workload")?;
    let known = <WorkloadName as clap::ValueEnum>::from_str(letter, false).ok()?;
    let (shares, more) = match known {
        WorkloadName::A => ([0.5, 0.5, 0.0, 0.0, 0.0], ""),
        WorkloadName::B => ([0.95, 0.05, 0.0, 0.0, 0.0], ""),
        WorkloadName::C => ([1.0, 0.0, 0.0, 0.0, 0.0], ""),
        WorkloadName::D => ([0.95, 0.0, 0.05, 0.0, 0.0], "requestdistribution=latest\n"),
        WorkloadName::E => {
            ([0.0, 0.0, 0.05, 0.95, 0.0], "maxscanlength=100\nscanlengthdistribution=uniform\n")
        }
        WorkloadName::F => ([0.5, 0.0, 0.0, 0.0, 0.5], ""),
    };
    let shares: String =
        SHARES.iter().zip(shares).map(|(name, share)| format!("{name}={share}\n")).collect();
    Some(format!(
        "recordcount=1000\noperationcount=1000\nworkload=site.ycsb.workloads.CoreWorkload\n\
         readallfields=true\nrequestdistribution=zipfian\n{shares}{more}"
    ))
}
