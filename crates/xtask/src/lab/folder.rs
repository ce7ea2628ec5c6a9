//! The folder of one lab, which the guests mount as `/run/lab`:
//!
//! ```text
//! guest.sh  environment  script0  script1     what the host tells the guests
//! barrier.NAME.N  failed.N                    what the guests tell each other
//! rackN/console  rackN/output  rackN/*        logs; removed last
//! rackN/status                                the script's exit status, when it has ended
//! ```

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::RACKS;
use super::guest::Place;

/// The folder; removed when this is dropped, unless its logs are kept.
#[derive(Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
    logs: PathBuf,
    _lock: File,
}

impl RunFolder {
    /// Creates the folder in `lab`, and removes folders that killed labs left there.
    pub(super) fn make(lab: &Path) -> Result<Self> {
        let failed = || format!("{} can't be used", lab.display());
        fs::create_dir_all(lab).with_context(failed)?;
        remove_abandoned(lab).with_context(failed)?;
        let path = lab.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(failed)?;
        let lock = File::create(path.join(LOCK)).with_context(failed)?;
        lock.lock().with_context(failed)?;
        for rack in RACKS {
            fs::create_dir(path.join(format!("rack{rack}"))).with_context(failed)?;
        }
        Ok(Self { path, logs: lab.join("logs"), _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The paths of this rack's guest.
    pub(super) fn place(&self, rack: usize) -> Place {
        Place { rack, shared: self.path.clone(), console: self.log(rack, "console") }
    }

    /// The path of a rack's log.
    pub(super) fn log(&self, rack: usize, name: &str) -> PathBuf {
        self.path.join(format!("rack{rack}")).join(name)
    }

    /// Writes a file for the guests.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        fs::write(self.path.join(name), text).with_context(|| format!("{name} can't be written"))
    }

    /// The exit status of a rack's script; `None` while it runs.
    pub(super) fn status(&self, rack: usize) -> Result<Option<i32>> {
        let Ok(text) = fs::read_to_string(self.log(rack, "status")) else { return Ok(None) };
        let status = text.trim().parse().with_context(|| format!("rack {rack} left '{text}'"))?;
        Ok(Some(status))
    }

    /// Keeps the logs in place of the previous lab's; returns their folder.
    pub(super) fn keep_logs(&self) -> Result<PathBuf> {
        let aside = self.path.join("before");
        if self.logs.exists() {
            fs::rename(&self.logs, &aside)?;
        }
        fs::create_dir(&self.logs)?;
        for rack in RACKS {
            let name = format!("rack{rack}");
            fs::rename(self.path.join(&name), self.logs.join(&name))?;
        }
        Ok(self.logs.clone())
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("lab: {} was not removed: {error}", self.path.display());
        }
    }
}

const PREFIX: &str = "run-";
const LOCK: &str = "lock";

/// Removes the folders of labs that have ended: their locks are free.
fn remove_abandoned(lab: &Path) -> Result<()> {
    for entry in fs::read_dir(lab)? {
        let path = entry?.path();
        let is_run = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(PREFIX));
        if is_run && File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// A growing text file, read line by line.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    read: u64,
    partial: Vec<u8>,
}

impl Tail {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path, read: 0, partial: Vec::new() }
    }

    /// The lines that have been completed since the last call.
    pub(super) fn lines(&mut self) -> Result<Vec<String>> {
        // The file does not exist until the guest has created it.
        let Ok(mut file) = File::open(&self.path) else { return Ok(Vec::new()) };
        file.seek(SeekFrom::Start(self.read))?;
        self.read += u64::try_from(file.read_to_end(&mut self.partial)?)?;
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(Vec::new());
        };
        let rest = self.partial.split_off(end + 1);
        let complete = std::mem::replace(&mut self.partial, rest);
        Ok(String::from_utf8_lossy(&complete).lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_leaves_its_logs_only() {
        let lab = tempfile::tempdir().unwrap();
        for round in ["first", "second"] {
            let folder = RunFolder::make(lab.path()).unwrap();
            fs::write(folder.log(1, "output"), round).unwrap();
            assert_eq!(folder.keep_logs().unwrap(), lab.path().join("logs"));
            drop(folder);
            let log = fs::read_to_string(lab.path().join("logs/rack1/output")).unwrap();
            assert_eq!(log, round);
            assert_eq!(fs::read_dir(lab.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn what_a_killed_lab_left_is_removed_and_what_a_running_one_has_stays() {
        let lab = tempfile::tempdir().unwrap();
        let running = RunFolder::make(lab.path()).unwrap();
        let killed = lab.path().join("run-of-a-killed-lab");
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join(LOCK), "").unwrap();
        remove_abandoned(lab.path()).unwrap();
        assert!(!killed.exists() && running.path.exists());
    }

    #[test]
    fn a_status_is_there_when_the_script_has_ended() {
        let lab = tempfile::tempdir().unwrap();
        let folder = RunFolder::make(lab.path()).unwrap();
        assert_eq!(folder.status(0).unwrap(), None);
        fs::write(folder.log(0, "status"), "3\n").unwrap();
        assert_eq!(folder.status(0).unwrap(), Some(3));
        fs::write(folder.log(0, "status"), "three").unwrap();
        assert!(folder.status(0).is_err());
    }

    #[test]
    fn only_complete_lines_are_read_and_none_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output");
        let mut tail = Tail::of(path.clone());
        assert!(tail.lines().unwrap().is_empty());
        fs::write(&path, "one\ntw").unwrap();
        assert_eq!(tail.lines().unwrap(), ["one"]);
        fs::write(&path, "one\ntwo\nthree\nfo").unwrap();
        assert_eq!(tail.lines().unwrap(), ["two", "three"]);
        assert!(tail.lines().unwrap().is_empty());
    }
}
