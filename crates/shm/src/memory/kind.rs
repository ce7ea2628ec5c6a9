use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::host::HugePage;

/// The kind of memory that holds the frames of a rack.
///
/// ```
/// use rackpool_shm::memory::MemoryKind;
/// assert_eq!("tmpfs".parse(), Ok(MemoryKind::Tmpfs));
/// assert_eq!("numa:1".parse(), Ok(MemoryKind::Node(1)));
/// let dax = "dax:/dev/dax0.0".parse::<MemoryKind>();
/// assert_eq!(dax.map(|kind| kind.to_string()), Ok("dax:/dev/dax0.0".into()));
/// assert!("huge:4M".parse::<MemoryKind>().is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// A file in the rack's folder, on a memory file system.
    #[default]
    Tmpfs,
    /// A memfd: memory without a name, which ends with the last process that has it.
    Memfd,
    /// A file on a hugetlbfs with this page size.
    Huge(HugePage),
    /// A file in the rack's folder whose pages are on one NUMA node. CXL memory that the kernel
    /// manages is a node without processors.
    Node(u32),
    /// A `device_dax` character device: CXL memory that the kernel does not manage.
    Dax(PathBuf),
}

/// A text that names no kind of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no kind of memory: choose tmpfs, memfd, huge:2M, huge:1G, numa:N (a node of `rackpool doctor`) or dax:/dev/daxX.Y"
)]
pub struct MemoryKindError(String);

/// Codes in the superblock; 0 is tmpfs, as in files of releases that had no kinds.
const MEMFD: u64 = 1;
const HUGE_2M: u64 = 2;
const HUGE_1G: u64 = 3;
const NODE: u64 = 4;
const DAX: u64 = 5;

impl MemoryKind {
    /// Returns true if the memory still exists for the next daemon when this one has ended.
    #[must_use]
    pub const fn outlives_daemon(&self) -> bool {
        !matches!(self, Self::Memfd)
    }

    /// The code in the superblock: the kind in the low byte, the node above it. The identity of a
    /// device is noted on the device.
    #[must_use]
    pub fn code(&self) -> u64 {
        match self {
            Self::Tmpfs => 0,
            Self::Memfd => MEMFD,
            Self::Huge(HugePage::Size2M) => HUGE_2M,
            Self::Huge(HugePage::Size1G) => HUGE_1G,
            Self::Node(node) => NODE | (u64::from(*node) << 8),
            Self::Dax(_) => DAX,
        }
    }

    /// Returns true if memory with this code ended with its daemon.
    #[must_use]
    pub const fn is_gone(code: u64) -> bool {
        code == MEMFD
    }

    /// Describes a code in words, for messages.
    #[must_use]
    pub fn describe_code(code: u64) -> String {
        match (code & 0xff, code >> 8) {
            (0, 0) => "tmpfs".into(),
            (MEMFD, 0) => "memfd".into(),
            (HUGE_2M, 0) => "huge:2M".into(),
            (HUGE_1G, 0) => "huge:1G".into(),
            (NODE, node) => format!("numa:{node}"),
            (DAX, 0) => "dax".into(),
            _ => format!("a kind that this release does not know ({code:#x})"),
        }
    }
}

impl FromStr for MemoryKind {
    type Err = MemoryKindError;

    fn from_str(text: &str) -> Result<Self, MemoryKindError> {
        let (kind, value) = text.split_once(':').unwrap_or((text, ""));
        match (kind, value) {
            ("tmpfs", "") => Ok(Self::Tmpfs),
            ("memfd", "") => Ok(Self::Memfd),
            ("huge", "2M") => Ok(Self::Huge(HugePage::Size2M)),
            ("huge", "1G") => Ok(Self::Huge(HugePage::Size1G)),
            ("dax", path) if path.starts_with('/') => Ok(Self::Dax(path.into())),
            ("numa", node) => {
                node.parse().map(Self::Node).map_err(|_| MemoryKindError(text.into()))
            }
            _ => Err(MemoryKindError(text.into())),
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tmpfs => f.write_str("tmpfs"),
            Self::Memfd => f.write_str("memfd"),
            Self::Huge(page) => write!(f, "huge:{page}"),
            Self::Node(node) => write!(f, "numa:{node}"),
            Self::Dax(path) => write!(f, "dax:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_as_it_is_written() {
        for text in ["tmpfs", "memfd", "huge:2M", "huge:1G", "numa:0", "numa:31", "dax:/dev/dax0.0"]
        {
            let kind: MemoryKind = text.parse().unwrap();
            assert_eq!(kind.to_string(), text);
            let described = MemoryKind::describe_code(kind.code());
            assert!(text.starts_with(&described), "{text} is noted as {described}");
        }
        assert_eq!(MemoryKind::default().code(), 0, "as in files of before there were kinds");
    }

    #[test]
    fn nonsense_is_refused_and_the_choice_named() {
        for text in [
            "",
            "huge",
            "huge:",
            "huge:3M",
            "numa",
            "numa:",
            "numa:-1",
            "numa:x",
            "dax",
            "dax:dax0.0",
            "tmpfs:x",
            "memfd:1",
            "Tmpfs",
        ] {
            let error = text.parse::<MemoryKind>().unwrap_err();
            assert!(error.to_string().contains("huge:2M"), "{text}");
        }
        assert!(MemoryKind::describe_code(77).contains("does not know"));
    }

    #[test]
    fn only_memory_without_a_name_ends_with_its_daemon() {
        assert!(!MemoryKind::Memfd.outlives_daemon());
        assert!(MemoryKind::is_gone(MemoryKind::Memfd.code()));
        for kind in [MemoryKind::Tmpfs, MemoryKind::Node(1), MemoryKind::Huge(HugePage::Size2M)] {
            assert!(kind.outlives_daemon() && !MemoryKind::is_gone(kind.code()));
        }
    }
}
