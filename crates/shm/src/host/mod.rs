//! What this computer has, according to `/sys` and `/proc`: NUMA nodes, pools of huge pages,
//! mounted file systems, memory limits, RDMA cards.
//!
//! A file that is missing or has unexpected contents counts as "none"; no function here fails.

mod cache;
mod cards;
mod huge_pages;
mod load;
mod memory_limit;
mod mounts;
mod nodes;
mod placement;
mod processor;

use std::path::{Path, PathBuf};

pub use cache::{DeviceWays, IIO_LLC_WAYS, LastLevelCache};
pub use cards::RdmaPort;
pub use huge_pages::{HugePage, HugePool, TransparentHuge};
pub use load::ProcessorTimes;
pub use memory_limit::MemoryLimit;
pub use mounts::Mount;
pub use nodes::NumaNode;
pub use placement::{ChosenNode, LOAD_WINDOW, LOADED, Placing};
pub use processor::Processor;

/// The kernel's files: those of this computer, or of a folder that a test has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFiles {
    root: PathBuf,
}

impl HostFiles {
    /// The files of this computer.
    #[must_use]
    pub fn here() -> Self {
        Self::at("/")
    }

    /// The files in `sys`, `proc` and `dev` below the folder `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A path below `/sys`.
    #[must_use]
    pub fn sys(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join("sys").join(path)
    }

    /// A path below `/dev`.
    #[must_use]
    pub fn dev(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join("dev").join(path)
    }

    /// A path below `/proc`.
    #[must_use]
    pub fn proc(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join("proc").join(path)
    }

    /// The contents of a file below `/sys`, trimmed; `None` if it cannot be read.
    #[must_use]
    pub fn sys_text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(&self.sys(path))
    }

    /// The number in a file below `/sys`, decimal or `0x…`.
    #[must_use]
    pub fn sys_number(&self, path: impl AsRef<Path>) -> Option<u64> {
        number(&self.sys_text(path)?)
    }

    /// The contents of a file below `/proc`, trimmed; `None` if it cannot be read.
    #[must_use]
    pub fn proc_text(&self, path: impl AsRef<Path>) -> Option<String> {
        text(&self.proc(path))
    }
}

fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The sorted names in a folder; empty if the folder does not exist.
#[must_use]
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Parses a list as the kernel writes it: `0-2,5` is 0, 1, 2 and 5. Skips invalid parts and returns
/// at most 65536 numbers.
///
/// ```
/// assert_eq!(rackpool_shm::host::parse_list("0-2,5"), [0, 1, 2, 5]);
/// assert_eq!(rackpool_shm::host::parse_list(""), []);
/// ```
#[must_use]
pub fn parse_list(text: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<(u32, u32)> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    };
    text.split(',').filter_map(range).flat_map(|(first, last)| first..=last).take(1 << 16).collect()
}

/// Formats a list as the kernel writes it; `none` for an empty one.
///
/// ```
/// assert_eq!(rackpool_shm::host::list_text(&[0, 1, 2, 5]), "0-2,5");
/// assert_eq!(rackpool_shm::host::list_text(&[]), "none");
/// ```
#[must_use]
pub fn list_text(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers.iter().copied() {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    if runs.is_empty() {
        return "none".into();
    }
    let text = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A computer with these files below `/sys` and `/proc`.
    pub(crate) fn fixture(files: &[(&str, &str)]) -> (tempfile::TempDir, HostFiles) {
        let folder = rackpool_testing::folder_of(files);
        let machine = HostFiles::at(folder.path());
        (folder, machine)
    }

    #[test]
    fn lists_with_nonsense_are_read_as_far_as_they_make_sense() {
        assert_eq!(parse_list("x,3,4-,7-8\n"), [3, 7, 8]);
        assert_eq!(parse_list("9-1"), []);
        assert_eq!(parse_list("0-4294967295").len(), 1 << 16);
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        let (_folder, machine) =
            fixture(&[("sys/a", "0x200000\n"), ("sys/b", "42"), ("sys/c", "-1")]);
        assert_eq!(machine.sys_number("a"), Some(2 << 20));
        assert_eq!(machine.sys_number("b"), Some(42));
        assert_eq!(machine.sys_number("c"), None);
        assert_eq!(machine.sys_number("none"), None);
    }
}
