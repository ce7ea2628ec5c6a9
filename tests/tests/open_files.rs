//! The limit of open files: servers raise theirs to the hard limit, and the error of a client that
//! finds no room names the process whose limit it is.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use rackpool_client::{Pool, RackId};
use rackpool_testing::wait::{TIMEOUT, wait_for};
use rackpool_tests::contents;
use rackpool_tests::pool::TestPool;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

fn limits_of(process: u32) -> Rlimit {
    let text = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = text.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut limits = line.split_whitespace().skip(3).map(|word| word.parse().ok());
    Rlimit { current: limits.next().unwrap(), maximum: limits.next().unwrap() }
}

#[test]
fn servers_raise_their_limit_and_a_client_beyond_it_hears_whose_it_is() {
    let own = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..own }).unwrap();
    let mut pool = TestPool::small();
    setrlimit(Resource::Nofile, own).unwrap();
    for server in pool.cluster.processes() {
        assert_eq!(limits_of(server.id()), Rlimit { current: own.maximum, ..own });
    }

    let daemon = pool.cluster.daemon(RackId(0)).unwrap().id();
    let first = pool.open(0);
    let addr = first.alloc(1000).unwrap();
    let open = std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count() as u64;
    let few = Rlimit { current: Some(open + 12), maximum: own.maximum };
    let process = Pid::from_raw(i32::try_from(daemon).unwrap());
    prlimit(process, Resource::Nofile, few).unwrap();

    let mut others = Vec::new();
    let refusal = loop {
        match Pool::open(pool.options(0)) {
            Ok(other) => others.push(other),
            Err(error) => break error.to_string(),
        }
        assert!(others.len() < 20, "the daemon has more open files than it may");
    };
    let limit = (open + 12).to_string();
    for part in ["the daemon of rack 0", &limit, "open files", "LimitNOFILE="] {
        assert!(refusal.contains(part), "'{part}' is not in: {refusal}");
    }
    contents::write(&first, addr, 1000);
    contents::check(&first, addr, 1000);
    drop(others);
    let another = wait_for("there is room again", TIMEOUT, || Pool::open(pool.options(0)).ok());
    contents::check(&another, addr, 1000);
}
