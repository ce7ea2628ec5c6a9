//! Groups: members of many racks get the same messages, whatever happens to the programs.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_client::{AllocError, Pool, RackId};
use rackpool_objects::{
    GroupFailure, GroupMember, GroupOptions, GroupOutcome, GroupReport, GroupRoot, Received,
    StoreError,
};
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::program;
use rackpool_tests::pool::TestPool;

const RACKS: u16 = 4;
const NAME: &str = "log";
/// Longer than programs pause on a busy machine.
const GRACE: Duration = Duration::from_secs(4);
const OPTIONS: GroupOptions = GroupOptions { ring_bytes: 4 << 10, joining: TIMEOUT, grace: GRACE };

/// One test at a time: each has many programs, which must not be taken for lost.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pool() -> TestPool {
    let pool = TestPool::with(|options| {
        options.racks = RACKS;
        options.lease_ms = 20_000;
    });
    pool.wait_until_racks_meet();
    pool
}

fn open(pool: &TestPool, rack: u16) -> Arc<Pool> {
    Arc::new(pool.open(rack))
}

fn racks(racks: &[u16]) -> Vec<RackId> {
    racks.iter().copied().map(RackId).collect()
}

/// The message of this number: some are long.
fn message(number: u64) -> Vec<u8> {
    let len = match number % 10 {
        3 => 0,
        7 => 700,
        _ => number % 90,
    };
    (0..len).map(|at| u8::try_from((at + number) % 251).unwrap()).collect()
}

/// Receives until the group ends. Returns how many messages there were, and how it has ended.
fn receive_all(mut member: GroupMember) -> (u64, GroupOutcome) {
    let mut count = 0;
    loop {
        match member.receive(TIMEOUT).unwrap() {
            Received::Message(found) => {
                assert_eq!(found.number(), count);
                assert!(found[..] == message(count)[..], "message {count}");
                count += 1;
            }
            Received::TimedOut => panic!("no message for {TIMEOUT:?} after {count}"),
            Received::Ended(outcome) => return (count, outcome),
        }
    }
}

/// A `rackpool group receive`, or a `rackpool group send`, which is killed when it is dropped.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(pool: &TestPool, rack: u16, arguments: &[&str]) -> Self {
        let rack = rack.to_string();
        let mut command = Command::new(program("rackpool"));
        command.arg("group").args(arguments).args(["--rack", &rack, "--dir"]);
        command.arg(pool.dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn receive(pool: &TestPool, rack: u16) -> Self {
        Self::start(pool, rack, &["receive", NAME])
    }

    fn send(pool: &TestPool, to: &str) -> (Self, ChildStdin) {
        let grace = GRACE.as_secs().to_string();
        let arguments = ["send", NAME, "--to", to, "--ring", "4K", "--grace", &grace];
        let mut sender = Self::start(pool, 0, &arguments);
        let input = sender.child.stdin.take().unwrap();
        (sender, input)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// The next lines that it prints.
    fn lines(&mut self, count: usize) -> Vec<String> {
        self.output.by_ref().lines().take(count).map(Result::unwrap).collect()
    }

    /// Waits until it has ended. Returns whether it was successful, and what it has printed.
    fn end(mut self) -> (bool, String) {
        drop(self.child.stdin.take());
        let output = std::io::read_to_string(&mut self.output).unwrap();
        (self.child.wait().unwrap().success(), output)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends messages to members in threads of this process.
fn send_to_all(pool: &TestPool, to: &[u16], count: u64) -> (GroupReport, Vec<(u64, GroupOutcome)>) {
    std::thread::scope(|scope| {
        let members: Vec<_> = to
            .iter()
            .map(|rack| {
                let pool = open(pool, *rack);
                scope.spawn(|| receive_all(GroupMember::join(pool, NAME, TIMEOUT).unwrap()))
            })
            .collect();
        let mut root = GroupRoot::create(open(pool, 0), NAME, &racks(to), &OPTIONS).unwrap();
        for number in 0..count {
            assert_eq!(root.send(&message(number)).unwrap(), number);
        }
        let report = root.close().unwrap();
        (report, members.into_iter().map(|member| member.join().unwrap()).collect())
    })
}

#[test]
fn all_members_get_all_messages_in_order_and_nothing_stays() {
    let (_alone, pool) = (alone(), pool());
    let before = census::Census::of(&pool);
    // 4 KiB of ring: it wraps, and messages of more than 960 B are objects.
    for count in [0, 1, 2000] {
        let (report, members) = send_to_all(&pool, &[1, 2, 3], count);
        assert_eq!(report.messages, count);
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(members, vec![(count, GroupOutcome::Closed); 3]);
    }
    wait_until("all memory is back", TIMEOUT, || before.newcomers_are_gone(&pool));
    let reader = open(&pool, 0);
    assert_eq!(reader.root(".group-log").unwrap(), None);
    assert_eq!(reader.root(".groupmember-1-log").unwrap(), None);
}

#[test]
fn long_messages_are_objects_until_all_have_taken_them() {
    let (_alone, pool) = (alone(), pool());
    let long = |number: u8| vec![number; 100_000];
    std::thread::scope(|scope| {
        let receive = |rack| {
            let pool = open(&pool, rack);
            move || {
                let mut member = GroupMember::join(pool, NAME, TIMEOUT).unwrap();
                let mut views = Vec::new();
                for number in 0..20 {
                    let Received::Message(found) = member.receive(TIMEOUT).unwrap() else {
                        panic!("message {number} is missing");
                    };
                    if number % 2 == 0 {
                        assert!(found[..] == long(number)[..], "message {number}");
                        views.push(found.into_view().unwrap());
                    } else {
                        assert_eq!(found[..], [number]);
                        assert!(found.into_view().is_none());
                    }
                }
                let ended = member.receive(TIMEOUT).unwrap();
                assert!(matches!(ended, Received::Ended(GroupOutcome::Closed)), "{ended:?}");
                // The objects are deleted, and these bytes stay.
                for (at, view) in views.iter().enumerate() {
                    assert!(view[..] == long(2 * u8::try_from(at).unwrap())[..]);
                }
            }
        };
        let members = [1, 2].map(|rack| scope.spawn(receive(rack)));
        let to = racks(&[1, 2]);
        let mut root = GroupRoot::create(open(&pool, 0), NAME, &to, &OPTIONS).unwrap();
        for number in 0..20 {
            root.send(&if number % 2 == 0 { long(number) } else { vec![number] }).unwrap();
        }
        assert!(root.close().unwrap().is_complete());
        members.into_iter().for_each(|member| member.join().unwrap());
    });
    let mut roots = Command::new(program("rackpool"));
    roots.args(["root", "ls", "--dir"]).arg(pool.dir());
    let said = String::from_utf8(roots.output().unwrap().stdout).unwrap();
    assert!(!said.contains("group"), "{said}");
}

#[test]
fn long_messages_wait_for_room_in_the_rack() {
    let (_alone, pool) = (alone(), pool());
    // 60 MB through racks of 16 MiB.
    let (count, len) = (200_u64, 300_000);
    std::thread::scope(|scope| {
        let members = [1, 2].map(|rack| {
            let pool = open(&pool, rack);
            scope.spawn(move || {
                let mut member = GroupMember::join(pool, NAME, TIMEOUT).unwrap();
                for number in 0..count {
                    let received = member.receive(TIMEOUT).unwrap();
                    let Received::Message(found) = received else { panic!("{received:?}") };
                    let byte = u8::try_from(number).unwrap();
                    assert!(found.len() == len && found.iter().all(|found| *found == byte));
                }
                let ended = member.receive(TIMEOUT).unwrap();
                assert!(matches!(ended, Received::Ended(GroupOutcome::Closed)), "{ended:?}");
            })
        });
        let to = racks(&[1, 2]);
        let mut root = GroupRoot::create(open(&pool, 0), NAME, &to, &OPTIONS).unwrap();
        for number in 0..count {
            root.send(&vec![u8::try_from(number).unwrap(); len]).unwrap();
        }
        assert!(root.close().unwrap().is_complete());
        members.into_iter().for_each(|member| member.join().unwrap());
    });
}

#[test]
fn a_long_message_for_which_there_is_no_room_is_received_later() {
    let (_alone, pool) = (alone(), pool());
    let long = vec![7; 1_000_000];
    std::thread::scope(|scope| {
        let member = scope.spawn(|| GroupMember::join(open(&pool, 1), NAME, TIMEOUT).unwrap());
        let to = racks(&[1]);
        let mut root = GroupRoot::create(open(&pool, 0), NAME, &to, &OPTIONS).unwrap();
        let mut member = member.join().unwrap();
        let other = open(&pool, 1);
        let mut hoard = Vec::new();
        let full = loop {
            match other.alloc_fixed(other.page_bytes()) {
                Ok(page) => hoard.push(page),
                Err(full) => break full,
            }
        };
        assert!(matches!(full, AllocError::RackFull { .. }), "{full:?}");
        root.send(&long).unwrap();
        root.send(b"after it").unwrap();
        for _ in 0..3 {
            let refused = member.receive(TIMEOUT).unwrap_err();
            let is_full = matches!(refused, StoreError::Alloc(AllocError::RackFull { .. }));
            assert!(is_full, "{refused:?}");
        }
        hoard.into_iter().for_each(|page| other.free(page).unwrap());
        let mut received = Vec::new();
        wait_until("the rack has room again", TIMEOUT, || match member.receive(TIMEOUT) {
            Ok(Received::Message(found)) => {
                received.push((found.number(), found.len()));
                received.len() == 2
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => false,
        });
        assert_eq!(received, [(0, long.len()), (1, 8)]);
        let closes = scope.spawn(|| root.close().unwrap());
        let ended = member.receive(TIMEOUT).unwrap();
        assert!(matches!(ended, Received::Ended(GroupOutcome::Closed)), "{ended:?}");
        assert!(closes.join().unwrap().is_complete());
    });
}

#[test]
fn survivors_of_a_killed_root_have_the_same_lines() {
    let (_alone, pool) = (alone(), pool());
    for round in 0..3 {
        let mut members: Vec<_> = (1..RACKS).map(|rack| Process::receive(&pool, rack)).collect();
        let (sender, mut input) = Process::send(&pool, "1,2,3");
        let sends = std::thread::spawn(move || {
            for number in 0.. {
                if writeln!(input, "line {number} {}", "x".repeat(number % 50)).is_err() {
                    break;
                }
            }
        });
        // While messages are on their way.
        let first = members[0].lines(100 + 37 * round);
        sender.signal(Signal::SIGKILL);
        drop(sender);
        sends.join().unwrap();
        let ends: Vec<_> = members.into_iter().map(Process::end).collect();
        let last = |output: &str| output.lines().next_back().map(str::to_owned);
        let mut lasts: Vec<_> = ends.iter().map(|(_, output)| last(output)).collect();
        // Perhaps the first member has printed nothing since.
        lasts[0] = lasts[0].take().or_else(|| first.last().cloned());
        assert!(lasts[0].is_some() && lasts.iter().all(|last| *last == lasts[0]), "{lasts:?}");
        assert!(ends.iter().all(|(is_success, _)| !is_success));
    }
}

#[test]
fn the_others_go_on_without_a_killed_member() {
    let (_alone, pool) = (alone(), pool());
    let mut killed = Process::receive(&pool, 2);
    let others = [1, 3].map(|rack| Process::receive(&pool, rack));
    let (sender, mut input) = Process::send(&pool, "1,2,3");
    writeln!(input, "begin").unwrap();
    assert_eq!(killed.lines(1), ["begin"]);
    killed.signal(Signal::SIGKILL);
    drop(killed);
    for number in 0..1000 {
        writeln!(input, "line {number}").unwrap();
    }
    drop(input);
    let (is_success, said) = sender.end();
    assert!(!is_success, "a rack is lost");
    assert!(said.contains("1,001 lines sent"), "{said}");
    assert!(said.contains("is lost; it has taken"), "{said}");
    for other in others {
        let (is_success, output) = other.end();
        assert!(is_success);
        assert_eq!(output.lines().count(), 1001);
    }
}

#[test]
fn a_member_that_is_stopped_is_left_out_and_knows_it() {
    let (_alone, pool) = (alone(), pool());
    let mut stopped = Process::receive(&pool, 1);
    let other = Process::receive(&pool, 2);
    let (sender, mut input) = Process::send(&pool, "1,2");
    writeln!(input, "begin").unwrap();
    assert_eq!(stopped.lines(1), ["begin"]);
    stopped.signal(Signal::SIGSTOP);
    for number in 0..1000 {
        writeln!(input, "line {number}").unwrap();
    }
    drop(input);
    let (is_success, said) = sender.end();
    assert!(!is_success && said.contains("has taken all"), "{said}");
    let (is_success, output) = other.end();
    assert!(is_success);
    assert_eq!(output.lines().count(), 1001);
    stopped.signal(Signal::SIGCONT);
    let (is_success, output) = stopped.end();
    assert!(!is_success);
    // What it has printed is a prefix.
    let expected = (0..1000).map(|number| format!("line {number}"));
    assert!(output.lines().zip(expected).all(|(found, expected)| found == expected), "{output}");
    assert!(output.lines().count() < 1000);
}

#[test]
fn a_root_that_is_stopped_finds_its_group_ended() {
    let (_alone, pool) = (alone(), pool());
    let mut members = [1, 2].map(|rack| Process::receive(&pool, rack));
    let (sender, mut input) = Process::send(&pool, "1,2");
    writeln!(input, "begin").unwrap();
    assert!(members.iter_mut().all(|member| member.lines(1) == ["begin"]));
    sender.signal(Signal::SIGSTOP);
    for member in members {
        let (is_success, output) = member.end();
        assert!(!is_success);
        assert_eq!(output, "");
    }
    sender.signal(Signal::SIGCONT);
    // More than the ring holds: it looks for its members.
    for number in 0..1000 {
        if writeln!(input, "line {number}").is_err() {
            break;
        }
    }
    drop(input);
    let (is_success, said) = sender.end();
    assert!(!is_success);
    assert_eq!(said, "");
    // The name can be used again.
    let (report, members) = send_to_all(&pool, &[1, 2], 10);
    assert!(report.is_complete());
    assert_eq!(members, vec![(10, GroupOutcome::Closed); 2]);
}

#[test]
fn a_group_is_named_once_and_each_rack_has_one_member() {
    let (_alone, pool) = (alone(), pool());
    let create = |name: &str, to: &[u16], joining| {
        let options = GroupOptions { joining, ..OPTIONS };
        GroupRoot::create(open(&pool, 0), name, &racks(to), &options).map(drop)
    };
    let failure = |result: Result<(), StoreError>| match result {
        Err(StoreError::Group(failure)) => failure,
        other => panic!("{other:?}"),
    };
    let soon = Duration::from_millis(200);
    let absent: BTreeSet<_> = racks(&[1, 2]).into_iter().collect();
    assert_eq!(failure(create(NAME, &[2, 1, 2], soon)), GroupFailure::Absent(absent));
    for to in [&[][..], &[0], &[0, 1], &(1..18).collect::<Vec<_>>()] {
        assert!(matches!(create(NAME, to, soon), Err(StoreError::Option { .. })), "{to:?}");
    }
    for name in [String::new(), "n".repeat(201)] {
        assert!(matches!(create(&name, &[1], soon), Err(StoreError::Option { .. })));
    }
    for ring_bytes in [0, 2 << 10, 5000] {
        let options = GroupOptions { ring_bytes, ..OPTIONS };
        let made = GroupRoot::create(open(&pool, 0), NAME, &racks(&[1]), &options);
        assert!(matches!(made, Err(StoreError::Option { .. })), "{ring_bytes}");
    }
    let join = |rack, timeout| GroupMember::join(open(&pool, rack), NAME, timeout).map(drop);
    assert_eq!(failure(join(1, soon)), GroupFailure::NoRoot);
    std::thread::scope(|scope| {
        let member = scope.spawn(|| GroupMember::join(open(&pool, 1), NAME, TIMEOUT).unwrap());
        let mut root = GroupRoot::create(open(&pool, 0), NAME, &racks(&[1]), &OPTIONS).unwrap();
        let member = member.join().unwrap();
        assert_eq!(member.racks(), [RackId(1)]);
        assert_eq!(failure(create(NAME, &[2], soon)), GroupFailure::Exists);
        assert_eq!(failure(join(1, soon)), GroupFailure::Taken(RackId(1)));
        assert_eq!(failure(join(2, soon)), GroupFailure::NotNamed(RackId(2)));
        root.send(b"one").unwrap();
        assert_eq!(root.members(), BTreeMap::from([(RackId(1), 0)]));
        let mut member = member;
        let received = member.receive(TIMEOUT).unwrap();
        assert!(matches!(received, Received::Message(message) if message[..] == *b"one"));
        let received = member.receive(Duration::ZERO).unwrap();
        assert!(matches!(received, Received::TimedOut));
        // A member that has left.
        drop(member);
        let sent = (0..1000).try_for_each(|_| root.send(&[7; 100]).map(drop));
        assert_eq!(failure(sent), GroupFailure::NoMember);
        let report = root.close().unwrap();
        // Its word is not read any more when it has left.
        assert_eq!(report.racks.values().collect::<Vec<_>>(), [&Err(0)]);
    });
}

#[test]
fn a_group_outlives_the_daemons_of_its_racks() {
    let (_alone, mut pool) = (alone(), pool());
    let mut members = [1, 2].map(|rack| Process::receive(&pool, rack));
    let (sender, mut input) = Process::send(&pool, "1,2");
    writeln!(input, "begin").unwrap();
    assert!(members.iter_mut().all(|member| member.lines(1) == ["begin"]));
    for rack in 0..3 {
        for number in 0..200 {
            writeln!(input, "line {number}").unwrap();
        }
        pool.kill_daemon(rack);
        pool.restart_daemon(rack);
    }
    drop(input);
    let (is_success, said) = sender.end();
    assert!(is_success && said.contains("601 lines sent"), "{said}");
    for member in members {
        let (is_success, output) = member.end();
        assert!(is_success);
        assert_eq!(output.lines().count(), 600);
    }
}
