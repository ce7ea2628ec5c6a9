//! YCSB's property files (`-P`) and single properties (`-p`).

mod apply;
mod parse;

use std::path::{Path, PathBuf};

use super::workload::WorkloadName;
pub(super) use apply::Settings;

/// Invalid properties. Every message says what to give instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PropertyError {
    /// A file could not be read.
    #[error(
        "the property file {} could not be read: {cause}. Give the path of one, or workloada to \
         workloadf for YCSB's own",
        file.display()
    )]
    File {
        /// The file given.
        file: PathBuf,
        /// The reason.
        cause: String,
    },
    /// `-p` without a value.
    #[error("the property '{given}' has no value: give -p NAME=VALUE")]
    NoValue {
        /// What was given.
        given: String,
    },
    /// A value is invalid or unsupported.
    #[error("the property {name}={value} can't be used: {needs}")]
    Value {
        /// The property.
        name: String,
        /// Its value.
        value: String,
        /// What the value must be.
        needs: String,
    },
}

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
            all.pairs.extend(parse::parse(&text));
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
        apply::SHARES.iter().zip(shares).map(|(name, share)| format!("{name}={share}\n")).collect();
    Some(format!(
        "recordcount=1000\noperationcount=1000\nworkload=site.ycsb.workloads.CoreWorkload\n\
         readallfields=true\nrequestdistribution=zipfian\n{shares}{more}"
    ))
}
