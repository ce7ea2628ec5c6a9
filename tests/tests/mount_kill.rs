//! `kill -9` of a mount's process under load, with programs that note what was acknowledged.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::gap;
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{CWD, RenameFlags, renameat_with};

const ROUNDS: u64 = 12;
/// The most time until the memory of dead mounts is reclaimed: other mounts detect their end, and
/// then sweep.
const RETURN: Duration = Duration::from_secs(60);

fn started() -> Option<(TestPool, TestMount)> {
    if let Some(reason) = why_not() {
        skipped(reason);
        return None;
    }
    let pool = TestPool::start(96 << 20, 256 << 10);
    pool.wait_until_racks_meet();
    let mount = TestMount::start(&pool, 0);
    Some((pool, mount))
}

/// What a worker knows of its folder when its mount is killed.
enum Known {
    Names(Names),
    Contents(Contents),
}

impl Known {
    fn check(&self) {
        match self {
            Self::Names(names) => names.check(),
            Self::Contents(contents) => contents.check(),
        }
    }
}

/// A folder of symbolic links with distinct targets.
struct Names {
    folder: PathBuf,
    acknowledged: BTreeMap<String, String>,
    /// The folder's contents if the unanswered operation was executed.
    pending: BTreeMap<String, String>,
}

impl Names {
    fn new(folder: PathBuf) -> Self {
        std::fs::create_dir(&folder).unwrap();
        Self { folder, acknowledged: BTreeMap::new(), pending: BTreeMap::new() }
    }

    /// Changes names until an operation fails because the mount is killed.
    fn work(mut self, seed: u64, done: &AtomicU32) -> Known {
        let mut random = SmallRng::seed_from_u64(seed);
        for number in 0_u64.. {
            self.pending.clone_from(&self.acknowledged);
            let [one, other] = [(); 2].map(|()| random.random_range(0..8).to_string());
            let outcome = match random.random_range(0..5) {
                0 | 1 => self.link(&one, &number.to_string()),
                2 | 3 => self.rename(&one, &other),
                _ => self.exchange_or_remove(&one, &other),
            };
            if outcome.is_err() {
                return Known::Names(self);
            }
            self.acknowledged.clone_from(&self.pending);
            done.fetch_add(1, Ordering::Relaxed);
        }
        unreachable!("the mount is killed before")
    }

    fn link(&mut self, name: &str, target: &str) -> std::io::Result<()> {
        if self.acknowledged.contains_key(name) {
            return Ok(());
        }
        self.pending.insert(name.into(), target.into());
        std::os::unix::fs::symlink(target, self.folder.join(name))
    }

    fn rename(&mut self, from: &str, to: &str) -> std::io::Result<()> {
        let Some(target) = self.pending.remove(from) else { return Ok(()) };
        self.pending.insert(to.into(), target);
        std::fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn exchange_or_remove(&mut self, one: &str, other: &str) -> std::io::Result<()> {
        match (self.acknowledged.get(one).cloned(), self.acknowledged.get(other).cloned()) {
            (Some(first), Some(second)) if one != other => {
                self.pending.insert(one.into(), second);
                self.pending.insert(other.into(), first);
                let [one, other] = [one, other].map(|name| self.folder.join(name));
                Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
            }
            (Some(_), _) => {
                self.pending.remove(one);
                std::fs::remove_file(self.folder.join(one))
            }
            _ => Ok(()),
        }
    }

    fn check(&self) {
        let found: BTreeMap<String, String> = std::fs::read_dir(&self.folder)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let target = std::fs::read_link(&path).unwrap();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, target.to_str().unwrap().to_owned())
            })
            .collect();
        assert!(
            found == self.acknowledged || found == self.pending,
            "found {found:?}, acknowledged {:?}, under way {:?}",
            self.acknowledged,
            self.pending
        );
    }
}

/// A file that is written sequentially, in place, and beyond its end.
struct Contents {
    path: PathBuf,
    acknowledged: Vec<u8>,
    /// Offset and bytes of the unanswered write.
    pending: (usize, Vec<u8>),
    /// Set while the file is being removed or created.
    is_new: bool,
}

impl Contents {
    /// Creates the file in a folder of its own. The folder does not exist when the mount is gone,
    /// so nothing is created beneath the mount.
    fn new(folder: &Path) -> Self {
        std::fs::create_dir(folder).unwrap();
        let path = folder.join("file");
        Self { path, acknowledged: Vec::new(), pending: (0, Vec::new()), is_new: true }
    }

    /// Writes until that fails because the mount is killed; sometimes starts a new file.
    fn work(mut self, seed: u64, done: &AtomicU32) -> Known {
        let mut random = SmallRng::seed_from_u64(seed);
        while let Ok(file) = File::create(&self.path) {
            self.acknowledged.clear();
            self.is_new = false;
            if self.fill(&file, &mut random, done).is_err() {
                break;
            }
            self.is_new = true;
            if std::fs::remove_file(&self.path).is_err() {
                break;
            }
        }
        Known::Contents(self)
    }

    fn fill(
        &mut self,
        file: &File,
        random: &mut SmallRng,
        done: &AtomicU32,
    ) -> std::io::Result<()> {
        for number in 1..=u8::MAX {
            let size = self.acknowledged.len();
            let offset = match random.random_range(0..3) {
                0 => size,
                1 => random.random_range(0..=size),
                _ => random.random_range(0..=size / 4096) * 4096,
            };
            // Keeps the file smaller than the pool's memory.
            let offset = offset.min(4 << 20);
            self.pending = (offset, vec![number; random.random_range(1..100_000)]);
            file.write_all_at(&self.pending.1, offset as u64)?;
            if number % 16 == 0 {
                file.sync_all()?;
            }
            let (offset, bytes) = std::mem::take(&mut self.pending);
            self.acknowledged.resize(size.max(offset + bytes.len()), 0);
            self.acknowledged[offset..offset + bytes.len()].copy_from_slice(&bytes);
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn check(&self) {
        let Ok(found) = std::fs::read(&self.path) else {
            assert!(self.is_new, "{} is lost", self.path.display());
            return;
        };
        if found.is_empty() && self.is_new {
            return;
        }
        let (from, pending) = (self.pending.0, &self.pending.1);
        let to = from + pending.len();
        assert!(found.len() >= self.acknowledged.len(), "{} B are lost", self.acknowledged.len());
        assert!(found.len() <= to.max(self.acknowledged.len()));
        for (at, got) in found.iter().enumerate() {
            let due = self.acknowledged.get(at).copied().unwrap_or_default();
            let under_way = (from..to).contains(&at) && *got == pending[at - from];
            assert!(*got == due || under_way, "byte {at} is {got}, acknowledged was {due}");
        }
    }
}

/// Works in a mount that is killed after a number of operations and a short time; returns what the
/// workers know.
fn kill_under_load(mount: &mut TestMount, round: u64, random: &mut SmallRng) -> Vec<Known> {
    let done = AtomicU32::new(0);
    let enough = random.random_range(20..300);
    let moment = Duration::from_micros(random.random_range(0..3000));
    let folder = |name: &str| mount.path(format!("{name} {round}"));
    let names = [0, 1].map(|worker| Names::new(folder(&format!("names {worker}"))));
    let contents = [0, 1].map(|worker| Contents::new(&folder(&format!("contents {worker}"))));
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (worker, names) in names.into_iter().enumerate() {
            let done = &done;
            workers.push(scope.spawn(move || names.work(round * 10 + worker as u64, done)));
        }
        for (worker, contents) in contents.into_iter().enumerate() {
            let done = &done;
            let seed = round * 10 + 5 + worker as u64;
            workers.push(scope.spawn(move || contents.work(seed, done)));
        }
        wait_until("the load is on", TIMEOUT, || done.load(Ordering::Relaxed) >= enough);
        std::thread::sleep(moment);
        mount.kill();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

#[test]
fn nothing_acknowledged_is_lost_when_a_mount_is_killed() {
    let Some((pool, mut mount)) = started() else { return };
    let used = || pool.allocated().iter().sum::<u64>();
    std::fs::write(mount.path("first"), "what the mount needs is there").unwrap();
    let little = used() + (8 << 20);
    let mut random = SmallRng::seed_from_u64(7);
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let known = kill_under_load(&mut mount, round, &mut random);
        let killed = Instant::now();
        mount.mount();
        known.iter().for_each(Known::check);
        slowest = slowest.max(killed.elapsed());
        clear(mount.root());
    }
    println!("mounted and checked after a kill within {slowest:?}");
    assert!(slowest < TIMEOUT, "{slowest:?}");
    wait_until("the memory of all files is back", RETURN, || used() < little);
}

/// Removes all that is in a folder.
fn clear(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
            .unwrap();
    }
}

#[test]
fn a_killed_mount_leaves_a_folder_that_can_be_used() {
    let Some((_pool, mut mount)) = started() else { return };
    std::fs::write(mount.path("file"), "in the pool").unwrap();
    let open = File::open(mount.path("file")).unwrap();
    mount.kill();
    let mut read = [0; 4];
    assert!(open.read_at(&mut read, 4096).is_err());
    drop(open);
    wait_until("the dead mount is detached", TIMEOUT, || !mount.is_dead());
    assert_eq!(std::fs::read_dir(mount.root()).unwrap().count(), 0);
    mount.mount();
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"in the pool");
}

#[test]
fn a_mount_is_made_over_a_dead_one() {
    let Some((_pool, mut mount)) = started() else { return };
    for round in 0..10_u8 {
        std::fs::write(mount.path("file"), [round]).unwrap();
        mount.kill();
        // At once, while the process that detaches the dead mount may still be at work.
        mount.mount();
        assert_eq!(std::fs::read(mount.path("file")).unwrap(), [round]);
    }
}

#[test]
fn files_that_were_open_without_a_name_go_with_their_mount() {
    let Some((pool, mut mount)) = started() else { return };
    let other = TestMount::start(&pool, 1);
    let used = || pool.allocated().iter().sum::<u64>();
    std::fs::write(other.path("first"), "what the mounts need is there").unwrap();
    std::fs::remove_file(other.path("first")).unwrap();
    let little = used() + (8 << 20);
    let path = mount.path("file");
    let file = File::create(&path).unwrap();
    file.write_all_at(&vec![1; 20 << 20], 0).unwrap();
    std::fs::remove_file(&path).unwrap();
    mount.kill();
    drop(file);
    wait_until("the other mount has freed it", RETURN, || used() < little);
    assert_eq!(std::fs::read_dir(other.root()).unwrap().count(), 0);
}

#[test]
fn the_other_rack_works_on_while_a_mount_is_killed() {
    let Some((pool, mut mount)) = started() else { return };
    let other = TestMount::start(&pool, 1);
    let mut random = SmallRng::seed_from_u64(9);
    std::fs::create_dir(other.path("other")).unwrap();
    for round in 0..5 {
        let known = kill_under_load(&mut mount, round, &mut random);
        // In the same folders that the dead mount was changing.
        for entry in std::fs::read_dir(other.root()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                std::fs::write(path.join("from the other rack"), b"written").unwrap();
                std::fs::remove_file(path.join("from the other rack")).unwrap();
            }
        }
        mount.mount();
        known.iter().for_each(Known::check);
    }
}

/// Reads all that is in a folder and its subfolders; ignores what disappears meanwhile.
fn read_all(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_all(&path);
        } else {
            let _ = std::fs::read(&path);
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_a_mount_is_killed_while_pages_move() {
    if let Some(reason) = why_not() {
        return skipped(reason);
    }
    let pool = TestPool::restless(96 << 20, 256 << 10);
    pool.wait_until_racks_meet();
    let mut mounts = [0, 1].map(|rack| TestMount::start(&pool, rack));
    let mut random = SmallRng::seed_from_u64(11);
    for round in 0..6 {
        let [one, other] = &mut mounts;
        let (victim, other) = if round % 2 == 0 { (one, other) } else { (other, one) };
        let over = AtomicBool::new(false);
        let known = std::thread::scope(|scope| {
            // Both racks use the same files.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    read_all(other.root());
                }
            });
            let known = kill_under_load(victim, round, &mut random);
            over.store(true, Ordering::Relaxed);
            known
        });
        victim.mount();
        known.iter().for_each(Known::check);
        clear(other.root());
    }
    assert!(pool.has_moved(), "no page has moved, none was copied");
}

/// Writes numbers into a file of its own and reads each back; reopens the file after an error.
fn count_up(path: PathBuf) -> impl FnMut(u64) -> io::Result<()> + Send {
    // Later opens do not create the file: the folder beneath the mount stays empty.
    std::fs::write(&path, [0; 8]).unwrap();
    let mut file = None;
    move |number| {
        let open = match &mut file {
            Some(open) => open,
            none => none.insert(File::options().read(true).write(true).open(&path)?),
        };
        let (new, mut read) = (number.to_le_bytes(), [0; 8]);
        let done = open.write_all_at(&new, 0).and_then(|()| open.read_exact_at(&mut read, 0));
        if let Err(error) = done {
            file = None;
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, error));
        }
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("{read:?} for {number}"));
        if read == new { Ok(()) } else { Err(wrong()) }
    }
}

#[test]
fn programs_on_a_killed_mount_soon_go_on() {
    let Some((_pool, mut mount)) = started() else { return };
    std::fs::create_dir(mount.path("counters")).unwrap();
    for round in 0..6 {
        let root = mount.path("counters");
        let gap = gap::longest(
            4,
            |number| count_up(root.join(number.to_string())),
            || {
                mount.kill();
                mount.mount();
            },
        );
        // The promised limit of a second is measured by `cargo x bench service`, on a quiet
        // machine.
        println!("round {round}: no answer for {gap:?}");
        assert!(gap < Duration::from_secs(10), "round {round}: a program waited for {gap:?}");
    }
}
