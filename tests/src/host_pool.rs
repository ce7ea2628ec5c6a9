//! A pool whose racks are on hosts of their own, joined over TCP, with credentials.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rackpool_testing::wait::{TIMEOUT, wait_until};

use crate::client::{TestClient, program};
use crate::hosts::{Host, Hosts};

/// A server with a log; killed when dropped.
#[derive(Debug)]
pub struct LoggedServer {
    process: Child,
    log: PathBuf,
}

impl LoggedServer {
    fn start(command: &mut Command, log: PathBuf) -> Self {
        let output = File::create(&log).expect("a log");
        // The server ends with the test process, also if that is killed.
        let process = command.arg("--stop-with-stdin").stdin(Stdio::piped()).stderr(output);
        Self { process: process.spawn().expect("a program that starts"), log }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("the log")
    }

    /// Waits until `ready` says so of the log.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut(&str) -> bool) {
        wait_until(what, TIMEOUT, || {
            let said = self.said();
            let ended = self.process.try_wait().expect("a child");
            assert!(ended.is_none(), "it ended: {said}");
            ready(&said)
        });
    }

    /// Kills the server as `kill -9` does, if it runs.
    pub fn kill(&mut self) {
        self.process.kill().expect("a child");
        self.process.wait().expect("a process that ends");
    }
}

impl Drop for LoggedServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.log.display(), self.said());
        }
    }
}

/// A pool on hosts: rack N on host N, and the metadata server on the first.
#[derive(Debug)]
pub struct HostPool {
    /// The daemons, by rack.
    pub racks: Vec<LoggedServer>,
    metadata: LoggedServer,
    folder: tempfile::TempDir,
    /// The hosts, by rack.
    pub hosts: Hosts,
}

impl HostPool {
    /// Starts all servers, with these lines in the daemons' part of the configuration.
    #[must_use]
    pub fn start(hosts: Hosts, daemon: &str) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let racks = hosts.iter().count();
        let made = Command::new(program("rackpool"))
            .args(["credentials", "init", "--racks", &racks.to_string()])
            .arg(at("credentials"))
            .output()
            .expect("a program that starts");
        assert!(made.status.success(), "{made:?}");
        let metadata_address = format!("{}:7400", hosts[0].address);
        let text = format!(
            "[metaserver]\nlisten = '{metadata_address}'\nstore = '{store}'\n\
             credentials = '{credentials}/metadata'\n\
             [daemon]\n{daemon}\nmetadata = '{metadata_address}'\nfabric = 'tcp'\n\
             [rackpool]\nmetadata = '{metadata_address}'\ncredentials = '{credentials}/operator'\n",
            store = at("store").display(),
            credentials = at("credentials").display(),
        );
        std::fs::write(at("pool.toml"), text).expect("a configuration file");
        let metadata = start_metadata(&hosts[0], folder.path(), &[]);
        let racks = (0..racks).map(|rack| start_rack(&hosts[rack], folder.path(), rack)).collect();
        let mut started = Self { racks, metadata, folder, hosts };
        for rack in &mut started.racks {
            rack.wait_until("a rack serves", |said| said.contains(" serves "));
        }
        started
    }

    /// The folder of the pool on the host of a rack.
    #[must_use]
    pub fn dir(&self, rack: usize) -> PathBuf {
        rack_dir(self.folder.path(), rack)
    }

    /// A client of the rack, on its host.
    #[must_use]
    pub fn client(&self, rack: usize) -> TestClient {
        let command = self.hosts[rack].command(program("rackpool-test-client"));
        let number = u16::try_from(rack).expect("a rack");
        TestClient::start_as(command, &self.dir(rack), number, &["serve"])
    }

    /// A command that runs `rackpool` as a client of the rack, on its host.
    #[must_use]
    pub fn rackpool_in(&self, rack: usize, arguments: &[&str]) -> Command {
        let mut command = self.hosts[rack].command(program("rackpool"));
        command.arg("--config").arg(self.folder.path().join("pool.toml"));
        command.args(arguments).args(["--rack", &rack.to_string(), "--dir"]).arg(self.dir(rack));
        command
    }

    /// Runs `rackpool` as an operator on the first host; returns whether it succeeded, and its
    /// output.
    #[must_use]
    pub fn rackpool(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = self.hosts[0].command(program("rackpool"));
        command.arg("--config").arg(self.folder.path().join("pool.toml")).args(arguments);
        let output = command.output().expect("a program that starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).expect("a text"))
    }

    /// The number of racks that are up.
    #[must_use]
    pub fn racks_up(&self) -> usize {
        let (_, said) = self.rackpool(&["status"]);
        said.lines().filter(|line| line.split_whitespace().nth(1) == Some("up")).count()
    }

    /// Kills the daemon of a rack, if it runs, and starts it again.
    pub fn restart_rack(&mut self, rack: usize) {
        self.racks[rack].kill();
        self.racks[rack] = start_rack(&self.hosts[rack], self.folder.path(), rack);
    }

    /// Kills the metadata server and starts it again with these arguments too.
    pub fn restart_metadata(&mut self, arguments: &[&str]) {
        self.metadata.kill();
        self.metadata = start_metadata(&self.hosts[0], self.folder.path(), arguments);
    }
}

fn rack_dir(folder: &Path, rack: usize) -> PathBuf {
    folder.join(format!("host-{rack}"))
}

fn start_metadata(host: &Host, folder: &Path, arguments: &[&str]) -> LoggedServer {
    let mut command = host.command(program("rackpool-metaserver"));
    command.arg("--config").arg(folder.join("pool.toml")).args(arguments);
    let mut server = LoggedServer::start(&mut command, folder.join("metadata.log"));
    server.wait_until("the metadata server listens", |said| said.contains("listening on"));
    server
}

fn start_rack(host: &Host, folder: &Path, rack: usize) -> LoggedServer {
    let mut command = host.command(program("rackpool-daemon"));
    command.arg("--config").arg(folder.join("pool.toml")).args(["--rack", &rack.to_string()]);
    command.arg("--dir").arg(rack_dir(folder, rack));
    command.args(["--fabric-listen", &format!("{}:7500", host.address)]);
    command.arg("--credentials").arg(folder.join(format!("credentials/rack-{rack}")));
    command.env("RUST_LOG", "rackpool_daemon=debug");
    LoggedServer::start(&mut command, folder.join(format!("rack-{rack}.log")))
}
