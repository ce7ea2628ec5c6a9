//! Why properties are rejected.

use std::path::PathBuf;

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
