//! Tests of the same guarantees for every kind of memory. Kinds that this computer does not have
//! are reported, and their refusal is tested.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rackpool_model::{MemoryId, RackId};
use rackpool_shm::Mapping;
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::host::{HostFiles, HugePage};
use rackpool_shm::memory::{
    FramesNode, MemoryError, MemoryKind, MemoryPlace, RackMemory, backing, outside,
};
use rackpool_testing::skipped;

const MEMORY: MemoryId = MemoryId(0x0123_4567_89ab_cdef);
const BYTES: u64 = 4 << 20;

/// A rack's folder, and the memory to be tested in it.
struct Bench {
    kind: MemoryKind,
    bytes: u64,
    directory: RackDirectory,
    machine: HostFiles,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new(kind: MemoryKind, bytes: u64) -> Self {
        let folder = tempfile::tempdir_in(memory_folder()).unwrap();
        let directory = RackDirectory::new(folder.path(), RackId(0));
        std::fs::create_dir(directory.path()).unwrap();
        Self { kind, bytes, directory, machine: HostFiles::here(), _folder: folder }
    }

    fn of(kind: &str) -> Self {
        Self::new(kind.parse().unwrap(), BYTES)
    }

    fn place(&self) -> MemoryPlace<'_> {
        let Self { kind, bytes, directory, machine, .. } = self;
        MemoryPlace::new(kind, directory, *bytes, machine)
    }

    fn create(&self) -> Result<RackMemory, MemoryError> {
        self.place().create(MEMORY)
    }

    fn open(&self) -> Result<RackMemory, MemoryError> {
        self.place().open(MEMORY)
    }

    /// Tests all guarantees.
    fn conforms(&self) {
        println!("conformance of {}", self.kind);
        let made = self.create().unwrap();
        self.is_as_long_as_asked_and_zero(&made);
        self.is_seen_through_a_passed_descriptor(&made);
        self.is_locked();
        assert!(!made.pages.remark.is_empty());
        drop(made);
        if self.kind.outlives_daemon() {
            self.is_reopened_with_its_contents();
            self.refuses_another_size();
            self.is_made_anew_when_nothing_is_known_of_it();
        } else {
            assert!(matches!(self.open(), Err(MemoryError::Missing { .. })), "it has ended");
            assert_eq!(byte(&self.create().unwrap().mapping, 0), 0, "the next one begins anew");
        }
    }

    fn is_as_long_as_asked_and_zero(&self, made: &RackMemory) {
        assert_eq!(made.mapping.len(), self.bytes);
        let mut bytes = vec![1; 1 << 20];
        for offset in (0..self.bytes).step_by(bytes.len()) {
            made.mapping.read(offset, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "bytes after {offset} are not zero");
        }
        for (offset, len) in
            [(self.bytes, 1), (self.bytes - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 8)]
        {
            assert!(made.mapping.read(offset, &mut bytes[..len]).is_err());
            assert!(made.mapping.write(offset, &bytes[..len]).is_err());
        }
        let found = backing::touched(&made.mapping).unwrap();
        assert!(found.resident_bytes > 0, "{found:?}");
        if let MemoryKind::Huge(page) = self.kind {
            assert_eq!((found.page_bytes, found.huge_bytes > 0), (page.bytes(), true));
        }
        if let MemoryKind::Node(node) = self.kind {
            for offset in (0..self.bytes).step_by(64 << 10) {
                assert_eq!(made.mapping.node_at(offset).unwrap(), node);
            }
            assert_eq!(found.resident_bytes, self.bytes, "all pages are there from the start");
        }
    }

    /// A client receives a descriptor and maps it.
    fn is_seen_through_a_passed_descriptor(&self, made: &RackMemory) {
        let passed: OwnedFd = made.file.try_clone().unwrap().into();
        let client = Mapping::new(&passed, self.bytes).unwrap();
        drop(passed);
        client.advise_huge();
        for offset in [0, 4095, self.bytes / 2 - 3, self.bytes - 8] {
            made.mapping.write(offset, &offset.to_le_bytes()).unwrap();
            let mut found = [0; 8];
            client.read(offset, &mut found).unwrap();
            assert_eq!(u64::from_le_bytes(found), offset);
            client.write(offset, &(!offset).to_le_bytes()).unwrap();
            made.mapping.read(offset, &mut found).unwrap();
            assert_eq!(u64::from_le_bytes(found), !offset);
        }
    }

    /// No other daemon can serve the memory at the same time. Memory without a name cannot be
    /// opened by others at all.
    fn is_locked(&self) {
        if !self.kind.outlives_daemon() {
            return;
        }
        for second in [self.open(), self.create()] {
            let text = second.unwrap_err().to_string();
            assert!(text.contains("in use by another rack daemon"), "{text}");
        }
    }

    /// Also while a client still has the descriptor of the dead daemon: the lock must not survive
    /// in it.
    fn is_reopened_with_its_contents(&self) {
        let first = self.open().unwrap();
        let passed = first.file.try_clone().unwrap();
        let client = Mapping::new(&passed, self.bytes).unwrap();
        client.write(self.bytes / 2, b"kept").unwrap();
        drop(first);
        let next = self.open().unwrap();
        let mut found = [0; 4];
        next.mapping.read(self.bytes / 2, &mut found).unwrap();
        assert_eq!(&found, b"kept");
        next.mapping.write(self.bytes / 2, b"seen").unwrap();
        client.read(self.bytes / 2, &mut found).unwrap();
        assert_eq!(&found, b"seen", "the client of the dead daemon shares the next one's memory");
    }

    fn refuses_another_size(&self) {
        for bytes in [self.bytes * 2, self.bytes / 2] {
            let error = MemoryPlace { bytes, ..self.place() }.open(MEMORY).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("are needed") || text.contains("needs a multiple"), "{text}");
        }
        self.open().unwrap();
    }

    /// A killed daemon left the memory, or the rack's folder was removed.
    fn is_made_anew_when_nothing_is_known_of_it(&self) {
        if outside(&self.directory).is_some() {
            let of_then = self.open().unwrap().mapping;
            std::fs::remove_file(self.directory.frames()).unwrap();
            assert_eq!(byte(&self.create().unwrap().mapping, self.bytes / 2), 0);
            assert_ne!(byte(&of_then, self.bytes / 2), 0, "a program of then has its memory");
        }
        let frames = self.directory.frames();
        let kept = outside(&self.directory).unwrap_or(frames);
        std::fs::remove_file(&kept).unwrap();
        let text = self.open().unwrap_err().to_string();
        assert!(text.contains("is missing") && text.contains("remove"), "{text}");
        File::options().write(true).create_new(true).open(&kept).unwrap();
        let made = self.create().unwrap();
        assert_eq!((made.mapping.len(), byte(&made.mapping, 0)), (self.bytes, 0));
    }

    /// The kind is not available here, and the error names the remedy.
    fn is_refused(&self, reason: &str, mend: &str) {
        let text = self.create().unwrap_err().to_string();
        println!("refused as it has to be: {}: {text}", self.kind);
        assert!(text.contains(reason), "'{reason}' is not in: {text}");
        assert!(text.contains(mend), "'{mend}' is not in: {text}");
        assert!(!self.directory.frames().exists(), "something was left");
    }
}

fn memory_folder() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() }
}

fn byte(mapping: &Mapping, offset: u64) -> u8 {
    let mut byte = [0xee];
    mapping.read(offset, &mut byte).unwrap();
    byte[0]
}

#[test]
fn tmpfs_conforms() {
    Bench::of("tmpfs").conforms();
}

#[test]
fn memfd_conforms_and_can_not_be_cut_short() {
    let bench = Bench::of("memfd");
    bench.conforms();
    let made = bench.create().unwrap();
    assert!(made.file.set_len(0).is_err() && made.file.set_len(2 * BYTES).is_err(), "sealed");
    assert!(made.warnings[0].contains("ends with this daemon"));
    assert!(!bench.directory.frames().exists());
}

#[test]
fn tmpfs_with_huge_pages_has_them() {
    in_own_mounts("huge pages on a tmpfs", |folder| {
        let options = Some("huge=advise,size=64m");
        mount(Some("none"), folder, Some("tmpfs"), MsFlags::empty(), options).unwrap();
        let directory = RackDirectory::new(folder, RackId(0));
        std::fs::create_dir(directory.path()).unwrap();
        let machine = HostFiles::here();
        let kind = MemoryKind::Tmpfs;
        let place = MemoryPlace::new(&kind, &directory, 8 << 20, &machine);
        let made = place.create(MEMORY).unwrap();
        // The kernel may find no free 2 MiB; then `pages` must say so.
        println!("pages of a tmpfs with huge=advise: {}", made.pages);
        let huge = backing::of(&made.mapping).unwrap().huge_bytes;
        assert_eq!(made.pages.bytes == 2 << 20, huge > 0, "{}", made.pages);
        drop(made);
        umount2(folder, MntFlags::MNT_DETACH).unwrap();
    });
}

#[test]
fn memory_that_its_file_system_cannot_give_is_refused_with_what_it_can() {
    in_own_mounts("a tmpfs that is too small", |folder| {
        let size = |size: &str, flags| {
            mount(Some("none"), folder, Some("tmpfs"), flags, Some(size)).unwrap();
        };
        size("size=24m", MsFlags::empty());
        let directories = [0, 1].map(|rack| RackDirectory::new(folder, RackId(rack)));
        let (own, other) = (0, 1);
        directories.iter().for_each(|rack| std::fs::create_dir(rack.path()).unwrap());
        let machine = HostFiles::here();
        let kind = MemoryKind::Tmpfs;
        let of = MemoryPlace::new(&kind, &directories[own], 0, &machine);
        let place =
            |rack: usize, bytes| MemoryPlace { directory: &directories[rack], bytes, ..of.clone() };
        let refused = |rack: usize, bytes| {
            let error = place(rack, bytes).create(MEMORY).unwrap_err();
            let frames = directories[rack].frames();
            assert!(!frames.exists(), "it would claim what is not there");
            error.to_string()
        };
        let at = folder.display();
        let said = refused(own, 32 << 20);
        let found = format!("--memory 32 MiB: {at} has 24 MiB, 24 MiB of it free");
        assert!(said.starts_with(&found), "{said}");
        let fix = format!("`mount -o remount,size=32M {at}`, or ask for at most --memory 22M");
        assert!(said.ends_with(&fix), "{said}");
        // The memory that is said to fit does fit, to its last byte.
        let made = place(own, 22 << 20).create(MEMORY).unwrap();
        // Bytes that the first rack has not allocated yet are not free for another.
        let said = refused(other, 4 << 20);
        assert!(said.contains("may still take 25.9 MiB"), "{said}");
        assert!(said.ends_with(&format!("`mount -o remount,size=26M {at}`")), "{said}");
        made.mapping.write(0, &vec![1; 22 << 20]).unwrap();
        refused(other, 4 << 20);
        size("size=26m", MsFlags::MS_REMOUNT);
        drop(place(other, 4 << 20).create(MEMORY).unwrap());
        drop(made);
        // Existing memory is served although others have taken bytes that it may still need.
        std::fs::write(folder.join("file"), vec![1; 2 << 20]).unwrap();
        let opened = place(other, 4 << 20).open(MEMORY).unwrap();
        assert!(
            opened.warnings.iter().any(|text| text.contains("SIGBUS")),
            "{:?}",
            opened.warnings
        );
        drop(opened);
        umount2(folder, MntFlags::MNT_DETACH).unwrap();
    });
}

#[test]
fn numa_conforms() {
    let machine = HostFiles::here();
    let Some(node) = machine.nodes().into_iter().rev().find(|node| node.free_bytes > 4 * BYTES)
    else {
        skipped("conformance of numa: no node has memory to spare");
        Bench::of("numa:0").is_refused("no NUMA node 0 with memory", "rackpool doctor");
        return;
    };
    let bench = Bench::new(MemoryKind::Node(node.id), BYTES);
    match bench.create() {
        Err(error @ MemoryError::System { action: "bind to its NUMA node", .. }) => {
            skipped(&format!("conformance of {}: {error}", bench.kind));
            assert!(error.to_string().contains("allow the system call"), "{error}");
            return;
        }
        made => {
            let warned = made.unwrap().warnings.iter().any(|text| text.contains("has processors"));
            assert_eq!(warned, !node.is_memory_only());
        }
    }
    let fresh = Bench::new(MemoryKind::Node(node.id), BYTES);
    fresh.conforms();
    // A node that does not exist, and more memory than the node has.
    Bench::of("numa:77").is_refused("no NUMA node 77 with memory", "rackpool doctor");
    let all = Bench::new(MemoryKind::Node(node.id), node.memory_bytes & !0xf_ffff);
    // Where /dev/shm is smaller than the node, its file system may refuse first.
    all.is_refused("free", "ask for");
}

/// The node with the highest number that has memory to spare: in the lab one without processors.
fn last_node() -> Option<u32> {
    let nodes = HostFiles::here().nodes().into_iter().rev();
    nodes.into_iter().find(|node| node.free_bytes > 4 * BYTES).map(|node| node.id)
}

#[test]
fn frames_come_from_the_node_that_is_asked_for() {
    let Some(node) = last_node() else {
        return skipped("this kernel knows no NUMA nodes with memory to spare");
    };
    for (kind, wanted) in [
        ("tmpfs", FramesNode::Asked(node)),
        ("tmpfs", FramesNode::Suggested(node)),
        ("memfd", FramesNode::Asked(node)),
    ] {
        let bench = Bench::of(kind);
        let place = MemoryPlace { node: wanted, ..bench.place() };
        let made = place.create(MEMORY).unwrap();
        assert_eq!(made.node, Some(node));
        assert!(made.warnings.iter().all(|text| !text.contains("node")), "{:?}", made.warnings);
        // Pages that a client touches first, through a mapping of its own.
        let client = Mapping::new(&made.file, BYTES).unwrap();
        for offset in (0..BYTES).step_by(64 << 10) {
            client.write(offset, &[1]).unwrap();
            assert_eq!(client.node_at(offset).unwrap(), node, "{kind} at {offset}");
        }
        drop(made);
        if bench.kind.outlives_daemon() {
            // A suggestion of another node changes nothing: the pages stay where they are.
            for wanted in [wanted, FramesNode::Suggested(node + 1)] {
                let next = MemoryPlace { node: wanted, ..bench.place() }.open(MEMORY).unwrap();
                assert_eq!(next.node, Some(node));
                assert!(next.warnings.is_empty(), "{:?}", next.warnings);
            }
            assert_eq!(bench.open().unwrap().node, None, "nothing was asked for");
        }
    }
}

#[test]
fn pages_on_another_node_than_the_one_asked_for_are_reported() {
    let nodes: Vec<u32> = HostFiles::here()
        .nodes()
        .into_iter()
        .filter(|node| node.free_bytes > 4 * BYTES)
        .map(|node| node.id)
        .collect();
    let [first, .., last] = nodes[..] else {
        return skipped("this kernel knows no NUMA nodes but one: pages can't lie elsewhere");
    };
    let bench = Bench::of("tmpfs");
    let on = |node| MemoryPlace { node, ..bench.place() };
    drop(on(FramesNode::Asked(last)).create(MEMORY).unwrap());
    let moved = on(FramesNode::Asked(first)).open(MEMORY).unwrap();
    let said = moved.warnings.join("; ");
    assert!(said.contains(&format!("not on NUMA node {first}, the first of them on")), "{said}");
}

fn huge_pages_lie_on_a_node(page: HugePage, pages: u64) {
    let machine = HostFiles::here();
    let kind = MemoryKind::Huge(page);
    let node = machine.nodes().into_iter().rev().map(|node| node.id);
    let Some(node) = node.into_iter().find(|node| machine.node_huge_pages(*node, page) >= pages)
    else {
        return skipped(&format!(
            "conformance of {kind} on a node: none has {pages} free huge pages"
        ));
    };
    let bench = Bench::new(kind.clone(), pages * page.bytes());
    let place = MemoryPlace { node: FramesNode::Asked(node), ..bench.place() };
    for is_new in [true, false] {
        let next = if is_new { place.create(MEMORY) } else { place.open(MEMORY) };
        let memory = next.unwrap();
        assert_eq!((memory.node, &memory.warnings[..]), (Some(node), &[][..]));
        for at in 0..pages {
            assert_eq!(memory.mapping.node_at(at * page.bytes()).unwrap(), node);
        }
        let found = backing::of(&memory.mapping).unwrap();
        assert_eq!(found.huge_bytes, bench.bytes, "all pages are there from the start");
    }
    // Its pages are needed below.
    std::fs::remove_file(outside(&bench.directory).unwrap()).unwrap();
    let without = u32::try_from(machine.nodes().len()).unwrap();
    let error = MemoryPlace {
        node: FramesNode::Asked(without),
        ..Bench::new(kind.clone(), bench.bytes).place()
    }
    .create(MEMORY)
    .unwrap_err()
    .to_string();
    assert!(error.contains("--frames-node") && error.contains("nr_hugepages"), "{error}");
    let other = Bench::new(kind, bench.bytes);
    let suggested = MemoryPlace { node: FramesNode::Suggested(without), ..other.place() };
    let made = suggested.create(MEMORY).unwrap();
    assert_eq!(made.node, None, "a suggestion refuses nothing");
    assert!(made.warnings[0].contains("until then the kernel chooses"), "{:?}", made.warnings);
}

#[test]
fn huge_pages_of_2_mib_conform() {
    huge_pages(HugePage::Size2M);
}

#[test]
fn huge_pages_of_1_gib_conform() {
    huge_pages(HugePage::Size1G);
}

fn huge_pages(page: HugePage) {
    let kind = MemoryKind::Huge(page);
    let uneven = Bench::new(kind.clone(), page.bytes() + 4096);
    uneven.is_refused("needs a multiple of", "the next one is");
    let alone = Reserved::alone();
    in_own_mounts(&format!("conformance of {kind}"), |folder| {
        let unmounted = Bench::new(kind.clone(), 2 * page.bytes());
        if HostFiles::here().mounts().iter().all(|mount| mount.huge_page() != Some(page)) {
            unmounted.is_refused("no hugetlbfs", "mount -t hugetlbfs");
        }
        let options = format!("pagesize={page},mode=0700");
        if let Err(error) =
            mount(Some("none"), folder, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        {
            return skipped(&format!("conformance of {kind}: can't mount a hugetlbfs: {error}"));
        }
        // Twice the memory, because a program of an earlier rack may keep its own.
        let pages = if page == HugePage::Size1G { 1 } else { 2 };
        let reserved = Reserved::at_least(&alone, page, 2 * pages);
        let free = HostFiles::here().huge_pool(page).available();
        if free >= 2 * pages {
            Bench::new(kind.clone(), pages * page.bytes()).conforms();
            huge_pages_lie_on_a_node(page, pages);
        } else {
            skipped(&format!("conformance of {kind}: {free} huge pages can be had"));
        }
        drop(reserved);
        let too_much = (HostFiles::here().huge_pool(page).total + 1000) * page.bytes();
        let refused = Bench::new(kind.clone(), too_much);
        refused.is_refused("huge pages, ", "echo ");
        assert!(only_ours(folder));
        umount2(folder, MntFlags::MNT_DETACH).unwrap();
    });
}

/// Returns true if the names of all files on the hugetlbfs are those of racks' folders.
fn only_ours(folder: &Path) -> bool {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names = std::fs::read_dir(folder).unwrap().map(name);
    names.all(|name| name.to_str().unwrap().starts_with("rackpool-%2F"))
}

#[test]
fn devices_that_are_no_dax_are_refused() {
    for (path, why) in [
        ("/dev/dax99.99", "it is not there"),
        ("/dev/zero", "a device of another kind"),
        ("/dev/null", "a device of another kind"),
    ] {
        Bench::of(&format!("dax:{path}")).is_refused(why, "daxctl");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    Bench::of(&format!("dax:{}", file.path().display()))
        .is_refused("no character device", "daxctl");
}

/// Tests the first device here, if the person who runs the test allows its contents to be
/// overwritten.
#[test]
fn dax_conforms() {
    let Some(device) = std::env::var_os("RACKPOOL_TEST_DAX").map(PathBuf::from) else {
        return skipped(
            "conformance of dax: name a device that may be overwritten in RACKPOOL_TEST_DAX",
        );
    };
    let bench = Bench::new(MemoryKind::Dax(device.clone()), 64 << 20);
    println!("conformance of {}", bench.kind);
    let made = bench.create().unwrap();
    bench.is_as_long_as_asked_and_zero(&made);
    bench.is_seen_through_a_passed_descriptor(&made);
    bench.is_locked();
    drop(made);
    bench.is_reopened_with_its_contents();
    let other = bench.place().open(MemoryId(5)).unwrap_err().to_string();
    assert!(other.contains("other memory than this rack's"), "{other}");
    let huge =
        MemoryPlace { bytes: 1 << 50, ..bench.place() }.open(MEMORY).unwrap_err().to_string();
    assert!(huge.contains("ask for at most"), "{huge}");
}

/// Runs the test in a mount namespace and thread of its own, so that no mount remains. Reports it
/// if this user may not.
fn in_own_mounts(what: &str, test: impl FnOnce(&Path) + Send) {
    let run = || {
        let separate = unshare(CloneFlags::CLONE_NEWNS).and_then(|()| {
            let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
        });
        if let Err(error) = separate {
            return skipped(&format!("{what}: mounting needs root: {error}"));
        }
        let folder = tempfile::tempdir().unwrap();
        test(folder.path());
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap();
}

static ALONE: Mutex<()> = Mutex::new(());

/// Huge pages added to the kernel's pool, removed again at the end.
struct Reserved {
    path: String,
    before: String,
}

impl Reserved {
    /// The pool belongs to the whole machine, so the tests of this file take turns.
    fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at_least(_alone: &MutexGuard<'_, ()>, page: HugePage, count: u64) -> Option<Self> {
        let pool = HostFiles::here().huge_pool(page);
        if pool.available() >= count {
            return None;
        }
        let path = page.pool_file();
        let before = std::fs::read_to_string(&path).ok()?;
        // The size of the pool shows whether this user may reserve.
        std::fs::write(&path, (pool.total + count).to_string()).ok()?;
        Some(Self { path, before })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.path, self.before.trim());
    }
}
