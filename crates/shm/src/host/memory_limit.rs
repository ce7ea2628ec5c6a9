use std::fmt;
use std::path::{Path, PathBuf};

use rackpool_model::ByteSize;

use super::{HostFiles, number, text};

/// A version 1 group without a limit reports almost 2^63.
const NO_LIMIT: u64 = 1 << 60;

/// The memory limit of this process's cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit in bytes; it includes files on memory file systems.
    pub bytes: u64,
    /// The cgroup file that sets the limit.
    pub file: PathBuf,
}

impl MemoryLimit {
    /// The remedy for a limit that is too low, as text for the operator.
    #[must_use]
    pub fn fix(&self) -> String {
        format!(
            "give the racks less --memory, or raise {} (MemoryMax= of systemd, --memory of a container)",
            self.file.display()
        )
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = self.file.parent().unwrap_or(&self.file);
        write!(f, "the memory cgroup {} allows {}", group.display(), ByteSize(self.bytes))
    }
}

impl HostFiles {
    /// The lowest limit of the memory cgroups that contain this process, parent groups included.
    #[must_use]
    pub fn memory_limit(&self) -> Option<MemoryLimit> {
        let groups = self.proc_text("self/cgroup")?;
        let limits = groups.lines().flat_map(|line| self.limits_of(line).unwrap_or_default());
        limits.min_by_key(|limit| limit.bytes)
    }

    /// The limits of one hierarchy, from a line of `/proc/self/cgroup`: `number:controllers:path`.
    fn limits_of(&self, line: &str) -> Option<Vec<MemoryLimit>> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let path = Path::new(path.strip_prefix('/')?);
        let (mounts, name): (&[&str], _) = if controllers.is_empty() {
            (&["fs/cgroup", "fs/cgroup/unified"], "memory.max")
        } else if controllers.split(',').any(|one| one == "memory") {
            (&["fs/cgroup/memory"], "memory.limit_in_bytes")
        } else {
            return None;
        };
        // In a container the process's own group may be the top one; its parents then do not exist
        // here.
        let groups = mounts.iter().flat_map(|mount| {
            path.ancestors().map(move |group| self.sys(mount).join(group).join(name))
        });
        let limit = |file: PathBuf| {
            let bytes = number(&text(&file)?).filter(|bytes| *bytes < NO_LIMIT)?;
            Some(MemoryLimit { bytes, file })
        };
        Some(groups.filter_map(limit).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    #[test]
    fn the_lowest_limit_of_a_group_and_its_parents_counts() {
        let files = [
            ("proc/self/cgroup", "0::/system.slice/rackpool.service\n"),
            ("sys/fs/cgroup/system.slice/rackpool.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "536870912\n"),
            ("sys/fs/cgroup/user.slice/memory.max", "1\n"),
        ];
        let (folder, machine) = fixture(&files);
        let limit = machine.memory_limit().unwrap();
        assert_eq!(limit.bytes, 512 << 20);
        let group = folder.path().join("sys/fs/cgroup/system.slice");
        assert_eq!(limit.file, group.join("memory.max"));
        let said = limit.to_string();
        assert_eq!(said, format!("the memory cgroup {} allows 512 MiB", group.display()));
        assert!(limit.fix().contains("system.slice/memory.max (MemoryMax= of systemd"));
        assert_eq!(fixture(&files[..2]).1.memory_limit(), None);
    }

    #[test]
    fn groups_of_version_1_have_a_hierarchy_for_memory() {
        let files = [
            ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1048576"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152"),
            ("sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1"),
        ];
        let (folder, machine) = fixture(&files);
        let file = folder.path().join("sys/fs/cgroup/memory/a/memory.limit_in_bytes");
        assert_eq!(machine.memory_limit(), Some(MemoryLimit { bytes: 1 << 20, file }));
        assert_eq!(fixture(&files[..2]).1.memory_limit(), None);
    }

    #[test]
    fn a_container_that_sees_its_group_as_the_top_one_has_its_limit() {
        let (_folder, machine) = fixture(&[
            ("proc/self/cgroup", "0::/../../docker/abc\n4:memory:/docker/abc\nnonsense\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096"),
        ]);
        assert_eq!(machine.memory_limit().unwrap().bytes, 4096);
    }
}
