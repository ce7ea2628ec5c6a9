//! Casts between eight hosts over TCP, on cables of limited bandwidth: one host has a slow cable,
//! and the rack of another one is killed meanwhile.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::contents;
use rackpool_tests::host_pool::HostPool;
use rackpool_tests::hosts::Hosts;

const RACKS: usize = 8;
/// The cables' rate: an object of [`BYTES`] takes more than 600 ms.
const MEGABITS: u32 = 200;
const SLOW_MEGABITS: u32 = 100;
const BYTES: usize = 16 << 20;
const SLOW: usize = 5;
const KILLED: usize = 2;
/// Casts until one must have gone on without the killed rack.
const CASTS: usize = 5;
/// What a rack says whose replica can't be registered without a rack that is away.
const NEEDED: &str = "a rack is away that is needed to register the copy";
/// Lines of the daemons' configuration.
const DAEMON: &str = "memory = '64M'\npage-size = '64K'\nswap = 'off'";

/// A program that runs until it is killed or dropped.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn succeeds(command: &mut Command) -> Vec<u8> {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Starts the pool on limited cables, with an agent in each rack but the first.
fn start() -> Option<(HostPool, Vec<Program>)> {
    let hosts = Hosts::join(u8::try_from(RACKS).unwrap())?;
    for host in 0..RACKS {
        hosts.limit(host, if host == SLOW { SLOW_MEGABITS } else { MEGABITS });
    }
    let pool = HostPool::start(hosts, DAEMON);
    wait_until("all racks are up", TIMEOUT, || pool.racks_up() == RACKS);
    let agents = (1..RACKS).map(|rack| agent(&pool, rack)).collect();
    Some((pool, agents))
}

fn agent(pool: &HostPool, rack: usize) -> Program {
    Program::start(&mut pool.rackpool_in(rack, &["agent"]))
}

/// A command that casts an object from rack 0 to all others.
fn cast(pool: &HostPool, id: &str) -> Command {
    let others = (1..RACKS).map(|rack| rack.to_string()).collect::<Vec<_>>().join(",");
    let mut command = pool.rackpool_in(0, &["cast", id, "--to", &others, "--grace", "8"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The lines of a cast's output about racks that have the object.
fn with_object(cast: &Output) -> usize {
    String::from_utf8_lossy(&cast.stdout).lines().filter(|line| line.ends_with("has it")).count()
}

#[test]
fn a_killed_rack_and_a_slow_cable_do_not_keep_the_object_from_the_others() {
    let Some((mut pool, mut agents)) = start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bytes");
    let bytes = contents::of(7, BYTES);
    std::fs::write(&file, &bytes).unwrap();
    let put = |id| succeeds(pool.rackpool_in(0, &["objects", "put", id]).arg(&file));
    put("first");
    wait_until("all agents serve", TIMEOUT, || {
        with_object(&output(&mut cast(&pool, "first"))) == RACKS - 1
    });

    let all_but_it =
        (0..CASTS).any(|at| all_but_a_killed_one(&mut pool, &mut agents, &file, &bytes, at));
    assert!(all_but_it, "each time the killed rack had the registration of the replicas");
}

/// Casts a new object, kills a rack meanwhile and starts it again. Returns true if all others had
/// the object without it. The other outcome: the killed rack was the last one that had registered
/// its replica, so no other one could register.
fn all_but_a_killed_one(
    pool: &mut HostPool,
    agents: &mut [Program],
    file: &Path,
    bytes: &[u8],
    at: usize,
) -> bool {
    let id = format!("object {at}");
    succeeds(pool.rackpool_in(0, &["objects", "put", &id]).arg(file));
    let casting = cast(pool, &id).spawn().unwrap();
    let comes = format!("rack {KILLED}");
    wait_until("the object comes to the rack", TIMEOUT, || {
        let said = succeeds(&mut pool.rackpool_in(0, &["objects", "explain", &id]));
        String::from_utf8(said).unwrap().contains(&comes)
    });
    agents[KILLED - 1].kill();
    pool.racks[KILLED].kill();
    let done = casting.wait_with_output().unwrap();
    let is_needed = String::from_utf8_lossy(&done.stdout).contains(NEEDED);
    assert!(!done.status.success() && (is_needed || with_object(&done) == RACKS - 2), "{done:?}");
    for rack in (1..RACKS).filter(|rack| *rack != KILLED && !is_needed) {
        let had = succeeds(&mut pool.rackpool_in(rack, &["objects", "get", &id]));
        assert!(had == bytes, "rack {rack} has other bytes");
    }
    // Its rack comes back, with what it has of the object.
    pool.restart_rack(KILLED);
    agents[KILLED - 1] = agent(pool, KILLED);
    wait_until("the cast is repeated", TIMEOUT, || output(&mut cast(pool, &id)).status.success());
    let had = succeeds(&mut pool.rackpool_in(KILLED, &["objects", "get", &id]));
    assert!(had == bytes, "the killed rack has other bytes");
    !is_needed
}
