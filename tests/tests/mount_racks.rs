//! One file system mounted in two racks.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Barrier;

use rackpool_shm::mapping::Mapping;
use rackpool_testing::skipped;
use rackpool_tests::files::tree;
use rackpool_tests::files::user::{NOBODY, as_user};
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const MEMORY: u64 = 256 << 20;
const PAGE: u64 = 2 << 20;

/// A pool, and its file system mounted in both racks; the mounts are dropped first.
struct Racks {
    mounts: [TestMount; 2],
    _pool: TestPool,
}

impl Racks {
    fn start() -> Option<Self> {
        if let Some(reason) = why_not() {
            skipped(reason);
            return None;
        }
        let pool = TestPool::start(MEMORY, PAGE);
        pool.wait_until_racks_meet();
        let mounts = [0, 1].map(|rack| TestMount::start(&pool, rack));
        Some(Self { mounts, _pool: pool })
    }

    fn root(&self, rack: usize) -> &Path {
        self.mounts[rack].root()
    }
}

#[test]
fn what_was_closed_in_one_rack_is_read_by_who_opens_it_in_the_other() {
    let Some(racks) = Racks::start() else { return };
    let mut random = SmallRng::seed_from_u64(1);
    for round in 0..200_u32 {
        let (writer, reader) = if round % 3 == 0 { (1, 0) } else { (0, 1) };
        // Often of the same size as before, and written in place.
        let len = [10, 5000, 5000, 300_000][random.random_range(0..4)];
        let fill = u8::try_from(round % 251).unwrap();
        let options = &mut File::options();
        let file = options.write(true).create(true).truncate(false);
        let file = file.open(racks.root(writer).join("file")).unwrap();
        file.write_all_at(&vec![fill; len], 0).unwrap();
        if random.random_bool(0.2) {
            file.set_len(len as u64).unwrap();
        }
        drop(file);
        let read = std::fs::read(racks.root(reader).join("file")).unwrap();
        assert!(read.len() >= len, "round {round}: {} B of {len} B", read.len());
        assert!(read[..len].iter().all(|byte| *byte == fill), "round {round}: old bytes");
        let size = std::fs::metadata(racks.root(writer).join("file")).unwrap().len();
        assert_eq!(size, read.len() as u64, "round {round}");
    }
}

#[test]
fn what_was_synced_is_read_before_it_is_closed() {
    let Some(racks) = Racks::start() else { return };
    let file = File::create(racks.root(0).join("file")).unwrap();
    for round in 0..50_u64 {
        file.write_all_at(&round.to_le_bytes(), round * 8).unwrap();
        file.sync_all().unwrap();
        let read = std::fs::read(racks.root(1).join("file")).unwrap();
        assert_eq!(read.len() as u64, (round + 1) * 8);
        assert_eq!(read[read.len() - 8..], round.to_le_bytes());
    }
}

#[test]
fn what_was_written_through_a_mapping_is_read_after_the_close() {
    let Some(racks) = Racks::start() else { return };
    std::fs::write(racks.root(0).join("file"), vec![0; 20_000]).unwrap();
    for round in 1..30_u8 {
        let (writer, reader) = if round.is_multiple_of(2) { (0, 1) } else { (1, 0) };
        let options = &mut File::options();
        let file = options.read(true).write(true).open(racks.root(writer).join("file")).unwrap();
        let mapping = Mapping::new(&file, 20_000).unwrap();
        mapping.write(u64::from(round) * 500, &[round; 500]).unwrap();
        drop(mapping);
        drop(file);
        let read = std::fs::read(racks.root(reader).join("file")).unwrap();
        let from = usize::from(round) * 500;
        assert!(read[from..from + 500].iter().all(|byte| *byte == round), "round {round}");
    }
}

#[test]
fn names_are_the_same_in_both_racks_at_once() {
    let Some(racks) = Racks::start() else { return };
    for round in 0..60_u32 {
        let (one, other) = if round.is_multiple_of(2) { (0, 1) } else { (1, 0) };
        let name = format!("name {}", round % 7);
        let moved = format!("moved {}", round % 5);
        std::fs::write(racks.root(one).join(&name), name.as_bytes()).unwrap();
        assert_eq!(std::fs::read(racks.root(other).join(&name)).unwrap(), name.as_bytes());
        std::fs::rename(racks.root(one).join(&name), racks.root(one).join(&moved)).unwrap();
        assert!(!racks.root(other).join(&name).exists());
        let seen = std::fs::metadata(racks.root(other).join(&moved)).unwrap();
        let own = std::fs::metadata(racks.root(one).join(&moved)).unwrap();
        assert_eq!((seen.ino(), seen.nlink(), seen.len()), (own.ino(), own.nlink(), own.len()));
        std::fs::create_dir(racks.root(other).join("folder")).unwrap();
        std::fs::rename(racks.root(one).join(&moved), racks.root(one).join("folder/x")).unwrap();
        assert_eq!(std::fs::read_dir(racks.root(other).join("folder")).unwrap().count(), 1);
        std::fs::remove_file(racks.root(other).join("folder/x")).unwrap();
        std::fs::remove_dir(racks.root(one).join("folder")).unwrap();
    }
    tree::compare(racks.root(0), racks.root(1)).unwrap();
}

#[test]
fn appends_from_both_racks_never_overlap() {
    const EACH: u32 = 300;
    let Some(racks) = Racks::start() else { return };
    std::fs::write(racks.root(0).join("log"), "").unwrap();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for writer in 0..4_usize {
            let mut log =
                File::options().append(true).open(racks.root(writer % 2).join("log")).unwrap();
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for number in 0..EACH {
                    // Records of many lengths, some longer than a block.
                    let rest = "x".repeat(usize::try_from(number * 37 % 6000).unwrap());
                    log.write_all(format!("{writer} {number} {rest}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = std::fs::read_to_string(racks.root(1).join("log")).unwrap();
    assert_eq!(text, std::fs::read_to_string(racks.root(0).join("log")).unwrap());
    let mut next = [0_u32; 4];
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (writer, number): (usize, u32) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        assert_eq!(
            (number, u32::try_from(words[2].len()).unwrap()),
            (next[writer], number * 37 % 6000)
        );
        next[writer] += 1;
    }
    assert_eq!(next, [EACH; 4]);
}

#[test]
fn a_file_unlinked_in_one_rack_is_used_on_where_it_is_open() {
    let Some(racks) = Racks::start() else { return };
    let options = &mut File::options();
    let options = options.read(true).write(true).create(true).truncate(true);
    let file = options.open(racks.root(0).join("file")).unwrap();
    file.write_all_at(&vec![1; 100_000], 0).unwrap();
    std::fs::remove_file(racks.root(1).join("file")).unwrap();
    // Files that others create now must not get its memory.
    for number in 0..20 {
        std::fs::write(racks.root(1).join(number.to_string()), vec![2; 100_000]).unwrap();
    }
    let mut read = vec![0; 100_000];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read.iter().all(|byte| *byte == 1));
    file.write_all_at(&[3; 5000], 98_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 103_000);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(!racks.root(0).join("file").exists());
}

#[test]
fn what_was_cut_in_one_rack_never_comes_back_in_the_other() {
    let Some(racks) = Racks::start() else { return };
    for round in 0..20_u8 {
        let (one, other) = if round.is_multiple_of(2) { (0, 1) } else { (1, 0) };
        let path = |rack: usize| racks.root(rack).join("file");
        std::fs::write(path(one), vec![0xff; 50_000]).unwrap();
        assert_eq!(std::fs::read(path(other)).unwrap().len(), 50_000);
        File::options().write(true).open(path(one)).unwrap().set_len(1000).unwrap();
        let file = File::options().write(true).open(path(other)).unwrap();
        file.write_all_at(b"end", 40_000).unwrap();
        drop(file);
        let read = std::fs::read(path(one)).unwrap();
        assert_eq!((read.len(), &read[40_000..]), (40_003, &b"end"[..]));
        assert!(read[..1000].iter().all(|byte| *byte == 0xff));
        assert!(read[1000..40_000].iter().all(|byte| *byte == 0), "round {round}");
    }
}

#[test]
fn an_access_control_list_set_in_one_rack_counts_in_the_other_at_once() {
    const ACL: &str = "system.posix_acl_access";
    let Some(racks) = Racks::start() else { return };
    std::fs::write(racks.root(0).join("file"), "x").unwrap();
    let path = |rack: usize| racks.root(rack).join("file");
    rustix::fs::chmod(path(0), rustix::fs::Mode::RUSR).unwrap();
    let reads = |rack: usize| as_user(NOBODY, NOBODY, || std::fs::File::open(path(rack)).is_ok());
    // The owner: read; NOBODY: the argument; then the owning group, the mask, and others.
    let acl = |permissions: u16| {
        let none = u32::MAX;
        let entries = [
            (1_u16, 4, none),
            (2, permissions, NOBODY),
            (4, 0, none),
            (16, 7, none),
            (32, 0, none),
        ];
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    };
    for round in 0..20_usize {
        let (one, other) = (round % 2, (round + 1) % 2);
        assert!(!reads(one) && !reads(other), "round {round}");
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path(one), ACL, &acl(4), none).unwrap();
        assert!(reads(one) && reads(other), "round {round}");
        match round % 3 {
            0 => rustix::fs::setxattr(path(other), ACL, &acl(0), none).unwrap(),
            1 => rustix::fs::removexattr(path(other), ACL).unwrap(),
            _ => rustix::fs::chmod(path(other), rustix::fs::Mode::RUSR).unwrap(),
        }
    }
}

#[test]
fn both_racks_work_on_one_tree_at_once_and_agree_afterwards() {
    const EACH: u32 = 400;
    let Some(racks) = Racks::start() else { return };
    for folder in ["a", "b", "c"] {
        std::fs::create_dir(racks.root(0).join(folder)).unwrap();
    }
    std::thread::scope(|scope| {
        for worker in 0..4_usize {
            let root = racks.root(worker % 2);
            scope.spawn(move || storm(root, worker as u64, EACH));
        }
    });
    tree::compare(racks.root(0), racks.root(1)).unwrap();
    // Each folder can be emptied: no entry is dangling.
    for folder in ["a", "b", "c"] {
        std::fs::remove_dir_all(racks.root(1).join(folder)).unwrap();
        assert!(!racks.root(0).join(folder).exists());
    }
}

/// Operations that conflict with those of others: any of them may fail because of these.
fn storm(root: &Path, seed: u64, operations: u32) {
    let mut random = SmallRng::seed_from_u64(seed);
    let path = |random: &mut SmallRng| {
        let folder = ["a", "b", "c"][random.random_range(0..3)];
        root.join(folder).join(random.random_range(0..6).to_string())
    };
    for _ in 0..operations {
        let (one, other) = (path(&mut random), path(&mut random));
        let outcome = match random.random_range(0..6) {
            0 | 1 => std::fs::write(&one, one.as_os_str().as_encoded_bytes()),
            2 => std::fs::create_dir(&one),
            3 => std::fs::rename(&one, &other),
            4 => std::fs::remove_file(&one).or_else(|_| std::fs::remove_dir(&one)),
            _ => std::fs::hard_link(&one, &other),
        };
        let Err(error) = outcome else { continue };
        let number = error.raw_os_error().unwrap();
        use nix::libc::{EBUSY, EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, ESTALE};
        let expected = [EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, ESTALE];
        assert!(expected.contains(&number) && number != EBUSY, "{error}");
    }
}
