//! Network namespaces that stand for hosts, joined by a pair of virtual interfaces. They have no
//! names and end with the processes in them, so nothing remains however a test ends.

use std::io::Read;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rackpool_testing::skipped;

/// The programs that make namespaces, and the packages that contain them.
const NEEDED: [(&str, &str); 3] =
    [("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")];

/// A host: a process that only keeps its network namespace alive.
#[derive(Debug)]
pub struct Host {
    keeper: Child,
    /// Its address in the network of the hosts.
    pub address: Ipv4Addr,
}

/// Two hosts, joined by one virtual cable.
#[derive(Debug)]
pub struct Hosts(pub [Host; 2]);

impl Hosts {
    /// Creates the hosts. Without the rights or programs to do so, reports the test as skipped and
    /// returns `None`.
    #[must_use]
    pub fn join() -> Option<Self> {
        if let Err(reason) = possible() {
            skipped(&reason);
            return None;
        }
        let hosts = Self([1, 2].map(|last| Host::start(Ipv4Addr::new(192, 0, 2, last))));
        let [one, two] = hosts.0.each_ref().map(|host| host.keeper.id().to_string());
        run(Command::new("ip")
            .args(["link", "add", "wire", "netns", &one, "type", "veth"])
            .args(["peer", "name", "wire", "netns", &two]));
        for host in &hosts.0 {
            host.ip(&["address", "add", &format!("{}/24", host.address), "dev", "wire"]);
            host.ip(&["link", "set", "lo", "up"]);
            host.plug_in();
        }
        Some(hosts)
    }
}

impl Host {
    fn start(address: Ipv4Addr) -> Self {
        // The shell prints a word once it runs in its namespace; `cat` ends with its input.
        let keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut keeper = keeper.expect("unshare, which was there before");
        let said = keeper.stdout.as_mut().map(|out| out.read_exact(&mut [0; 6]));
        said.expect("a piped output").expect("a namespace, which could be made before");
        Self { keeper, address }
    }

    /// A command that runs `program` on this host. The program has the process id of the started
    /// process.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.id())).arg(program.as_ref());
        command
    }

    /// Takes the host's interface down.
    pub fn unplug(&self) {
        self.ip(&["link", "set", "wire", "down"]);
    }

    /// Takes the host's interface up again.
    pub fn plug_in(&self) {
        self.ip(&["link", "set", "wire", "up"]);
    }

    fn ip(&self, arguments: &[&str]) {
        run(self.command("ip").args(arguments));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Why namespaces can't be created on this machine, as an error.
fn possible() -> Result<(), String> {
    for (program, package) in NEEDED {
        let found = Command::new(program).arg("--version").output();
        let found = found.or_else(|_| Command::new(program).arg("-V").output());
        found.map_err(|_| format!("{program} is missing: deploy/prepare.sh installs {package}"))?;
    }
    let made = Command::new("unshare").args(["--net", "true"]).output();
    match made {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        _ => Err("network namespaces can't be made: run this as root".into()),
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("a program that was there before");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
