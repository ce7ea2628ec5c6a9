//! Files that are kept between labs: the kernel's packages, the boot files of the guests, and
//! whether KVM works. All work trees of a user share the cache.
//!
//! An entry with its final name is complete: it is made under another name and then renamed.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};

use super::ctrl_c::{Interrupts, PAUSE};

/// The cache, locked: only one lab at a time prepares its files.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    _lock: File,
}

impl Cache {
    /// Opens this user's cache; waits while another lab has it open.
    pub(super) fn open(interrupts: &Interrupts) -> Result<Self> {
        Self::open_at(&folder()?, interrupts)
    }

    fn open_at(folder: &Path, interrupts: &Interrupts) -> Result<Self> {
        let unusable = || format!("{} can't be used as a cache", folder.display());
        fs::create_dir_all(folder).with_context(unusable)?;
        let lock = File::create(folder.join("lock")).with_context(unusable)?;
        while let Err(error) = lock.try_lock() {
            match error {
                fs::TryLockError::WouldBlock => interrupts.check()?,
                fs::TryLockError::Error(error) => return Err(error).with_context(unusable),
            }
            thread::sleep(PAUSE);
        }
        let cache = Self { folder: folder.to_path_buf(), _lock: lock };
        cache.remove_all(|name| name.starts_with(UNFINISHED)).with_context(unusable)?;
        Ok(cache)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The entry of this name, if it exists.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join(name);
        path.exists().then_some(path)
    }

    /// The names of all complete entries, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    /// Makes an entry. `make` fills an empty folder, and returns the path in it that is kept and
    /// the entry's name.
    pub(super) fn make(
        &self,
        make: impl FnOnce(&Path) -> Result<(PathBuf, String)>,
    ) -> Result<PathBuf> {
        let unfinished = self.folder.join(format!("{UNFINISHED}{}", std::process::id()));
        fs::create_dir(&unfinished)?;
        let made = make(&unfinished).and_then(|(kept, name)| {
            let path = self.folder.join(name);
            fs::rename(&kept, &path)?;
            Ok(path)
        });
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)?;
        }
        made
    }

    /// Removes the entries for which `is_unwanted` returns true.
    pub(super) fn remove_all(&self, is_unwanted: impl Fn(&str) -> bool) -> Result<()> {
        for name in self.names()?.iter().filter(|name| is_unwanted(name)) {
            let path = self.folder.join(name);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }?;
        }
        Ok(())
    }
}

/// Prefix of entries that are being made. An entry with this prefix may remain from a killed lab.
const UNFINISHED: &str = "unfinished-";

fn folder() -> Result<PathBuf> {
    let caches = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let caches = caches.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    let caches = caches.context("neither XDG_CACHE_HOME nor HOME says where to keep downloads")?;
    Ok(caches.join("rackpool/lab"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn only_complete_entries_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let interrupts = Interrupts::catch().unwrap();
        let cache = Cache::open_at(folder.path(), &interrupts).unwrap();
        let stopped = cache.make(|unfinished| {
            fs::write(unfinished.join("kernel"), "half of it")?;
            bail!("no network")
        });
        assert_eq!(stopped.unwrap_err().to_string(), "no network");
        assert_eq!(cache.names().unwrap(), ["lock"]);
        let made = cache.make(|unfinished| {
            fs::write(unfinished.join("kernel"), "all of it")?;
            Ok((unfinished.join("kernel"), "kernel-1".into()))
        });
        assert_eq!(cache.find("kernel-1"), Some(made.unwrap()));
        assert_eq!(cache.names().unwrap(), ["kernel-1", "lock"]);
    }

    #[test]
    fn what_a_killed_lab_left_is_removed_and_the_rest_stays() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("unfinished-77/deep")).unwrap();
        fs::create_dir(folder.path().join("boot-1")).unwrap();
        let interrupts = Interrupts::catch().unwrap();
        let cache = Cache::open_at(folder.path(), &interrupts).unwrap();
        assert_eq!(cache.names().unwrap(), ["boot-1", "lock"]);
    }

    #[test]
    fn whoever_waits_for_another_lab_can_be_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let interrupts = Interrupts::catch().unwrap();
        let first = Cache::open_at(folder.path(), &interrupts).unwrap();
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGINT).unwrap();
        assert!(Cache::open_at(folder.path(), &interrupts).is_err());
        drop(first);
        Cache::open_at(folder.path(), &interrupts).unwrap();
    }
}
