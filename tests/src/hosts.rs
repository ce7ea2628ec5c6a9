//! Hosts of their own, as far as a network can tell: network namespaces joined by a pair of virtual
//! interfaces. They have no names, and end with the processes in them, so nothing is left behind
//! however a test ends.

use std::io::Read;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::skip::skipped;

/// The programs that make namespaces, and the packages that have them.
const NEEDED: [(&str, &str); 3] =
    [("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")];

/// A host: a process that does nothing but keep its namespace.
#[derive(Debug)]
pub struct Host {
    keeper: Child,
    /// Its address in the network of the hosts.
    pub address: Ipv4Addr,
}

/// Two hosts on one wire.
#[derive(Debug)]
pub struct Hosts(pub [Host; 2]);

impl Hosts {
    /// Makes them; without the rights or programs for it, says so and gives `None`.
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
        // It says a word when it is in its namespace, and ends with its input.
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

    /// A command that runs a program on this host, with the process id it is started with.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.keeper.id())).arg(program.as_ref());
        command
    }

    /// Cuts its wire.
    pub fn unplug(&self) {
        self.ip(&["link", "set", "wire", "down"]);
    }

    /// Mends its wire.
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

/// Why there can be no hosts here.
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
