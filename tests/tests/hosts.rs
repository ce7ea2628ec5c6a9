//! A pool on two hosts: credentials, a configuration file, TCP between the racks, and a host that
//! is cut off from the network and returns.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rackpool_client::RackId;
use rackpool_shm::directory::RackDirectory;
use rackpool_testing::StopAtEnd;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::client::{TestClient, program};
use rackpool_tests::host_pool::HostPool;
use rackpool_tests::hosts::Hosts;

/// The lease, and the delay of a busy machine: less than a call waits for its daemon.
const LEASE: Duration = Duration::from_millis(2000 + 6000);
/// Pages stay where they are.
const NO_SWAP: &str = "swap = 'off'";

/// Starts a pool on two hosts, with these lines in the daemons' part of the configuration.
fn start(daemon: &str) -> Option<HostPool> {
    let lines = format!("memory = '16M'\npage-size = '64K'\n{daemon}");
    Some(HostPool::start(Hosts::join(2)?, &lines))
}

/// Objects written by one client, each with the tag of its pattern.
fn write_objects(client: &mut TestClient, from: u64) -> Vec<(String, u64)> {
    let object = |tag| {
        let addr = client.ask("alloc 3000");
        assert_eq!(client.ask(&format!("write {addr} 3000 {tag}")), "ok", "{addr}");
        (addr, tag)
    };
    (from..from + 20).map(object).collect()
}

#[track_caller]
fn check(client: &mut TestClient, objects: &[(String, u64)]) {
    for (addr, tag) in objects {
        assert_eq!(client.ask(&format!("check {addr} 3000 {tag}")), "ok", "{addr}");
    }
}

/// Repeats the request until the answer is an error, which must come when the rack's lease has
/// expired.
#[track_caller]
fn fails_in_time(client: &mut TestClient, request: &str) {
    let began = Instant::now();
    let answer = client.ask(request);
    assert!(answer.starts_with("error: "), "{request}: {answer}");
    assert!(began.elapsed() < LEASE, "{request}: {answer} after {:?}", began.elapsed());
}

#[test]
fn a_host_that_is_cut_off_fails_in_time_works_locally_and_comes_back_whole() {
    let Some(pool) = start(NO_SWAP) else { return };
    let mut clients = [pool.client(0), pool.client(1)];
    wait_until("both racks are up", TIMEOUT, || pool.racks_up() == 2);
    let objects = [write_objects(&mut clients[0], 0), write_objects(&mut clients[1], 100)];
    wait_until("the racks meet", TIMEOUT, || {
        let (addr, tag) = &objects[1][0];
        clients[0].ask(&format!("check {addr} 3000 {tag}")) == "ok"
    });
    check(&mut clients[0], &objects[1]);
    check(&mut clients[1], &objects[0]);
    // Each client also writes to the other rack's memory.
    for (client, (addr, tag)) in [(0, &objects[1][1]), (1, &objects[0][1])] {
        assert_eq!(clients[client].ask(&format!("write {addr} 3000 {tag}")), "ok");
    }

    pool.hosts[1].unplug();
    let (mine, theirs) = (&objects[0][2].0, &objects[1][2].0);
    // Reads and writes of the other rack's memory, from both sides; then of the own memory, which
    // works.
    for request in [format!("check {theirs} 3000 102"), format!("write {theirs} 3000 102")] {
        fails_in_time(&mut clients[0], &request);
    }
    for request in [format!("check {mine} 3000 2"), format!("write {mine} 3000 2")] {
        fails_in_time(&mut clients[1], &request);
    }
    check(&mut clients[0], &objects[0]);
    check(&mut clients[1], &objects[1]);
    let meanwhile = write_objects(&mut clients[1], 200);
    wait_until("the lease runs out", TIMEOUT, || pool.racks_up() == 1);

    pool.hosts[1].plug_in();
    wait_until("both racks are up", TIMEOUT, || pool.racks_up() == 2);
    wait_until("the racks meet again", TIMEOUT, || {
        let (addr, tag) = &meanwhile[0];
        clients[0].ask(&format!("check {addr} 3000 {tag}")) == "ok"
    });
    check(&mut clients[0], &objects[1]);
    check(&mut clients[0], &meanwhile);
    wait_until("the other way as well", TIMEOUT, || {
        let (addr, tag) = &objects[0][0];
        clients[1].ask(&format!("check {addr} 3000 {tag}")) == "ok"
    });
    check(&mut clients[1], &objects[0]);
    assert!(clients.iter_mut().all(TestClient::finish));
}

/// An object that one client writes and both read, and its possible contents.
struct Noted {
    addr: String,
    acknowledged: u64,
    /// Tags of later writes that failed; how much of each was written is unknown.
    perhaps: Vec<u64>,
}

const NOTED: u64 = 30_000;

impl Noted {
    fn write(&mut self, client: &mut TestClient, tag: u64) {
        let began = Instant::now();
        let answer = client.ask(&format!("write {} {NOTED} {tag}", self.addr));
        assert!(began.elapsed() < LEASE, "{answer} after {:?}", began.elapsed());
        if answer == "ok" {
            (self.acknowledged, self.perhaps) = (tag, Vec::new());
        } else {
            assert!(answer.starts_with("error: "), "{answer}");
            self.perhaps.push(tag);
        }
    }

    /// A client's answer to reading the object: `ok`, a difference, or an error.
    fn read(&self, client: &mut TestClient) -> String {
        let perhaps: String = self.perhaps.iter().map(|tag| format!(" {tag}")).collect();
        client.ask(&format!("among {} {NOTED} {}{perhaps}", self.addr, self.acknowledged))
    }
}

/// Counters that another thread reads.
#[derive(Default)]
struct Counts {
    writes: AtomicU64,
    moves: AtomicU64,
}

/// Determines which client uses the objects most, so that their pages move to it. Without turns the
/// first client to have a page would keep it, since remote uses take longer.
#[derive(Default)]
struct Turns(AtomicU64);

impl Turns {
    /// Uses of all objects in one turn.
    const LONG: u64 = 50;
    const REST: Duration = Duration::from_millis(5);

    /// Notes that a client has used all its objects once more.
    fn take(&self, client: u64) {
        let now = self.0.load(Ordering::Relaxed);
        if now / Self::LONG % 2 == client {
            self.0.store(now + 1, Ordering::Relaxed);
        } else {
            std::thread::sleep(Self::REST);
        }
    }
}

/// Writes and reads the client's objects, one after the other, until told to stop.
fn use_until(
    client: &mut TestClient,
    objects: &mut [Noted],
    index: u64,
    (turns, counts): (&Turns, &Counts),
    stop: &AtomicBool,
) {
    let mut were_local = vec![None; objects.len()];
    let mut tags = 1000 + index * 1_000_000_000..;
    while !stop.load(Ordering::Relaxed) {
        for (object, was_local) in objects.iter_mut().zip(&mut were_local) {
            object.write(client, tags.next().unwrap());
            let said = object.read(client);
            assert!(said == "ok" || said.starts_with("error: "), "{}: {said}", object.addr);
            if object.perhaps.is_empty() {
                counts.writes.fetch_add(1, Ordering::Relaxed);
            }
            if let Ok(is_local) = client.ask(&format!("local {}", object.addr)).parse::<bool>() {
                let has_moved = was_local.replace(is_local).is_some_and(|was| was != is_local);
                counts.moves.fetch_add(has_moved.into(), Ordering::Relaxed);
            }
        }
        turns.take(index);
    }
}

#[test]
fn pages_that_move_between_hosts_lose_nothing_when_one_is_cut_off_and_comes_back() {
    // With this decay uses of a second ago do not count.
    let lines = "hot = 1.5\nrest-ms = 0\nswap-pause-ms = 1\nheat-decay = 20";
    let Some(pool) = start(lines) else { return };
    let mut clients = [pool.client(0), pool.client(1)];
    wait_until("both racks are up", TIMEOUT, || pool.racks_up() == 2);
    // Two objects fill a page, and each page is used by both clients.
    let mut objects: [Vec<Noted>; 2] = [Vec::new(), Vec::new()];
    for index in 0..12 {
        let addr = clients[0].ask(&format!("alloc {NOTED}"));
        let mut object = Noted { addr, acknowledged: 0, perhaps: Vec::new() };
        object.write(&mut clients[0], 1);
        assert_eq!(object.acknowledged, 1);
        objects[index % 2].push(object);
    }
    wait_until("the racks meet", TIMEOUT, || objects[1][0].read(&mut clients[1]) == "ok");

    let counts = [Counts::default(), Counts::default()];
    let (turns, stop) = (Turns::default(), AtomicBool::new(false));
    let sum = |of: fn(&Counts) -> &AtomicU64| -> [u64; 2] {
        counts.each_ref().map(|counts| of(counts).load(Ordering::Relaxed))
    };
    let wait_for_more = |what: &str| {
        let (writes, moves) = (sum(|counts| &counts.writes), sum(|counts| &counts.moves));
        wait_until(what, TIMEOUT, || {
            let written = sum(|counts| &counts.writes);
            let all_write = written.iter().zip(writes).all(|(now, before)| *now >= before + 100);
            let [here, there] = sum(|counts| &counts.moves);
            all_write && here + there >= moves[0] + moves[1] + 20
        });
    };
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (index, client) in clients.iter_mut().enumerate() {
            let mut own = std::mem::take(&mut objects[index]);
            let (shared, stop) = ((&turns, &counts[index]), &stop);
            let index = u64::try_from(index).unwrap();
            running.push(scope.spawn(move || {
                use_until(client, &mut own, index, shared, stop);
                own
            }));
        }
        let stopping = StopAtEnd(&stop);
        wait_for_more("pages go to and fro");
        pool.hosts[1].unplug();
        wait_until("the lease runs out", TIMEOUT, || pool.racks_up() == 1);
        pool.hosts[1].plug_in();
        wait_until("both racks are up", TIMEOUT, || pool.racks_up() == 2);
        wait_for_more("pages go to and fro again");
        drop(stopping);
        for (objects, thread) in objects.iter_mut().zip(running) {
            *objects = thread.join().unwrap();
        }
    });
    for client in &mut clients {
        for object in objects.iter().flatten() {
            assert_eq!(object.read(client), "ok", "{}", object.addr);
        }
    }
    assert!(clients.iter_mut().all(TestClient::finish));
}

#[test]
fn a_new_fabric_key_reaches_racks_that_run() {
    let Some(mut pool) = start(NO_SWAP) else { return };
    let mut clients = [pool.client(0), pool.client(1)];
    let objects = write_objects(&mut clients[1], 0);
    wait_until("the racks meet", TIMEOUT, || {
        clients[0].ask(&format!("check {} 3000 0", objects[0].0)) == "ok"
    });
    pool.restart_metadata(&["--new-fabric-key"]);
    // Established connections stay.
    check(&mut clients[0], &objects);
    for rack in &mut pool.racks {
        let got = |said: &str| said.matches("got the pool's fabric key").count() == 2;
        rack.wait_until("a rack that runs has the new key", got);
    }
    // A rack that starts now has the new key only, and connects to one that received the key while
    // it ran.
    pool.restart_rack(1);
    wait_until("the racks meet again", TIMEOUT, || {
        clients[0].ask(&format!("check {} 3000 0", objects[0].0)) == "ok"
    });
    check(&mut clients[0], &objects);
}

#[test]
fn an_address_of_another_host_needs_credentials() {
    let Some(hosts) = Hosts::join(1) else { return };
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let host = &hosts[0];
    let said = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let needs = |said: &str, option: &str| {
        assert!(said.contains(option) && said.contains("rackpool credentials init"), "{said}");
    };
    let address = format!("{}:7400", host.address);
    let mut server = host.command(program("rackpool-metaserver"));
    let store = folder.path().join("store");
    needs(&said(server.args(["--listen", &address, "--store"]).arg(&store)), "--listen");
    assert!(!store.exists());
    let daemon = |arguments: &[&str]| {
        let mut command = host.command(program("rackpool-daemon"));
        command.args(["--rack", "0", "--memory", "16M"]).arg("--dir").arg(folder.path());
        said(command.args(arguments))
    };
    needs(&daemon(&["--metadata", &address]), "--metadata");
    needs(&daemon(&["--fabric", "tcp", "--fabric-listen", &address]), "--fabric-listen");
    let mut status = host.command(program("rackpool"));
    needs(&said(status.args(["status", "--metadata", &address])), "--metadata");
    assert!(!RackDirectory::new(folder.path(), RackId(0)).control_socket().exists());
}
