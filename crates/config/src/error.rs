use std::io;
use std::path::PathBuf;

/// Why a program's options can't be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file can't be read.
    #[error("can't read {path}: {source}; --config names it")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not valid TOML.
    #[error("{path}:{line}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A key is unknown, or its value is invalid.
    #[error("{path}:{line}: {key}: {message}")]
    Entry {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// What is wrong.
        message: String,
    },
    /// The command line is wrong, or asks for help.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
}
