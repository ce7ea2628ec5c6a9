//! Network namespaces that stand for hosts, joined by a switch that is another one. They have no
//! names and end with the processes in them, so nothing remains however a test ends.

use std::io::Read;
use std::net::Ipv4Addr;
use std::ops::Index;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rackpool_testing::skipped;

/// The programs that make namespaces, and the packages that contain them.
const NEEDED: [(&str, &str); 4] =
    [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")];

/// A host: a process that only keeps its network namespace alive.
#[derive(Debug)]
pub struct Host {
    keeper: Child,
    /// Its address in the network of the hosts.
    pub address: Ipv4Addr,
}

/// Hosts, each with a virtual cable to one switch.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    switch: Host,
}

impl Hosts {
    /// Creates `count` hosts. Without the rights or programs to do so, reports the test as skipped
    /// and returns `None`.
    #[must_use]
    pub fn join(count: u8) -> Option<Self> {
        match Self::try_join(count) {
            Ok(hosts) => Some(hosts),
            Err(reason) => {
                skipped(&reason);
                None
            }
        }
    }

    /// The same, with the reason as an error.
    ///
    /// # Errors
    /// A sentence that says what is missing on this machine.
    pub fn try_join(count: u8) -> Result<Self, String> {
        possible()?;
        let address = |last| Ipv4Addr::new(192, 0, 2, last);
        let switch = Host::start(address(254));
        switch.ip(&["link", "add", "switch", "type", "bridge"]);
        switch.ip(&["address", "add", &format!("{}/24", switch.address), "dev", "switch"]);
        switch.ip(&["link", "set", "switch", "up"]);
        let hosts: Vec<_> = (1..=count).map(|last| Host::start(address(last))).collect();
        for (index, host) in hosts.iter().enumerate() {
            let (port, keeper) = (port(index), host.keeper.id().to_string());
            switch.ip(&["link", "add", &port, "type", "veth", "peer", "wire", "netns", &keeper]);
            switch.ip(&["link", "set", &port, "master", "switch", "up"]);
            host.ip(&["address", "add", &format!("{}/24", host.address), "dev", "wire"]);
            host.ip(&["link", "set", "lo", "up"]);
            host.plug_in();
        }
        Ok(Self { hosts, switch })
    }

    /// Limits the cable of a host to a rate in Mbit/s, in each direction.
    pub fn limit(&self, host: usize, megabits: u32) {
        let rate = format!("{megabits}mbit");
        let limit = |at: &Host, device: &str| {
            let arguments = ["qdisc", "replace", "dev", device, "root", "tbf", "rate", &rate];
            // A burst of two of the largest segments that the kernel hands to an interface.
            let queue = ["burst", "128k", "latency", "50ms"];
            run(at.command("tc").args(arguments).args(queue));
        };
        limit(&self.hosts[host], "wire");
        limit(&self.switch, &port(host));
    }

    /// All hosts in order.
    pub fn iter(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter()
    }

    /// The switch, which reaches all hosts without a limit of its own.
    #[must_use]
    pub const fn switch(&self) -> &Host {
        &self.switch
    }
}

impl Index<usize> for Hosts {
    type Output = Host;

    fn index(&self, index: usize) -> &Host {
        &self.hosts[index]
    }
}

/// The switch's end of a host's cable.
fn port(host: usize) -> String {
    format!("port{host}")
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
        command.arg(format!("--net={}", self.namespace())).arg(program.as_ref());
        command
    }

    /// The file that stands for the host's network namespace.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("/proc/{}/ns/net", self.keeper.id())
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
