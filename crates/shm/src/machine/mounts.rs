use std::path::{Path, PathBuf};

use super::{HugePage, Machine};

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub folder: PathBuf,
    /// Its type: `tmpfs`, `hugetlbfs`, …
    pub kind: String,
    /// Its options.
    pub options: Vec<String>,
}

impl Mount {
    /// The value of the option `name=value`.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// The size of the pages of a hugetlbfs: the kernel writes `pagesize=2M` or `pagesize=1024M`.
    #[must_use]
    pub fn huge_page(&self) -> Option<HugePage> {
        if self.kind != "hugetlbfs" {
            return None;
        }
        match self.option("pagesize")? {
            "2M" | "2048K" => Some(HugePage::Size2M),
            "1G" | "1024M" => Some(HugePage::Size1G),
            _ => None,
        }
    }
}

impl Machine {
    /// What is mounted, as the calling thread sees it, in the order it was mounted.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let text = self.proc_text("thread-self/mounts").unwrap_or_default();
        let mount = |line: &str| {
            let mut fields = line.split(' ').skip(1);
            Some(Mount {
                folder: unescape(fields.next()?),
                kind: fields.next()?.to_owned(),
                options: fields.next()?.split(',').map(str::to_owned).collect(),
            })
        };
        text.lines().filter_map(mount).collect()
    }

    /// The mount that a folder lies in: the last of those with the longest path.
    #[must_use]
    pub fn mount_of(&self, folder: &Path) -> Option<Mount> {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
        let inside = self.mounts().into_iter().filter(|mount| folder.starts_with(&mount.folder));
        inside.max_by_key(|mount| mount.folder.components().count())
    }
}

/// The kernel writes blanks in paths as `\040`.
fn unescape(field: &str) -> PathBuf {
    let mut text = field.to_owned();
    for (written, meant) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(written, meant);
    }
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    #[test]
    fn mounts_are_read_with_their_options() {
        let (_folder, machine) = fixture(&[(
            "proc/thread-self/mounts",
            "tmpfs /dev/shm tmpfs rw,size=5k 0 0\n\
             tmpfs /dev/shm tmpfs rw,huge=advise 0 0\n\
             none /mnt/huge\\040pages hugetlbfs rw,relatime,pagesize=1024M 0 0\n\
             none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n\
             cut\n",
        )]);
        let mounts = machine.mounts();
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[2].folder, Path::new("/mnt/huge pages"));
        assert_eq!(mounts[2].huge_page(), Some(HugePage::Size1G));
        assert_eq!(mounts[3].huge_page(), Some(HugePage::Size2M));
        assert_eq!(mounts[0].huge_page(), None);
        let shm = machine.mount_of(Path::new("/dev/shm/rackpool")).unwrap();
        assert_eq!(shm.option("huge"), Some("advise"), "the later mount hides the earlier one");
        assert!(machine.mount_of(Path::new("/proc")).is_none());
    }
}
