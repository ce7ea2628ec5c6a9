//! Requests to rack daemons, over their Unix sockets.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::ifaddrs::getifaddrs;
use rackpool_model::{GlobalAddr, PageId, RootUpdate};
use rackpool_output::chain;
use rackpool_shm::folder;
use rackpool_wire::control::{ControlReply, ControlRequest, RackStatus};
use rackpool_wire::history::{PageHeat, PageHistory};
use rackpool_wire::metadata::{Member, PoolStatus, Tagged};
use rackpool_wire::{FrameReader, encode};

use super::PoolFolder;
use crate::cluster::metadata_address;
use crate::metadata::{MetadataServer, TIMEOUT};

/// Which pool, and how its metadata server is reached.
#[derive(Clone, Debug, clap::Args)]
pub struct WhichPool {
    /// The pool.
    #[command(flatten)]
    pub pool: PoolFolder,
    /// Address of the metadata server [default: as the pool's folder says].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metadata: Option<String>,
    /// The folder of an operator's credentials, as `rackpool credentials` makes it.
    #[arg(long, value_name = "DIR")]
    pub credentials: Option<PathBuf>,
}

impl WhichPool {
    /// Returns a connection to the pool's metadata server.
    ///
    /// # Errors
    /// If no pool runs there, or the credentials can't be used.
    pub fn server(&self) -> anyhow::Result<MetadataServer> {
        let address = match &self.metadata {
            Some(address) => address.clone(),
            None => metadata_address(&self.pool.dir)?,
        };
        MetadataServer::new(address, self.credentials.as_deref())
    }
}

/// Whether a rack's daemon can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberReach {
    /// The daemon runs on this host.
    Here,
    /// The daemon runs on another host, where it serves its socket.
    Elsewhere,
    /// The rack's lease has expired.
    Down,
    /// The daemon has given its lease back: it ended on purpose.
    Left,
}

/// Returns whether the rack's daemon can be asked from the host with the addresses `own`.
pub(super) fn reach(pool: &PoolStatus, member: &Member, own: &[IpAddr]) -> MemberReach {
    let is_here =
        is_on_this_host(&member.fabric_address, own) && Path::new(&member.control_path).exists();
    match (member.alive, is_here) {
        (false, _) if pool.left.contains(&member.rack) => MemberReach::Left,
        (false, _) => MemberReach::Down,
        (true, true) => MemberReach::Here,
        (true, false) => MemberReach::Elsewhere,
    }
}

/// The state of a rack, as printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RackState {
    /// The rack has a lease.
    Up,
    /// The rack has a lease, but its daemon does not answer.
    Silent,
    /// The rack's lease has expired.
    Down,
    /// The daemon has ended on purpose.
    Left,
}

impl RackState {
    /// The state in one word.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Silent => "silent",
            Self::Down => "down",
            Self::Left => "left",
        }
    }
}

/// The state of one rack at one point in time.
#[derive(Clone, Debug)]
pub(super) struct RackLook {
    pub(super) member: Member,
    pub(super) state: RackState,
    /// The daemon's report, or why there is none.
    pub(super) status: Result<RackStatus, String>,
    /// The rack's hottest pages.
    pub(super) pages: Vec<PageHeat>,
}

/// Asks all racks of the pool, for at most `pages` of their hottest pages each.
pub(super) fn look_at_racks(pool: &PoolStatus, pages: u16) -> Vec<RackLook> {
    let own = own_addresses();
    let look = |member: &Member| {
        let (state, status) = match reach(pool, member, &own) {
            MemberReach::Here => match rack_status(&member.control_path) {
                Ok(status) => (RackState::Up, Ok(status)),
                Err(error) => (RackState::Silent, Err(chain(error.as_ref()))),
            },
            MemberReach::Elsewhere => {
                (RackState::Up, Err(format!("on another host, {}", member.fabric_address)))
            }
            MemberReach::Down => (RackState::Down, Err("its lease has run out".into())),
            MemberReach::Left => (RackState::Left, Err("its daemon has ended on purpose".into())),
        };
        let pages = match (&status, pages) {
            (Ok(_), 1..) => top_pages(&member.control_path, pages).unwrap_or_default(),
            _ => Vec::new(),
        };
        RackLook { member: member.clone(), state, status, pages }
    };
    pool.members.iter().map(look).collect()
}

/// The addresses of this host.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    let interfaces = getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
        v4.or(address.as_sockaddr_in6().map(|found| IpAddr::V6(found.ip())))
    });
    addresses.collect()
}

/// Returns whether a rack with this fabric address is on the host with the addresses `own`. If it
/// is not, a socket at its daemon's path was left there by another daemon.
fn is_on_this_host(fabric_address: &str, own: &[IpAddr]) -> bool {
    let of_network = fabric_address.split_once(':').and_then(|(_, rest)| rest.parse().ok());
    of_network.is_none_or(|address: SocketAddr| {
        let ip = address.ip().to_canonical();
        ip.is_loopback() || own.contains(&ip)
    })
}

/// Asks a daemon for the status of its rack.
pub fn rack_status(control_path: &str) -> anyhow::Result<RackStatus> {
    match ask(control_path, ControlRequest::RackStatus)? {
        ControlReply::RackStatus(status) => Ok(*status),
        other => refused(&other),
    }
}

/// Asks a daemon for the hottest pages of its rack.
pub fn top_pages(control_path: &str, limit: u16) -> anyhow::Result<Vec<PageHeat>> {
    match ask(control_path, ControlRequest::TopPages { limit })? {
        ControlReply::TopPages(pages) => Ok(pages),
        other => refused(&other),
    }
}

/// Asks a daemon for its records of a page.
pub fn page_history(control_path: &str, page: PageId) -> anyhow::Result<PageHistory> {
    match ask(control_path, ControlRequest::PageHistory { page })? {
        ControlReply::PageHistory(history) => Ok(history),
        other => refused(&other),
    }
}

/// Asks a daemon to set a root to `new` if it is `expected`. Returns the root's value afterwards,
/// and whether this call set it.
pub(super) fn put_root(
    control_path: &str,
    name: &str,
    expected: Option<GlobalAddr>,
    new: Option<GlobalAddr>,
) -> anyhow::Result<RootUpdate> {
    match ask(control_path, ControlRequest::PutRoot { name: name.into(), expected, new })? {
        ControlReply::Root { addr, changed } => Ok(RootUpdate { addr, changed }),
        other => refused(&other),
    }
}

fn refused<T>(reply: &ControlReply) -> anyhow::Result<T> {
    match reply {
        ControlReply::Refused(refusal) => bail!(refusal.clone()),
        other => bail!("the daemon answered {other:?}"),
    }
}

fn ask(control_path: &str, message: ControlRequest) -> anyhow::Result<ControlReply> {
    let mut stream = UnixStream::connect(control_path).with_context(|| {
        format!("no daemon at {control_path}: start it, unless the rack has moved to another host")
    })?;
    folder::require_private(Path::new(control_path).parent().unwrap_or(Path::new("/")))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(&encode(&Tagged { tag: 1, message })?)?;
    let reply: Tagged<ControlReply> = receive(&mut stream)?;
    Ok(reply.message)
}

fn receive<M: bincode::Decode<()>>(stream: &mut impl Read) -> anyhow::Result<M> {
    let mut frames = FrameReader::new();
    loop {
        if let Some(message) = frames.next()? {
            return Ok(message);
        }
        let mut bytes = [0; 16 << 10];
        match stream.read(&mut bytes).context("no answer")? {
            0 => bail!("the connection was closed"),
            count => frames.extend(&bytes[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_is_on_the_host_that_has_its_address() {
        let own = [[127, 0, 0, 1].into(), [192, 0, 2, 7].into()];
        for (address, is_here) in [
            ("emulated:/dev/shm/pool/rack-1/fabric.sock", true),
            ("tcp:127.0.0.1:7500", true),
            ("tcp:192.0.2.7:7500", true),
            ("verbs:192.0.2.7:40001", true),
            ("tcp:192.0.2.8:7500", false),
            ("verbs:[::ffff:192.0.2.7]:7500", true),
            ("verbs:[2001:db8::1]:7500", false),
        ] {
            assert_eq!(is_on_this_host(address, &own), is_here, "{address}");
        }
        assert!(own_addresses().iter().any(IpAddr::is_loopback));
    }
}
