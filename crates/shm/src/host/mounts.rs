use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::{HostFiles, HugePage};

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The folder where it is mounted.
    pub folder: PathBuf,
    /// Type of the file system: `tmpfs`, `hugetlbfs`, …
    pub kind: String,
    /// Mount options.
    pub options: Vec<String>,
}

impl Mount {
    /// The value of the option `name=value`.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    /// The page size of a hugetlbfs. The kernel writes `pagesize=2M` or `pagesize=1024M`.
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

impl HostFiles {
    /// The mounts that the calling thread sees, in the order of mounting.
    #[must_use]
    pub fn mounts(&self) -> Vec<Mount> {
        let table = std::fs::read(self.proc("thread-self/mounts")).unwrap_or_default();
        let mount = |line: &[u8]| {
            let mut fields = line.split(|byte| *byte == b' ').skip(1);
            let folder = unescape(fields.next()?);
            let kind = String::from_utf8_lossy(fields.next()?).into_owned();
            let options = String::from_utf8_lossy(fields.next()?);
            Some(Mount { folder, kind, options: options.split(',').map(str::to_owned).collect() })
        };
        table.split(|byte| *byte == b'\n').filter_map(mount).collect()
    }

    /// The mount that contains a folder: the last one of those with the longest path.
    #[must_use]
    pub fn mount_of(&self, folder: &Path) -> Option<Mount> {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
        let inside = self.mounts().into_iter().filter(|mount| folder.starts_with(&mount.folder));
        inside.max_by_key(|mount| mount.folder.components().count())
    }
}

/// Decodes a path of the mount table: the kernel writes blanks and backslashes as `\040` and the
/// like, other bytes unchanged.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    let mut rest = field;
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(meant) if *first == b'\\' => {
                path.push(meant);
                rest = &others[3..];
            }
            _ => {
                path.push(*first);
                rest = others;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
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

    #[test]
    fn a_mount_whose_path_is_no_text_hides_no_other() {
        let (folder, machine) = fixture(&[("proc/thread-self/mounts", "")]);
        let table = b"none /mnt/\xff\\134\\01 tmpfs rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n";
        std::fs::write(folder.path().join("proc/thread-self/mounts"), table).unwrap();
        let mounts = machine.mounts();
        assert_eq!(mounts[0].folder.as_os_str().as_encoded_bytes(), b"/mnt/\xff\\\\01");
        assert_eq!(mounts[1].folder, Path::new("/dev/shm"));
    }
}
