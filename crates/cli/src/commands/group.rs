//! `rackpool group`: sends lines to programs in other racks, or receives them.

use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use rackpool_client::Pool;
use rackpool_model::{ByteSize, RackId};
use rackpool_objects::{GroupMember, GroupOptions, GroupOutcome, GroupRoot, Received};
use rackpool_output::numbers::counted;
use rackpool_output::{outln, print_bytes};

use super::roots::{open_pool, open_pool_in};
use crate::pool_arguments::WhichPool;

/// The longest wait for a message; then the command looks again.
const LOOK: Duration = Duration::from_secs(3600);

/// Options of the command.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Send each line of standard input to the members of a new group, one in each of some racks.
    Send(SendOptions),
    /// Become the member of a rack in a group, and print the lines that its root sends.
    Receive(ReceiveOptions),
}

#[derive(Debug, Args)]
struct SendOptions {
    /// Name of the group: 1 to 200 bytes.
    name: String,
    /// Racks of the members, such as 1,2,5.
    #[arg(long, value_name = "RACKS", value_delimiter = ',', required = true)]
    to: Vec<u16>,
    /// Memory that the root and each member take: a power of two from 4K on, at most a page. Lines
    /// longer than a quarter of it are objects.
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    ring: ByteSize,
    /// Seconds after which a program that does not go on is taken for lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    grace: u64,
    /// Seconds until which the group must be complete.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    joining: u64,
    #[command(flatten)]
    which: WhichRack,
}

#[derive(Debug, Args)]
struct ReceiveOptions {
    /// Name of the group.
    name: String,
    /// Seconds until which the group must be complete.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    joining: u64,
    #[command(flatten)]
    which: WhichRack,
}

#[derive(Debug, Args)]
struct WhichRack {
    /// Rack of this host that the program works in [default: the first one].
    #[arg(long, value_name = "RACK")]
    rack: Option<u16>,
    #[command(flatten)]
    pool: WhichPool,
}

impl WhichRack {
    fn open(&self) -> anyhow::Result<Arc<Pool>> {
        let status = self.pool.server()?.status()?;
        match self.rack {
            Some(rack) => open_pool_in(&status, RackId(rack)),
            None => open_pool(&status),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// If the group can't be made or joined, the pool fails, or not all members get all lines.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.action {
        Action::Send(options) => send(options),
        Action::Receive(options) => receive(options),
    }
}

fn send(options: &SendOptions) -> anyhow::Result<()> {
    let SendOptions { name, to, ring, grace, joining, which } = options;
    let racks: Vec<_> = to.iter().copied().map(RackId).collect();
    let options = GroupOptions {
        ring_bytes: ring.0,
        joining: Duration::from_secs(*joining),
        grace: Duration::from_secs(*grace),
    };
    let mut root = GroupRoot::create(which.open()?, name, &racks, &options)?;
    let (mut input, mut line) = (std::io::stdin().lock(), Vec::new());
    while input.read_until(b'\n', &mut line).context("can't read standard input")? > 0 {
        root.send(line.strip_suffix(b"\n").unwrap_or(&line))?;
        line.clear();
    }
    let report = root.close()?;
    let lines = |count| counted(count, "line", "lines");
    outln!("group '{name}', {} sent", lines(report.messages))?;
    for (rack, result) in &report.racks {
        match result {
            Ok(()) => outln!("  {rack:<8}  has taken all")?,
            Err(taken) => outln!("  {rack:<8}  is lost; it has taken {}", lines(*taken))?,
        }
    }
    let lost = report.racks.values().filter(|result| result.is_err()).count() as u64;
    if lost > 0 {
        bail!("{} did not take all lines", counted(lost, "rack", "racks"));
    }
    Ok(())
}

fn receive(options: &ReceiveOptions) -> anyhow::Result<()> {
    let ReceiveOptions { name, joining, which } = options;
    let mut member = GroupMember::join(which.open()?, name, Duration::from_secs(*joining))?;
    loop {
        match member.receive(LOOK)? {
            Received::Message(message) => print_bytes(&[&message[..], b"\n"].concat())?,
            Received::TimedOut => {}
            Received::Ended(GroupOutcome::Closed) => return Ok(()),
            Received::Ended(GroupOutcome::RootLost(racks)) => {
                let racks: Vec<_> = racks.iter().map(ToString::to_string).collect();
                bail!("the root is lost; the same lines are in {}", racks.join(", "));
            }
            Received::Ended(GroupOutcome::Lost) => {
                bail!("this member is lost to the group: it did not go on for the grace time");
            }
        }
    }
}
