//! File locks between two mounts, and programs that depend on them.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::locks::{self, Holder, Lock, expect_waiting, lock, try_lock, waiter, waits_in};
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;
use rustix::fs::{FlockOperation, flock};

const MEMORY: u64 = 96 << 20;
const PAGE: u64 = 256 << 10;
/// The most time until other mounts detect that one was killed.
const GONE: Duration = Duration::from_secs(60);

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
        std::fs::write(mounts[0].path("file"), [0; 64]).unwrap();
        Some(Self { mounts, _pool: pool })
    }

    fn root(&self, rack: usize) -> &Path {
        self.mounts[rack].root()
    }

    /// Opens the file for reading and writing.
    fn open(&self, rack: usize) -> File {
        File::options().read(true).write(true).open(self.mounts[rack].path("file")).unwrap()
    }
}

#[test]
fn locks_of_one_rack_are_in_the_way_in_the_other() {
    let Some(racks) = Racks::start() else { return };
    let (one, other) = (racks.open(0), racks.open(1));
    for holder in [Holder::Process, Holder::Description] {
        try_lock(&one, holder, (0, 10), Lock::Exclusive).unwrap();
        assert_eq!(try_lock(&other, holder, (9, 1), Lock::Shared), Err(Errno::EAGAIN));
        try_lock(&other, holder, (10, 10), Lock::Exclusive).unwrap();
        // Split, and one part made shared.
        try_lock(&one, holder, (3, 4), Lock::None).unwrap();
        try_lock(&one, holder, (7, 3), Lock::Shared).unwrap();
        try_lock(&other, holder, (3, 7), Lock::Shared).unwrap();
        assert_eq!(try_lock(&other, holder, (2, 1), Lock::Shared), Err(Errno::EAGAIN));
        assert_eq!(try_lock(&other, holder, (7, 1), Lock::Exclusive), Err(Errno::EAGAIN));
        for file in [&one, &other] {
            try_lock(file, holder, (0, 0), Lock::None).unwrap();
        }
    }
    flock(&one, FlockOperation::LockShared).unwrap();
    flock(&other, FlockOperation::NonBlockingLockShared).unwrap();
    let refused = flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(rustix::io::Errno::AGAIN));
    drop(one);
    // The kernel releases an open file description asynchronously.
    wait_until("the lock goes with the description", TIMEOUT, || {
        flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

#[test]
fn who_closes_the_last_descriptor_leaves_no_lock_in_the_way_in_its_own_mount() {
    let Some(racks) = Racks::start() else { return };
    for _ in 0..300 {
        let (one, other) = (racks.open(0), racks.open(0));
        flock(&one, FlockOperation::LockExclusive).unwrap();
        try_lock(&one, Holder::Description, (0, 8), Lock::Exclusive).unwrap();
        drop(one);
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        try_lock(&other, Holder::Description, (0, 8), Lock::Exclusive).unwrap();
        drop(other);
    }
}

#[test]
fn who_asks_in_the_other_rack_learns_of_the_lock_and_of_no_process() {
    let Some(racks) = Racks::start() else { return };
    let (one, other) = (racks.open(0), racks.open(1));
    try_lock(&one, Holder::Process, (5, 7), Lock::Exclusive).unwrap();
    for (rack, process) in [(1, 0), (0, i32::try_from(std::process::id()).unwrap())] {
        // A request of a process that has no lock there; the answer to a request of an open file
        // description names no process.
        let said = Command::new("python3")
            .arg("-c")
            .arg(
                "import fcntl, os, struct, sys\n\
                 ask = struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)\n\
                 said = fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_GETLK, ask)\n\
                 kind, _, start, size, process = struct.unpack('hhqqi4x', said)\n\
                 print(kind == fcntl.F_WRLCK, start, size, process)",
            )
            .arg(racks.mounts[rack].path("file"))
            .output();
        let Ok(said) = said else { return skipped("there is no python3") };
        let said = String::from_utf8(said.stdout).unwrap();
        assert_eq!(said.trim(), format!("True 5 7 {process}"));
    }
    let mut asked = locks::range(Lock::Shared, (0, 0));
    fcntl(&other, FcntlArg::F_OFD_GETLK(&mut asked)).unwrap();
    assert_eq!((asked.l_start, asked.l_len), (5, 7));
}

#[test]
fn locks_of_a_process_go_when_it_closes_any_descriptor_or_ends() {
    let Some(racks) = Racks::start() else { return };
    let (one, other) = (racks.open(0), racks.open(1));
    try_lock(&one, Holder::Process, (0, 0), Lock::Exclusive).unwrap();
    assert_eq!(try_lock(&other, Holder::Process, (0, 1), Lock::Shared), Err(Errno::EAGAIN));
    drop(racks.open(0));
    try_lock(&other, Holder::Process, (0, 1), Lock::Exclusive).unwrap();
    try_lock(&other, Holder::Process, (0, 0), Lock::None).unwrap();
    // A program that is killed while it holds the lock.
    let path = racks.mounts[0].path("file");
    let mut child = Command::new("flock")
        .arg(&path)
        .args(["sleep", "1000"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let refused = || flock(&other, FlockOperation::NonBlockingLockShared).is_err();
    wait_until("flock has it", TIMEOUT, || {
        let refused = refused();
        if !refused {
            flock(&other, FlockOperation::Unlock).unwrap();
        }
        refused
    });
    // The program that it runs has the descriptor, too.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let inner = std::fs::read_to_string(children).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    for process in inner.split_whitespace() {
        let process = nix::unistd::Pid::from_raw(process.parse().unwrap());
        nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    wait_until("its lock is gone", TIMEOUT, || !refused());
}

#[test]
fn who_waits_gets_the_lock_when_the_other_rack_gives_it_up() {
    let Some(racks) = Racks::start() else { return };
    let (one, other) = (racks.open(0), racks.open(1));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    try_lock(&one, Holder::Description, (0, 8), Lock::Exclusive).unwrap();
    std::thread::scope(|scope| {
        let (whole, first) = waiter(scope, || flock(&other, FlockOperation::LockExclusive));
        let ask = || lock(&other, Holder::Description, (4, 8), Lock::Exclusive);
        let (range, second) = waiter(scope, ask);
        expect_waiting(first, libc::SYS_flock);
        expect_waiting(second, libc::SYS_fcntl);
        // All threads of the mount go on meanwhile.
        for number in 0..20 {
            std::fs::write(racks.root(1).join(format!("{number}")), b"others go on").unwrap();
        }
        assert!(!whole.is_finished() && !range.is_finished());
        one.write_all_at(b"written before", 0).unwrap();
        flock(&one, FlockOperation::Unlock).unwrap();
        whole.join().unwrap().unwrap();
        try_lock(&one, Holder::Description, (0, 8), Lock::None).unwrap();
        range.join().unwrap().unwrap();
    });
    let mut read = [0; 14];
    other.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"written before");
}

#[test]
fn more_wait_than_the_mount_has_threads() {
    let Some(racks) = Racks::start() else { return };
    let holder = racks.open(0);
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..20)
            .map(|number| {
                let file = racks.open(number % 2);
                waiter(scope, move || {
                    flock(&file, FlockOperation::LockExclusive).map(|()| drop(file))
                })
            })
            .collect();
        for (_, thread) in &waiters {
            expect_waiting(*thread, libc::SYS_flock);
        }
        std::fs::write(racks.root(1).join("other"), b"others go on").unwrap();
        assert_eq!(std::fs::read(racks.root(0).join("other")).unwrap(), b"others go on");
        flock(&holder, FlockOperation::Unlock).unwrap();
        for (waiter, _) in waiters {
            waiter.join().unwrap().unwrap();
        }
    });
}

/// Starts a program and waits until it waits for a lock.
fn waiting_program(path: &Path, more: &[&str]) -> Child {
    let child = Command::new("flock").args(more).arg(path).arg("true").spawn().unwrap();
    let id = child.id();
    wait_until("flock waits", TIMEOUT, || waits_in(id, id, libc::SYS_flock));
    child
}

#[test]
fn who_waits_can_be_interrupted_and_killed() {
    let Some(racks) = Racks::start() else { return };
    let holder = racks.open(0);
    flock(&holder, FlockOperation::LockExclusive).unwrap();
    for rack in [0, 1] {
        let path = racks.mounts[rack].path("file");
        // SIGALRM ends its wait.
        let status = waiting_program(&path, &["--timeout", "0.5"]).wait().unwrap();
        assert_eq!(status.code(), Some(1), "rack {rack}");
        let mut killed = waiting_program(&path, &[]);
        killed.kill().unwrap();
        wait_until("who was killed is gone", TIMEOUT, || killed.try_wait().unwrap().is_some());
        // The killed program no longer waits.
        assert!(!waits_in(killed.id(), killed.id(), libc::SYS_flock));
    }
    flock(&holder, FlockOperation::Unlock).unwrap();
    flock(racks.open(1), FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn two_that_would_wait_for_each_other_in_one_mount_are_told() {
    let Some(racks) = Racks::start() else { return };
    let files = [racks.open(0), racks.open(0), racks.open(0)];
    let byte = |number: usize| (i64::try_from(number).unwrap(), 1);
    for (number, file) in files.iter().enumerate() {
        try_lock(file, Holder::Description, byte(number), Lock::Exclusive).unwrap();
    }
    let ask = |number: usize| {
        let (file, next) = (&files[number], (number + 1) % files.len());
        let outcome = lock(file, Holder::Description, byte(next), Lock::Exclusive);
        // Then the others can go on.
        try_lock(file, Holder::Description, (0, 0), Lock::None).unwrap();
        outcome
    };
    let outcomes = std::thread::scope(|scope| {
        let (first, thread) = waiter(scope, || ask(0));
        expect_waiting(thread, libc::SYS_fcntl);
        let (second, thread) = waiter(scope, || ask(1));
        expect_waiting(thread, libc::SYS_fcntl);
        let third = ask(2);
        [first.join().unwrap(), second.join().unwrap(), third]
    });
    let told = outcomes.iter().filter(|outcome| **outcome == Err(Errno::EDEADLK)).count();
    let had = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!((told, had), (1, 2), "{outcomes:?}");
}

#[test]
fn a_counter_raised_in_both_racks_under_a_lock_misses_nothing() {
    const EACH: u64 = 500;
    let Some(racks) = Racks::start() else { return };
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let file = racks.open(thread % 2);
            scope.spawn(move || {
                for round in 0..EACH {
                    // In turns with both families of locks, which are independent.
                    let whole = round.is_multiple_of(2);
                    let at = if whole { 0 } else { 32 };
                    if whole {
                        flock(&file, FlockOperation::LockExclusive).unwrap();
                    } else {
                        lock(&file, Holder::Description, (32, 8), Lock::Exclusive).unwrap();
                    }
                    let mut count = [0; 8];
                    file.read_exact_at(&mut count, at).unwrap();
                    let count = u64::from_le_bytes(count) + 1;
                    file.write_all_at(&count.to_le_bytes(), at).unwrap();
                    if whole {
                        flock(&file, FlockOperation::Unlock).unwrap();
                    } else {
                        lock(&file, Holder::Description, (32, 8), Lock::None).unwrap();
                    }
                }
            });
        }
    });
    for rack in [0, 1] {
        let read = std::fs::read(racks.root(rack).join("file")).unwrap();
        let [whole, range] =
            [0, 32].map(|at| u64::from_le_bytes(*read[at..].first_chunk().unwrap()));
        assert_eq!((whole, range), (2 * EACH, 2 * EACH), "in rack {rack}");
    }
}

#[test]
fn the_lock_of_a_killed_mount_goes_to_who_waits() {
    let Some(mut racks) = Racks::start() else { return };
    let (one, other) = (racks.open(0), racks.open(1));
    flock(&one, FlockOperation::LockExclusive).unwrap();
    try_lock(&one, Holder::Description, (0, 8), Lock::Exclusive).unwrap();
    std::thread::scope(|scope| {
        let (whole, first) = waiter(scope, || flock(&other, FlockOperation::LockExclusive));
        let ask = || lock(&other, Holder::Description, (4, 8), Lock::Exclusive);
        let (range, second) = waiter(scope, ask);
        expect_waiting(first, libc::SYS_flock);
        expect_waiting(second, libc::SYS_fcntl);
        racks.mounts[0].kill();
        wait_until("who waits has both", GONE, || whole.is_finished() && range.is_finished());
        whole.join().unwrap().unwrap();
        range.join().unwrap().unwrap();
    });
    drop(one);
    // After mounting again the locks are still taken.
    racks.mounts[0].mount();
    let refused = flock(racks.open(0), FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(rustix::io::Errno::AGAIN));
}

#[test]
fn a_stopped_mount_keeps_its_locks() {
    let Some(racks) = Racks::start() else { return };
    let (one, other) = (racks.open(0), racks.open(1));
    try_lock(&one, Holder::Description, (0, 8), Lock::Exclusive).unwrap();
    racks.mounts[0].stop();
    for _ in 0..100 {
        let refused = try_lock(&other, Holder::Description, (7, 1), Lock::Shared);
        assert_eq!(refused, Err(Errno::EAGAIN));
        try_lock(&other, Holder::Description, (8, 8), Lock::Exclusive).unwrap();
        try_lock(&other, Holder::Description, (8, 8), Lock::None).unwrap();
    }
    racks.mounts[0].go_on();
    try_lock(&one, Holder::Description, (0, 8), Lock::None).unwrap();
    try_lock(&other, Holder::Description, (7, 1), Lock::Shared).unwrap();
}

/// Runs statements in `sqlite3`, which waits up to 300 s for each lock; returns its output, or
/// `None` if it is not installed.
fn sqlite(database: &Path, statements: &str) -> Option<Result<String, String>> {
    let mut process = Command::new("sqlite3")
        .args(["-batch", "-bail", "-cmd", ".timeout 300000"])
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    // It may end before it has read everything.
    let _ = process.stdin.take().unwrap().write_all(statements.as_bytes());
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    Some(if output.status.success() {
        Ok(said)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    })
}

const RAISE: &str = "begin immediate; update counter set value = value + 1; insert into log(text) \
                     values (hex(randomblob(200))); commit;\n";
const CHECK: &str = "pragma integrity_check; select value = (select count(*) from log) from counter; \
                     select value from counter;\n";

#[test]
fn a_database_is_written_from_both_racks_at_once() {
    const EACH: usize = 40;
    let Some(racks) = Racks::start() else { return };
    let database = |rack: usize| racks.root(rack).join("database");
    let make = "create table counter(value); insert into counter values (0); \
                create table log(number integer primary key, text);\n";
    let Some(made) = sqlite(&database(0), make) else { return skipped("there is no sqlite3") };
    made.unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let database = database(writer % 2);
            // Half of the writers reopen the database each time.
            let (runs, statements) = if writer < 2 { (1, EACH) } else { (EACH / 4, 4) };
            scope.spawn(move || {
                for _ in 0..runs {
                    sqlite(&database, &RAISE.repeat(statements)).unwrap().unwrap();
                }
            });
        }
    });
    for rack in [1, 0] {
        let said = sqlite(&database(rack), CHECK).unwrap().unwrap();
        assert_eq!(said, format!("ok\n1\n{}\n", 4 * EACH), "in rack {rack}");
    }
}

#[test]
fn a_database_is_whole_when_a_mount_is_killed_in_the_midst_of_a_transaction() {
    let Some(mut racks) = Racks::start() else { return };
    let paths = [0, 1].map(|rack| racks.root(rack).join("database"));
    let make = "create table counter(value); insert into counter values (0); \
                create table log(number integer primary key, text);\n";
    let Some(made) = sqlite(&paths[0], make) else { return skipped("there is no sqlite3") };
    made.unwrap();
    for round in 0..3 {
        let value = || sqlite(&paths[1], "select value from counter;\n").unwrap();
        let before = value().unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| sqlite(&paths[0], &RAISE.repeat(10_000)).unwrap());
            wait_until("the load is on", TIMEOUT, || value().unwrap() != before);
            racks.mounts[0].kill();
            assert!(writer.join().unwrap().is_err());
        });
        let said = sqlite(&paths[1], RAISE).unwrap();
        said.unwrap();
        let said = sqlite(&paths[1], CHECK).unwrap().unwrap();
        assert!(said.starts_with("ok\n1\n"), "round {round}: {said}");
        racks.mounts[0].mount();
    }
}

#[test]
fn a_program_locks_thousands_of_records_of_a_file() {
    const RECORDS: i64 = 2500;
    let Some(racks) = Racks::start() else { return };
    let (one, other) = (racks.open(0), racks.open(1));
    for record in 0..RECORDS {
        try_lock(&one, Holder::Description, (record * 100, 8), Lock::Exclusive).unwrap();
    }
    // Each lock is cut in two.
    for record in (0..RECORDS).step_by(10) {
        try_lock(&one, Holder::Description, (record * 100 + 3, 2), Lock::None).unwrap();
    }
    let free = |byte| try_lock(&other, Holder::Description, (byte, 1), Lock::Exclusive);
    for record in (0..RECORDS).step_by(50) {
        let taken = [2, 3, 5, 7].map(|byte| free(record * 100 + byte).is_err());
        assert_eq!(taken, [true, false, true, true], "record {record}");
        assert_eq!(free(record * 100 + 8), Ok(()));
    }
    drop(one);
    wait_until("all are free again", TIMEOUT, || free(RECORDS * 100 - 100).is_ok());
}
