//! The `rackpool` program as users run it: its output, its exit status, and what it leaves behind.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rackpool_client::{ClientOptions, GlobalAddr, Pool, RackId, RootUpdate};
use rackpool_kv::Table;
use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, try_wait_for, try_wait_until, wait_for, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::contents;
use tempfile::TempDir;

/// The most time that a benchmark, or the start of a pool, may take on a busy machine.
const LONG: Duration = Duration::from_secs(300);

/// A folder in memory that is removed with the test.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A `rackpool` whose temporary files go to `temporary`.
fn rackpool(temporary: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("rackpool"));
    command.args(arguments).env("TMPDIR", temporary).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// A command that has ended: its output and exit status.
struct Ran {
    id: u32,
    status: ExitStatus,
    said: String,
    complained: String,
}

impl Ran {
    /// Runs the command to its end.
    fn of(mut command: Command) -> Self {
        let (mut said, mut complained) =
            (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        command.stdout(said.try_clone().unwrap()).stderr(complained.try_clone().unwrap());
        let mut process = command.spawn().unwrap();
        let (id, status) = (process.id(), end_of(&mut process, LONG));
        Self { id, status, said: text_of(&mut said), complained: text_of(&mut complained) }
    }

    #[track_caller]
    fn good(self) -> String {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.said, self.complained);
        self.said
    }
}

/// Waits for the process's end; kills it after the timeout.
#[track_caller]
fn end_of(process: &mut Child, timeout: Duration) -> ExitStatus {
    try_wait_for(timeout, || process.try_wait().unwrap()).unwrap_or_else(|| {
        process.kill().unwrap();
        process.wait().unwrap();
        panic!("it did not end within {timeout:?}");
    })
}

fn text_of(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// A running `rackpool up`; dropping this ends it and removes what it would leave behind.
struct Up {
    process: Child,
    output: BufReader<ChildStdout>,
    complaints: File,
    /// Its output up to its ready message.
    said: String,
    /// The folder in its `TMPDIR`.
    temporary: TempDir,
}

impl Up {
    fn start(arguments: &[&str]) -> Self {
        let (temporary, complaints) = (folder(), tempfile::tempfile().unwrap());
        let mut process = rackpool(temporary.path(), &[&["up"], arguments].concat())
            .stdout(Stdio::piped())
            .stderr(complaints.try_clone().unwrap())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut up = Self { process, output, complaints, said: String::new(), temporary };
        // This is its last message. A program that can't start ends by itself, so the loop ends.
        while !up.said.contains("stop with Ctrl-C") {
            let read = up.output.read_line(&mut up.said).unwrap();
            assert!(read > 0, "{}\n{}", up.said, text_of(&mut up.complaints));
        }
        up
    }

    fn ephemeral() -> Self {
        Self::start(&["--ephemeral", "--racks", "2", "--memory", "64M"])
    }

    /// The pool's folder, as its hints name it.
    fn dir(&self) -> PathBuf {
        let hint = self.said.lines().find_map(|line| line.split("rackpool status --dir ").nth(1));
        PathBuf::from(hint.unwrap())
    }

    /// A log that it names: the metadata server's or a rack's. The log is not in the pool's memory.
    fn log(&self, name: &str) -> PathBuf {
        let end = format!("/{name}.log");
        let path = self.said.lines().find_map(|line| {
            line.trim()
                .strip_prefix("log ")?
                .ends_with(&end)
                .then(|| PathBuf::from(line.trim().trim_start_matches("log ")))
        });
        let path = path.unwrap();
        assert!(!path.starts_with(self.dir()), "{}", path.display());
        path
    }

    /// The process ids of the metadata server and of the racks' daemons.
    fn ids(&self) -> Vec<Pid> {
        let after = self.said.split(" pid ").skip(1);
        after
            .map(|text| Pid::from_raw(text.split_whitespace().next().unwrap().parse().unwrap()))
            .collect()
    }

    fn client(&self, rack: u16) -> Pool {
        Pool::open(ClientOptions::new(self.dir(), RackId(rack))).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), signal).unwrap();
    }

    /// Waits for its end; returns its exit status, its last output, and its error output.
    #[track_caller]
    fn end(&mut self) -> (ExitStatus, String, String) {
        let status = end_of(&mut self.process, LONG);
        let mut last = String::new();
        self.output.read_to_string(&mut last).unwrap();
        (status, last, text_of(&mut self.complaints))
    }

    /// Stops it as Ctrl-C does.
    #[track_caller]
    fn stop(&mut self) -> String {
        self.signal(Signal::SIGINT);
        let (status, last, complaints) = self.end();
        assert!(status.success(), "{status}\n{last}\n{complaints}");
        last
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // All of this fails for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
        for id in self.said.split(" pid ").skip(1) {
            let id = id.split_whitespace().next().and_then(|id| id.parse().ok());
            try_wait_until(TIMEOUT, || !id.is_some_and(|id| runs(Pid::from_raw(id))));
        }
        if self.said.contains("--dir /dev/shm/rackpool-") {
            let _ = std::fs::remove_dir_all(self.dir());
        }
    }
}

/// Returns true if the process exists and is not a zombie.
fn runs(id: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn name(id: Pid) -> String {
    std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default().trim().to_owned()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn stops_cleanly_on(signal: Signal) {
    let mut up = Up::ephemeral();
    let (dir, ids) = (up.dir(), up.ids());
    assert!(
        up.said.starts_with("rackpool is up: 2 racks of 64 MiB, pages of 2 MiB"),
        "{}",
        up.said
    );
    let names: Vec<String> = ids.iter().map(|id| name(*id)).collect();
    // The kernel keeps 15 characters of a name.
    assert_eq!(names, ["rackpool-metase", "rackpool-daemon", "rackpool-daemon"], "{}", up.said);
    let address = std::fs::read_to_string(dir.join("metadata.addr")).unwrap();
    let folders = ["rack-0", "rack-1"].map(|place| dir.join(place));
    let logs = ["metadata", "rack-0", "rack-1"].map(|name| up.log(name));
    for place in folders.iter().chain(&logs) {
        assert!(place.exists(), "{}", place.display());
        assert!(up.said.contains(place.to_str().unwrap()), "{}", up.said);
    }
    let ycsb = format!("rackpool ycsb --dir {} --workload a,b,c", dir.display());
    for hint in [address.trim(), &ycsb] {
        assert!(up.said.contains(hint), "'{hint}' is missing in\n{}", up.said);
    }
    up.signal(signal);
    let (status, last, complaints) = up.end();
    assert_eq!(status.code(), Some(0), "{last}\n{complaints}");
    assert!(last.contains("stopped; its memory is gone, as asked"), "{last}");
    assert_eq!(complaints, "");
    assert!(!dir.exists(), "{} is left", dir.display());
    assert_eq!(entries(up.temporary.path()), Vec::<PathBuf>::new());
    assert!(!ids.iter().any(|id| runs(*id)), "{ids:?}");
}

#[test]
fn an_ephemeral_pool_stops_cleanly_on_ctrl_c() {
    stops_cleanly_on(Signal::SIGINT);
}

#[test]
fn an_ephemeral_pool_stops_cleanly_when_asked_to_end() {
    stops_cleanly_on(Signal::SIGTERM);
}

#[test]
fn memory_and_names_survive_a_stop_and_a_second_up() {
    let folder = folder();
    let (dir, store) = (folder.path().join("pool"), folder.path().join("metadata.redb"));
    let [dir_text, store_text] = [&dir, &store].map(|path| path.to_str().unwrap());
    let arguments = ["--dir", dir_text, "--store", store_text, "--memory", "64M"];
    let mut up = Up::start(&arguments);
    let kept: [GlobalAddr; 2] = [0, 1].map(|rack| {
        let pool = up.client(rack);
        let addr = pool.alloc(100_000).unwrap();
        pool.write(addr, &contents::of(u64::from(rack), 100_000)).unwrap();
        let name = format!("kept-{rack}");
        assert_eq!(
            pool.set_root(&name, None, Some(addr)).unwrap(),
            RootUpdate { addr: Some(addr), changed: true }
        );
        addr
    });
    let last = up.stop();
    assert!(last.contains("the next `rackpool up` goes on with its memory"), "{last}");
    assert!(last.contains(&format!("rm -r {dir_text} {store_text}")), "{last}");
    let status = Ran::of(rackpool(folder.path(), &["status", "--dir", dir_text]));
    assert!(!status.status.success(), "{}", status.said);
    assert!(status.complained.contains("start"), "{}", status.complained);

    let mut up = Up::start(&arguments);
    for rack in [0, 1] {
        let pool = up.client(rack);
        for (home, addr) in (0..).zip(kept) {
            assert_eq!(pool.root(&format!("kept-{home}")).unwrap(), Some(addr));
            let mut found = vec![0; 100_000];
            // A rack learns of the other one with its next heartbeat.
            wait_for("the racks meet", TIMEOUT, || pool.read(addr, &mut found).ok());
            assert_eq!(contents::difference(home, &found), None, "{addr} from rack {rack}");
        }
        // Objects in use are not handed out again.
        let other = pool.alloc(100_000).unwrap();
        assert!(!kept.contains(&other));
        pool.free(other).unwrap();
    }
    up.stop();
}

#[test]
fn a_second_up_leaves_the_running_pool_alone() {
    let folder = folder();
    let [dir, store, other] = ["pool", "metadata.redb", "other.redb"]
        .map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let mut up = Up::start(&["--dir", &dir, "--store", &store, "--memory", "64M"]);
    let ids = up.ids();
    for store in [&store, &other] {
        let arguments = ["up", "--dir", &dir, "--store", store, "--memory", "64M"];
        let second = Ran::of(rackpool(folder.path(), &arguments));
        assert_eq!(second.status.code(), Some(1), "{}", second.said);
        assert!(second.complained.contains("in use"), "{}", second.complained);
        // The first pool is still found.
        let said = Ran::of(rackpool(folder.path(), &["status", "--dir", &dir])).good();
        for id in &ids[1..] {
            assert!(said.contains(&format!(" {id} ")), "{said}");
        }
        assert!(said.contains("rack 1: requests to other racks: "), "{said}");
    }
    up.stop();
}

#[test]
fn nothing_outlives_an_up_that_was_killed() {
    let mut up = Up::ephemeral();
    let ids = up.ids();
    assert!(ids.len() == 3 && ids.iter().all(|id| runs(*id)), "{}", up.said);
    up.signal(Signal::SIGKILL);
    assert!(!up.end().0.success());
    wait_until("its children end", Duration::from_secs(10), || !ids.iter().any(|id| runs(*id)));
}

/// The child of `up` for this rack, or for the metadata server.
fn child_of(up: &Up, rack: Option<u16>) -> Option<Pid> {
    let id = up.process.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    let is_it = |child: &&str| {
        let words = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        match rack {
            Some(rack) => {
                words.windows(2).any(|two| two == [b"--rack", rack.to_string().as_bytes()])
            }
            None => words.iter().any(|word| *word == b"--address-file"),
        }
    };
    let child = children.split_whitespace().find(is_it)?;
    Some(Pid::from_raw(child.parse().ok()?))
}

/// Kills a child of `up` and waits for its replacement; returns the replacement's process id.
#[track_caller]
fn killed_and_started_again(up: &Up, rack: Option<u16>) -> Pid {
    let killed = wait_for("it runs", TIMEOUT, || child_of(up, rack).filter(|id| runs(*id)));
    kill(killed, Signal::SIGKILL).unwrap();
    let other = || child_of(up, rack).filter(|id| *id != killed && runs(*id));
    wait_for("it is started again", TIMEOUT, other)
}

#[test]
fn up_starts_again_what_was_killed_and_says_so() {
    let mut up = Up::ephemeral();
    let pool = up.client(1);
    let addr = pool.alloc(1000).unwrap();
    contents::write(&pool, addr, 1000);
    let daemon = killed_and_started_again(&up, Some(1));
    let server = killed_and_started_again(&up, None);
    let read = || {
        let mut found = [0; 1000];
        pool.read(addr, &mut found).ok().and_then(|()| pool.alloc(100).ok())
    };
    wait_for("the rack serves again", TIMEOUT, read);
    contents::check(&pool, addr, 1000);
    let dir = up.dir().display().to_string();
    wait_until("the metadata server knows both racks again", TIMEOUT, || {
        let status = Ran::of(rackpool(up.temporary.path(), &["status", "--dir", &dir]));
        status.status.success() && status.said.contains(&format!(" {daemon} "))
    });
    drop(pool);
    let last = up.stop();
    assert!(last.contains("has ended (signal: 9 (SIGKILL))"), "{last}");
    assert!(
        last.contains(&format!("the daemon of rack 1 is started again, pid {daemon}")),
        "{last}"
    );
    assert!(
        last.contains(&format!("the metadata server is started again, pid {server}")),
        "{last}"
    );
    wait_until("all have ended", TIMEOUT, || !runs(daemon) && !runs(server));
}

#[test]
fn up_gives_up_what_dies_again_and_again_and_says_why() {
    let mut up = Up::ephemeral();
    let dir = up.dir();
    for _ in 0..4 {
        killed_and_started_again(&up, Some(0));
    }
    kill(child_of(&up, Some(0)).unwrap(), Signal::SIGKILL).unwrap();
    let (status, _, complaints) = up.end();
    assert_eq!(status.code(), Some(1), "{complaints}");
    assert!(
        complaints.contains("the daemon of rack 0 has ended 5 times soon after"),
        "{complaints}"
    );
    assert!(!dir.exists(), "{} is left", dir.display());
}

#[test]
fn an_up_that_fails_shows_what_this_run_said_and_nothing_older() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (dir, store, logs) = (at("pool"), at("metadata.redb"), folder.path().join("metadata.logs"));
    std::fs::create_dir(&logs).unwrap();
    std::fs::write(logs.join("metadata.log"), "ERROR of an earlier run\n").unwrap();
    std::fs::write(&store, "no store").unwrap();
    let up = Ran::of(rackpool(folder.path(), &["up", "--dir", &dir, "--store", &store]));
    assert_eq!(up.status.code(), Some(1), "{}", up.said);
    assert!(
        up.complained.contains("rackpool-metaserver ended (exit status: 1)"),
        "{}",
        up.complained
    );
    assert!(up.complained.contains(&store), "{}", up.complained);
    assert!(!up.complained.contains("an earlier run"), "{}", up.complained);
}

#[test]
fn leases_priority_and_processors_are_those_that_up_was_told() {
    let usable = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..).find(|cpu| usable.is_set(*cpu)).unwrap();
    let cpus = format!("--cpus={cpu},{cpu}");
    let options = ["--ephemeral", "--memory", "64M", "--lease-ms", "7000", "--nice", "5"];
    let mut up = Up::start(&[&options[..], &["--numa-node", "none", &cpus]].concat());
    let said =
        Ran::of(rackpool(up.temporary.path(), &["status", "--dir", up.dir().to_str().unwrap()]))
            .good();
    assert!(said.contains("7000 ms"), "{said}");
    for rack in [0, 1] {
        assert!(said.contains(&format!("rack {rack}: thread on CPU {cpu} ")), "{said}");
    }
    let log = std::fs::read_to_string(up.log("rack-1")).unwrap();
    assert!(log.contains("data plane at nice 5"), "{log}");
    up.stop();
}

#[test]
fn status_shows_the_racks_with_their_counters() {
    let mut up = Up::ephemeral();
    let dir = up.dir();
    let pool = up.client(1);
    let addr = pool.alloc(3 << 20).unwrap();
    pool.set_root("here", None, Some(addr)).unwrap();
    let arguments = ["status", "--dir", dir.to_str().unwrap()];
    // Metrics are collected now and then. 3 MiB take two pages of 32.
    let said = wait_for("the allocation is shown", TIMEOUT, || {
        let said = Ran::of(rackpool(up.temporary.path(), &arguments)).good();
        let free = said.lines().find(|line| line.starts_with("1 "))?.split_whitespace().nth(4);
        (free == Some("30")).then_some(said)
    });
    let ids = up.ids();
    let rows: Vec<Vec<&str>> = said
        .lines()
        .filter(|line| line.starts_with("0 ") || line.starts_with("1 "))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 2, "{said}");
    for (rack, row) in rows.iter().enumerate() {
        // Rack, state, process, frames, free frames, bytes in use with their unit, clients ...
        assert_eq!(row[0], rack.to_string());
        assert_eq!(row[1..4], ["up", &ids[rack + 1].to_string(), "32"], "{said}");
        assert_eq!(row.len(), 10, "{said}");
    }
    assert_eq!(rows[0][4..8], ["32", "0", "B", "0"], "{said}");
    assert_eq!(rows[1][4..8], ["30", "4", "MiB", "1"], "{said}");
    assert!(said.contains(&format!("here = {addr}")), "{said}");
    assert!(said.contains("pages of         2 MiB"), "{said}");
    assert!(said.contains("rack 1: emulated"), "{said}");
    pool.close();
    up.stop();
}

#[test]
fn commands_say_which_daemons_serve_one_rack() {
    let mut up = Up::start(&["--ephemeral", "--racks", "1", "--daemons", "2", "--memory", "64M"]);
    assert!(up.said.starts_with("rackpool is up: 1 rack of 64 MiB with 2 daemons each"));
    let (dir, pool) = (up.dir(), up.client(0));
    let dir = dir.to_str().unwrap();
    let addr = pool.alloc(64).unwrap();
    let [own, sibling] = [pool.rack().0, 1 - pool.rack().0];
    let say = |arguments: &[&str]| {
        Ran::of(rackpool(up.temporary.path(), &[arguments, &["--dir", dir]].concat())).good()
    };
    let status = wait_for("both are members", TIMEOUT, || {
        let said = say(&["status"]);
        said.contains("rack 1: one rack with 0: their memory is local").then_some(said)
    });
    assert!(status.contains("rack 0: one rack with 1: their memory is local"), "{status}");
    let explained = say(&["explain", &format!("{:#x}", addr.raw())]);
    let lives = format!("lives in  rack {own}, it never moved\n  local to  rack {sibling} as well");
    assert!(explained.contains(&lives), "{explained}");
    let doctor = say(&["doctor", "--quick"]);
    assert!(
        doctor.contains("one rack with 0\n") && doctor.contains("one rack with 1\n"),
        "{doctor}"
    );
    pool.close();
    up.stop();
}

#[test]
fn ycsb_runs_verified_on_a_running_pool() {
    let mut up = Up::ephemeral();
    let (dir, json) = (up.dir(), up.temporary.path().join("results.json"));
    let dir = dir.to_str().unwrap();
    let common = ["ycsb", "--dir", dir, "--records", "500", "--ops", "1000", "--quiet"];
    let first = ["--verify", "--workload", "a,b,c,d,e,f", "--json", json.to_str().unwrap()];
    let said = Ran::of(rackpool(up.temporary.path(), &[&common[..], &first].concat())).good();
    let heading = said.lines().find(|line| line.starts_with("workload ")).unwrap();
    for column in ["operation", "count", "ops/s", "mean", "p50", "p95", "p99", "p99.9", "max"] {
        assert!(heading.contains(column), "{said}");
    }
    for workload in ["A", "B", "C", "D", "E", "F"] {
        let row = said.lines().find(|line| line.starts_with(&format!("{workload} ")));
        assert!(row.is_some_and(|row| row.contains(" 1,000 ")), "{workload}: {said}");
    }
    assert!(said.contains("values verified, 0 wrong."), "{said}");
    assert!(said.contains("500 records of 64 B, 4 threads in 2 racks"), "{said}");
    assert!(std::fs::read_to_string(json).unwrap().contains("\"workloads\""));
    // The records can be used by a later run, also from one rack alone.
    let second = ["--verify", "--workload", "C", "--no-load", "--racks", "1", "--threads", "1"];
    let said = Ran::of(rackpool(up.temporary.path(), &[&common[..], &second].concat())).good();
    assert!(said.contains("1,000 values verified, 0 wrong."), "{said}");
    // A YCSB property file sets the other options; scans find the loaded records by their ordered
    // keys.
    let properties = ["-P", "workloade", "-p", "recordcount=500", "-p", "operationcount=200"];
    let third = [&properties[..], &["--verify", "--table", "third", "-p", "colour=blue"]].concat();
    let ran = Ran::of(rackpool(up.temporary.path(), &[&common[..], &third].concat()));
    assert!(ran.complained.contains("the property colour is not known"), "{}", ran.complained);
    let said = ran.good();
    assert!(said.lines().any(|line| line.starts_with("E ") && line.contains(" 200 ")), "{said}");
    // That run loaded fewer records: reading a record that was never written is an error.
    let fourth = ["--verify", "--workload", "C", "--no-load", "--table", "other"];
    let ran = Ran::of(rackpool(up.temporary.path(), &[&common[..], &fourth].concat()));
    assert!(!ran.status.success(), "{}", ran.said);
    assert!(ran.complained.contains("records were missing or wrong"), "{}", ran.complained);
    up.stop();
}

#[test]
fn scans_are_right_after_killed_inserts() {
    let mut up = Up::ephemeral();
    let dir = up.dir();
    let common = ["ycsb", "--dir", dir.to_str().unwrap(), "--workload", "e", "--quiet"];
    let pool = Arc::new(Pool::open(ClientOptions::new(&dir, RackId(1))).unwrap());
    let records = || {
        let addr = pool.root("ycsb").unwrap()?;
        let table = Table::open(Arc::clone(&pool), addr).unwrap();
        Some(table.handle().count().unwrap())
    };
    for more in [1, 3000] {
        // Records that an earlier run has loaded still exist.
        let enough = records().unwrap_or(0) + more;
        let load = [&common[..], &["--records", "200000", "--ops", "4"]].concat();
        let mut loading = rackpool(up.temporary.path(), &load).spawn().unwrap();
        wait_until("the load gets on", TIMEOUT, || records().is_some_and(|now| now >= enough));
        loading.kill().unwrap();
        loading.wait().unwrap();
        let again = ["--records", "400", "--ops", "400", "--verify"];
        let said = Ran::of(rackpool(up.temporary.path(), &[&common[..], &again].concat())).good();
        assert!(said.contains(", 0 wrong."), "{said}");
    }
    drop(pool);
    up.stop();
}

#[test]
fn a_pool_over_tcp_says_so_and_runs_ycsb_verified() {
    let mut up = Up::start(&["--ephemeral", "--racks", "2", "--memory", "64M", "--fabric", "tcp"]);
    assert!(up.said.contains("fabric over TCP on this host"), "{}", up.said);
    let dir = up.dir();
    let dir = dir.to_str().unwrap();
    let said = Ran::of(rackpool(up.temporary.path(), &["status", "--dir", dir])).good();
    assert!(said.contains("rack 1: tcp: 127.0.0.1:"), "{said}");
    let arguments = ["ycsb", "--dir", dir, "--records", "500", "--ops", "1000", "--quiet"];
    let verified = ["--verify", "--workload", "a,b,c,d,e,f"];
    let said = Ran::of(rackpool(up.temporary.path(), &[&arguments[..], &verified].concat())).good();
    assert!(said.contains("values verified, 0 wrong."), "{said}");
    up.stop();
}

/// Checks that the command fails as misused, with all texts of `fix`, and leaves nothing behind.
#[track_caller]
fn misused(arguments: &[&str], fix: &[&str]) {
    refused(2, arguments, fix);
}

/// Checks that the command fails with this exit code: 2 when it was called wrongly.
#[track_caller]
fn refused(code: i32, arguments: &[&str], fix: &[&str]) {
    let temporary = folder();
    let ran = Ran::of(rackpool(temporary.path(), arguments));
    let text = format!("rackpool {}: {}\n{}", arguments.join(" "), ran.status, ran.complained);
    assert_eq!(ran.status.code(), Some(code), "{text}");
    for fix in fix {
        assert!(ran.complained.contains(fix), "'{fix}' is missing in {text}");
    }
    assert_eq!(entries(temporary.path()), Vec::<PathBuf>::new(), "{text}");
    let own = format!("/dev/shm/rackpool-{}-", ran.id);
    let left: Vec<PathBuf> = entries(Path::new("/dev/shm"))
        .into_iter()
        .filter(|path| path.to_str().is_some_and(|path| path.starts_with(&own)))
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new(), "{text}");
}

#[test]
fn wrong_options_of_ycsb_are_refused_with_the_fix() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("rack-0")).unwrap();
    let dir = folder.path().to_str().unwrap();
    let ycsb = |option: &str, value: &str, fix: &[&str]| {
        misused(&["ycsb", "--dir", dir, option, value], fix);
    };
    let fails = |option: &str, value: &str, fix: &[&str]| {
        refused(1, &["ycsb", "--dir", dir, option, value], fix);
    };
    ycsb("--workload", "z", &["--workload", "possible values: a, b, c, d, e, f"]);
    ycsb("--records", "0", &["--records 0", "give a number from 1"]);
    ycsb("--ops", "0", &["--ops 0", "give a number from 1"]);
    ycsb("--threads", "0", &["--threads 0", "give a number from 1"]);
    fails("--racks", "7", &["rack-7", "`rackpool up`"]);
    ycsb("-p", "recordcount=many", &["recordcount=many", "give a number of records"]);
    ycsb("-P", "/no/such/file", &["/no/such/file", "workloada to workloadf"]);
    ycsb("--target", "redis", &["'redis' is no target", "resp://HOST:PORT"]);
    fails("--target", "unix:/no/such/socket", &["/no/such/socket can't be reached"]);
}

#[test]
fn wrong_options_of_up_are_refused_with_the_fix() {
    misused(&["up", "--ephemeral", "--racks", "0"], &["--racks 0", "a number from 1 to 256"]);
    misused(&["up", "--ephemeral", "--racks", "257"], &["--racks 257", "a number from 1 to 256"]);
    for daemons in ["0", "9"] {
        let refused = [&format!("--daemons {daemons}")[..], "a number from 1 to 8"];
        misused(&["up", "--ephemeral", "--daemons", daemons], &refused);
    }
    let many = ["up", "--ephemeral", "--racks", "129", "--daemons", "2"];
    misused(&many, &["--racks 129 with --daemons 2", "at most 256 daemons"]);
    let cpus = ["--cpus must name one processor for each rack", "names 1 for 2 racks"];
    misused(&["up", "--ephemeral", "--cpus", "0"], &cpus);
    let page_size = ["3000 B", "must be a power of two from 4096 to 1073741824"];
    misused(&["up", "--ephemeral", "--page-size", "3000"], &page_size);
    let memory = ["--memory 3 MiB", "whole number of pages of 2 MiB"];
    misused(&["up", "--ephemeral", "--memory", "3M"], &memory);
    misused(&["up", "--memory", "many"], &["--memory", "K, M, G or T"]);
    misused(&["up", "--ephemeral", "--dir", "x"], &["--ephemeral", "cannot be used with"]);
    misused(&["up", "--ephemeral", "--hot", "0.5"], &["threshold"]);
    misused(&["up", "--ephemeral", "--numa-node", "77"], &["--numa-node 77", "choose one"]);
    misused(&["up", "--ephemeral", "--frames-node", "77"], &["--frames-node 77", "choose one"]);
    misused(&["demo", "--records", "0"], &["--records 0", "give a number from 1"]);
}

#[test]
fn commands_that_need_a_pool_say_how_to_start_one() {
    let folder = folder();
    let nowhere = folder.path().join("nowhere");
    for dir in [folder.path(), &nowhere] {
        let dir = dir.to_str().unwrap();
        refused(1, &["status", "--dir", dir], &[dir, "`rackpool up`"]);
        refused(1, &["ycsb", "--dir", dir], &[dir, "`rackpool up`"]);
    }
}

#[test]
fn the_demo_writes_its_report() {
    let folder = folder();
    let report = folder.path().join("report");
    let size = ["--records", "1000", "--ops", "1000", "--swap-ops", "4000"];
    let words = ["demo", "--quiet", "--report", report.to_str().unwrap()];
    let arguments = [&words[..], &size].concat();
    let said = Ran::of(rackpool(folder.path(), &arguments)).good();
    assert!(said.contains("values verified, 0 wrong."), "{said}");
    for file in ["index.html", "results.json"].map(|name| report.join(name)) {
        assert!(said.contains(file.to_str().unwrap()), "{said}");
    }
    let time = said.lines().find_map(|line| line.strip_prefix("time    ")?.strip_suffix(" s"));
    assert!(time.is_some_and(|seconds| seconds.parse::<u32>().is_ok()), "{said}");
    let page = std::fs::read_to_string(report.join("index.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("</html>"), "{page}");
    let results = std::fs::read_to_string(report.join("results.json")).unwrap();
    for workload in ["A", "B", "C", "D", "E", "F"] {
        assert!(results.contains(&format!("\"name\": \"{workload}\"")), "{workload}: {results}");
    }
    assert!(page.contains("rackpool-kv in every rack"), "{page}");
    assert!(page.contains("Equal racks may differ several times"), "{page}");
    for size in ["1 KiB", "64 KiB", "1 MiB", "16 MiB"] {
        let is_told = |line: &str| line.trim_start().starts_with(&format!("{size}  put "));
        assert!(said.lines().any(is_told), "{size}: {said}");
        assert!(page.contains(&format!("{size}: put ")), "{size}: {page}");
    }
    assert!(report.join("objects.svg").exists() && results.contains("\"later_get_ns\""));
    let mount_left_out = said.contains("left out  the mount");
    assert!(page.contains("rackpool-fuse in every rack") != mount_left_out, "{said}");
    let has_redis = Command::new("redis-server").arg("--version").output().is_ok();
    let [compared, missing] =
        ["no server between them", "Redis is not installed"].map(|text| page.contains(text));
    assert_eq!([compared, missing], [has_redis, !has_redis], "{page}");
    let with = |end: &str| {
        let files = entries(&report).into_iter();
        files.filter(|file| file.extension().is_some_and(|e| e == end)).collect::<Vec<_>>()
    };
    let (png, svg) = (with("png"), with("svg"));
    assert!(!png.is_empty() && png.len() == svg.len(), "{png:?} {svg:?}");
    assert!(said.contains(&format!("plots   {} files", png.len() + svg.len())), "{said}");
    for file in png {
        assert!(std::fs::read(&file).unwrap().starts_with(b"\x89PNG"), "{}", file.display());
    }
    for file in svg {
        assert!(std::fs::read_to_string(&file).unwrap().contains("</svg>"), "{}", file.display());
    }
    // Neither its memory nor its store remains.
    assert_eq!(entries(folder.path()), [report]);
}

#[test]
fn a_pool_over_verbs_on_a_host_without_rdma_is_refused_with_the_fix() {
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if devices.is_ok_and(|mut devices| devices.next().is_some()) {
        return skipped("this host has an RDMA device");
    }
    // It depends on the host which is found missing first: libibverbs, or a device.
    let fix = ["rackpool-daemon ended", "libibverbs.so.1"];
    let device = ["rackpool-daemon ended", "no RDMA device can be used", "modprobe rdma_rxe"];
    let libraries = Command::new("ldconfig").arg("-p").output();
    let has_library =
        libraries.is_ok_and(|all| String::from_utf8_lossy(&all.stdout).contains("libibverbs.so.1"));
    let fix: &[&str] = if has_library { &device } else { &fix };
    refused(1, &["up", "--ephemeral", "--fabric", "verbs"], fix);
}

#[test]
fn the_cache_of_cards_is_simulated_and_traces_go_through_it() {
    let folder = folder();
    let run = |arguments: &[&str]| {
        Ran::of(rackpool(folder.path(), &[&["dca", "sim"][..], arguments].concat())).good()
    };
    let said = run(&["--descriptors", "4096", "--packet", "1024", "--ways", "2,6", "--csv"]);
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split(',').collect()).collect();
    let at = lines[0].iter().position(|name| *name == "write_hit_percent").unwrap();
    let hits = [1, 2].map(|line| lines[line][at].parse::<f64>().unwrap());
    // Published: 63.4 and 99.9 %.
    assert!((55.0..70.0).contains(&hits[0]) && hits[1] > 98.0, "{said}");
    assert!(run(&["--cores", "2", "--beside", "memory"]).contains("p99 us"));

    let trace = folder.path().join("trace");
    let trace = trace.to_str().unwrap();
    std::fs::write(trace, "0,device-write,0,0x1000,128\n5,core-read,0,0x1000,64\n").unwrap();
    let said = run(&["--trace", trace, "--csv"]);
    assert!(said.contains("ways,write_hit_percent") && said.contains("\n2,0.0,-,"), "{said}");
    std::fs::write(trace, "0,device-write,0,0x1000,128\n5,core-read,0,here,64\n").unwrap();
    let sim = |more: &[&str]| Ran::of(rackpool(folder.path(), &[&["dca", "sim"], more].concat()));
    let broken = sim(&["--trace", trace]);
    assert!(broken.complained.contains("line 2: address \"here\""), "{}", broken.complained);
    std::fs::remove_file(trace).unwrap();
    misused(&["dca", "sim", "--ways", "12"], &["--ways 12", "give a number from 1 to 11"]);
    misused(&["dca", "sim", "--llc", "100"], &["llc_bytes", "give a multiple of 704 bytes"]);
    misused(&["dca", "sim", "--program-ways", "x"], &["a bit for each way", "0x1ff"]);
}

#[test]
fn a_numa_study_on_the_model_says_model_everywhere_and_draws_its_figure() {
    let folder = folder();
    let (csv, page) = (folder.path().join("values.csv"), folder.path().join("page"));
    let run = |arguments: &[&str]| {
        let quick = ["numa", "study", "--model", "--pairs", "2", "--operations", "50"];
        Ran::of(rackpool(folder.path(), &[&quick[..], arguments].concat())).good()
    };
    let file = csv.to_str().unwrap();
    let said = run(&["--csv", file, "--bytes", "8,64", "--workers", "0,8", "--loop", "open"]);
    assert!(said.contains("MODEL"), "{said}");
    let values = std::fs::read_to_string(&csv).unwrap();
    let rows: Vec<&str> = values.lines().skip(1).collect();
    // Reads and writes of two sizes with and without workers.
    assert_eq!(rows.len(), 2 * 2 * 2, "{values}");
    assert!(rows.iter().all(|row| row.starts_with("model,emulated,")), "{values}");
    run(&["--workload", "kv", "--queue-pairs", "2"]);
    run(&["--figure", "3b", "--queue-pairs", "1,2", "--svg", page.to_str().unwrap()]);
    let html = std::fs::read_to_string(page.join("index.html")).unwrap();
    assert!(html.contains("(model)") && html.contains("queue pairs"));
    misused(&["numa", "study", "--model", "--fabric", "tcp"], &["--model", "emulated"]);
    misused(&["numa", "study", "--model", "--seconds", "0"], &["length above 0"]);
    std::fs::remove_dir_all(page).unwrap();
    std::fs::remove_file(csv).unwrap();
}

/// A machine made of files: a Skylake server with a socket of 11 ways.
fn skylake() -> TempDir {
    let machine = folder();
    let file = |path: &str, text: &str| {
        let path = machine.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    file("proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n");
    let cpu = "sys/devices/system/cpu/cpu0";
    file(&format!("{cpu}/topology/physical_package_id"), "0\n");
    for (name, text) in
        [("type", "Unified"), ("level", "3"), ("size", "25344K"), ("ways_of_associativity", "11")]
    {
        file(&format!("{cpu}/cache/index3/{name}"), text);
    }
    file("run/.keep", "");
    file("dev/cpu/0/msr", "");
    let registers = File::options().write(true).open(machine.path().join("dev/cpu/0/msr")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&registers, &0x600_u64.to_le_bytes(), 0xC8B).unwrap();
    machine
}

#[test]
fn ways_for_devices_are_shown_set_for_a_command_and_restored() {
    let (machine, folder) = (skylake(), folder());
    let root = machine.path().to_str().unwrap();
    let dca = |arguments: &[&str]| {
        let (command, rest) = arguments.split_first().unwrap();
        let all = [&["dca", command, "--root", root][..], rest].concat();
        Ran::of(rackpool(folder.path(), &all))
    };
    let said = dca(&["status"]).good();
    assert!(said.contains("socket 0: 2 ways (0x600)"), "{said}");
    let shown = dca(&["set", "--ways", "4"]);
    assert_eq!(shown.status.code(), Some(2));
    assert!(shown.said.contains("0x600 -> 0x780") && shown.complained.contains("--yes"));
    let status = "exec \"$0\" dca status --root \"$1\"";
    let rackpool = program("rackpool");
    let rackpool = rackpool.to_str().unwrap();
    let said =
        dca(&["set", "--ways", "4", "--yes", "--", "sh", "-c", status, rackpool, root]).good();
    assert!(said.contains("socket 0: 4 ways (0x780)") && said.contains("not undone"), "{said}");
    assert!(dca(&["status"]).good().contains("(0x600)"));
    let failed = dca(&["set", "--ways", "4", "--yes", "--", "false"]);
    assert!(!failed.status.success() && failed.said.contains("restored"), "{}", failed.complained);
    let ran = dca(&["sensitivity", "--ways", "6", "--pairs", "2", "--yes", "--", "sleep", "0.1"]);
    assert!(ran.good().contains("sensitivity is"));
    assert!(dca(&["status", "--json"]).good().contains("\"mask\": 1536"));
    let refused = dca(&["set", "--ways", "1"]).complained;
    assert!(refused.contains("from 2 to 11"), "{refused}");
}

#[test]
fn a_killed_set_is_undone_by_restore() {
    let (machine, folder) = (skylake(), folder());
    let root = machine.path().to_str().unwrap();
    let dca = |arguments: &[&str]| rackpool(folder.path(), &[&["dca"], arguments].concat());
    let mut set = dca(&["set", "--root", root, "--ways", "5", "--yes"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let shows = |mask: &str| {
        let said = Ran::of(dca(&["status", "--root", root])).good();
        said.contains(mask)
    };
    wait_until("the ways are set", TIMEOUT, || shows("(0x7c0)"));
    set.kill().unwrap();
    set.wait().unwrap();
    assert!(shows("(0x7c0)") && shows("rackpool dca restore"));
    let refused = Ran::of(dca(&["set", "--root", root, "--ways", "4", "--yes"]));
    assert!(refused.complained.contains("rackpool dca restore"), "{}", refused.complained);
    assert!(Ran::of(dca(&["restore", "--root", root])).good().contains("restored"));
    assert!(shows("(0x600)") && !shows("restore"));
    assert!(Ran::of(dca(&["restore", "--root", root])).good().contains("nothing to restore"));
}
