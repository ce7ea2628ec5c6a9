//! Random operations on a tree, compared with the same ones on another file system.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

/// Names that operations choose from: few, so that operations collide.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "long name with spaces", "ü"];
/// Operations between two comparisons of the whole trees.
const LOOK_EVERY: u32 = 50;
/// The number of last operations that a failure prints.
const TOLD: usize = 12;

/// One operation on paths below a root.
#[derive(Clone, Debug)]
enum Operation {
    Create(PathBuf, u32),
    Write(PathBuf, Vec<u8>),
    Truncate(PathBuf, u64),
    MakeFolder(PathBuf, u32),
    RemoveFolder(PathBuf),
    Unlink(PathBuf),
    Link(PathBuf, PathBuf),
    Symlink(String, PathBuf),
    Rename(PathBuf, PathBuf, u32),
    SetMode(PathBuf, u32),
    SetOwner(PathBuf, u32),
    SetAttribute(PathBuf, Vec<u8>),
    RemoveAttribute(PathBuf),
}

/// The observable attributes of one entry of a tree.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    owner: u32,
    links: u64,
    size: u64,
    /// A file's bytes; a link's target.
    contents: Vec<u8>,
    attribute: Option<Vec<u8>>,
}

impl Seen {
    const fn is_folder(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }
}

/// Executes the same operations in two empty folders, and compares their results and the trees
/// afterwards. A failure prints the seed and the last operations.
pub fn exercise(subject: &Path, model: &Path, seed: u64, operations: u32) -> anyhow::Result<()> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut told = VecDeque::new();
    for number in 0..operations {
        let operation = choose(&mut random);
        let (got, due) = (apply(subject, &operation), apply(model, &operation));
        told.push_back(format!("{operation:?} -> {due:?}"));
        if told.len() > TOLD {
            told.pop_front();
        }
        let history = || {
            let told: Vec<_> = told.iter().map(String::as_str).collect();
            format!("seed {seed}, operation {number}, the last ones:\n{}", told.join("\n"))
        };
        ensure!(got == due, "{operation:?} is {got:?} instead of {due:?}: {}", history());
        if number % LOOK_EVERY == LOOK_EVERY - 1 || number + 1 == operations {
            compare(subject, model).with_context(history)?;
        }
    }
    Ok(())
}

fn path(random: &mut SmallRng) -> PathBuf {
    let depth = random.random_range(1..=3);
    (0..depth).filter_map(|_| NAMES.choose(random)).collect()
}

fn choose(random: &mut SmallRng) -> Operation {
    let at = path(random);
    let mode = random.random_range(0..0o1000);
    match random.random_range(0..100) {
        0..12 => Operation::Create(at, mode),
        12..20 => {
            let bytes = vec![random.random(); random.random_range(0..20_000)];
            Operation::Write(at, bytes)
        }
        20..25 => Operation::Truncate(at, random.random_range(0..30_000)),
        25..38 => Operation::MakeFolder(at, mode),
        38..44 => Operation::RemoveFolder(at),
        44..50 => Operation::Unlink(at),
        50..57 => Operation::Link(at, path(random)),
        57..63 => Operation::Symlink(NAMES.choose(random).copied().unwrap_or("a").into(), at),
        63..85 => {
            let flags = [0, 0, 0, RenameFlags::NOREPLACE.bits(), RenameFlags::EXCHANGE.bits()];
            let to = path(random);
            Operation::Rename(at, to, flags.choose(random).copied().unwrap_or_default())
        }
        85..90 => Operation::SetMode(at, mode),
        90..93 => Operation::SetOwner(at, random.random_range(0..1000)),
        93..97 => Operation::SetAttribute(at, vec![random.random(); random.random_range(0..500)]),
        _ => Operation::RemoveAttribute(at),
    }
}

fn apply(root: &Path, operation: &Operation) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode;
    let at = |path: &Path| root.join(path);
    match operation {
        Operation::Create(path, bits) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::open(at(path), flags, mode(*bits)).map(drop)
        }
        Operation::Write(path, bytes) => {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::open(at(path), flags, Mode::empty())?;
            rustix::io::pwrite(&file, bytes, 100).map(drop)
        }
        Operation::Truncate(path, size) => {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::open(at(path), flags, Mode::empty())?;
            rustix::fs::ftruncate(&file, *size)
        }
        Operation::MakeFolder(path, bits) => rustix::fs::mkdir(at(path), mode(*bits)),
        Operation::RemoveFolder(path) => rustix::fs::rmdir(at(path)),
        Operation::Unlink(path) => rustix::fs::unlink(at(path)),
        Operation::Link(old, new) => rustix::fs::link(at(old), at(new)),
        Operation::Symlink(target, path) => rustix::fs::symlink(target, at(path)),
        Operation::Rename(old, new, flags) => {
            let flags = RenameFlags::from_bits_retain(*flags);
            rustix::fs::renameat_with(CWD, at(old), CWD, at(new), flags)
        }
        Operation::SetMode(path, bits) => rustix::fs::chmod(at(path), mode(*bits)),
        Operation::SetOwner(path, user) => {
            let user = rustix::fs::Uid::from_raw(*user);
            rustix::fs::chownat(CWD, at(path), Some(user), None, AtFlags::SYMLINK_NOFOLLOW)
        }
        Operation::SetAttribute(path, value) => {
            rustix::fs::setxattr(at(path), "user.attribute", value, XattrFlags::empty())
        }
        Operation::RemoveAttribute(path) => rustix::fs::removexattr(at(path), "user.attribute"),
    }
}

/// Compares two trees.
pub fn compare(subject: &Path, model: &Path) -> anyhow::Result<()> {
    compare_seen(&look(subject)?, &look(model)?)
}

/// As [`compare`], for an overlay: a folder that exists in several layers has a link count of 1.
pub fn compare_overlay(subject: &Path, model: &Path) -> anyhow::Result<()> {
    let [got, due] = [look(subject)?, look(model)?].map(|mut seen| {
        let folders = seen.values_mut().filter(|seen| seen.is_folder());
        folders.for_each(|folder| folder.links = 1);
        seen
    });
    compare_seen(&got, &due)
}

fn compare_seen(
    got: &BTreeMap<PathBuf, Seen>,
    due: &BTreeMap<PathBuf, Seen>,
) -> anyhow::Result<()> {
    for (path, due) in due {
        let got = got.get(path).with_context(|| format!("{} is missing", path.display()))?;
        ensure!(got == due, "{}: {} instead of {}", path.display(), describe(got), describe(due));
    }
    let extra = got.keys().find(|path| !due.contains_key(*path));
    ensure!(extra.is_none(), "{extra:?} should not be there");
    Ok(())
}

fn describe(seen: &Seen) -> String {
    let Seen { mode, owner, links, size, contents, attribute } = seen;
    let sum: u64 = contents.iter().map(|byte| u64::from(*byte)).sum();
    format!(
        "mode {mode:o}, owner {owner}, {links} links, {size} B, {} B read with sum {sum}, {} B attribute",
        contents.len(),
        attribute.as_ref().map_or(0, Vec::len)
    )
}

fn look(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, Seen>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))? {
            let path = folder.join(entry?.file_name());
            let seen = see(&root.join(&path)).with_context(|| path.display().to_string())?;
            if seen.is_folder() {
                folders.push(path.clone());
            }
            found.insert(path, seen);
        }
    }
    Ok(found)
}

fn see(path: &Path) -> anyhow::Result<Seen> {
    let metadata = std::fs::symlink_metadata(path)?;
    let (contents, size) = if metadata.is_symlink() {
        (std::fs::read_link(path)?.as_os_str().as_bytes().to_vec(), metadata.len())
    } else if metadata.is_file() {
        (std::fs::read(path)?, metadata.len())
    } else {
        // File systems report different sizes of folders.
        (Vec::new(), 0)
    };
    let mut value = [0; 4096];
    let attribute = match rustix::fs::lgetxattr(path, "user.attribute", &mut value[..]) {
        Ok(len) => Some(value[..len].to_vec()),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
        // Symbolic links have no `user` attributes.
        Err(Errno::PERM) => None,
        Err(error) => return Err(error.into()),
    };
    let (mode, owner, links) = (metadata.mode(), metadata.uid(), metadata.nlink());
    Ok(Seen { mode, owner, links, size, contents, attribute })
}
