use std::path::PathBuf;

/// Why the hardware cannot be examined or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardwareError {
    /// It is not known whether and where the processor has the register.
    #[error(
        "the ways for devices of {0} are not known here: only Intel's family 6, model 85 (Skylake \
         and Cascade Lake servers) is"
    )]
    UnknownProcessor(String),
    /// The kernel does not say what processor this is.
    #[error("/proc/cpuinfo does not name the processor")]
    NoProcessor,
    /// A model-specific register can't be accessed.
    #[error(
        "can't {verb} register 0xC8B through {path}: {source}. It takes root, the module msr \
         (modprobe msr), and a kernel that is not locked down"
    )]
    Register {
        /// `read` or `write`.
        verb: &'static str,
        /// The file of the processor's registers.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A register or a mask did not take a value.
    #[error("CPU {cpu} did not take {wanted:#x}: its register has {found:#x}")]
    NotTaken {
        /// The processor.
        cpu: u32,
        /// The value that was written.
        wanted: u64,
        /// The value that was read back.
        found: u64,
    },
    /// What was asked for can't be set.
    #[error("{0}")]
    Refused(String),
    /// An earlier change was not undone.
    #[error("an earlier change was not undone, its note is {0}: run `rackpool dca restore` first")]
    Leftover(PathBuf),
    /// A file can't be read or written.
    #[error("{verb} {path}: {source}")]
    File {
        /// What was tried.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The note of an earlier change is damaged.
    #[error("{path}, line {line}: this is no note of a change; look at it and remove it by hand")]
    Damaged {
        /// The note.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
    },
}
