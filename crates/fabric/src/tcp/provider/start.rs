use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rackpool_sync::eventfd;
use rustix::event::epoll;

use super::TcpFabric;
use crate::connector::ConnectorHandle;
use crate::handshake::{Identity, MAX_EXPORTS};
use crate::ip_socket::{self, is_this_host};
use crate::regions::Regions;
use crate::tcp::TcpOptions;
use crate::tcp::inbox::Inbox;
use crate::tcp::server::{Server, ServerHandle};
use crate::tcp::transport::{FIRST_ACCEPTED, TcpTransport};
use crate::{DeviceCounters, FabricStartError};

pub(super) const SCHEME: &str = "tcp:";
/// Tag of the inbox in the owner's epoll; other tags are endpoint ids.
pub(super) const INBOX: u64 = u64::MAX;
const SHORTEST_DEAD_AFTER: Duration = Duration::from_secs(1);
const LONGEST_DEAD_AFTER: Duration = Duration::from_secs(600);

impl TcpFabric {
    /// Starts to listen. Peers are served from now on; `poll` reports them.
    pub fn new(options: TcpOptions) -> Result<Self, FabricStartError> {
        check(&options)?;
        let TcpOptions { rack, incarnation, listen, key, dead_after, exports, receive_room } =
            options;
        let failed = |step| {
            move |source: std::io::Error| FabricStartError::System {
                step,
                path: format!("{SCHEME}{listen}"),
                source,
            }
        };
        let (listener, bound) = ip_socket::listen(&listen).map_err(failed("listen"))?;
        let inbox = Arc::new(Inbox::new().map_err(failed("create an eventfd"))?);
        let epoll = watch(&inbox).map_err(|errno| failed("create an epoll")(errno.into()))?;
        let server_control = Arc::new(eventfd::new().map_err(failed("create an eventfd"))?);
        let (server_commands, server_receiver) = channel();
        let regions = exports.iter().map(|export| export.len()).collect();
        let has_key = key.is_used();
        let server = Server::new(
            exports.into(),
            Arc::clone(&inbox),
            server_receiver,
            Arc::clone(&server_control),
            dead_after,
            receive_room.clone(),
        )
        .map_err(|errno| failed("create an epoll")(errno.into()))?;
        let handle = ServerHandle::new(server_commands, server_control);
        let transport = TcpTransport {
            identity: Identity { rack, incarnation, key },
            regions,
            dead_after,
            inbox: Arc::clone(&inbox),
            server: handle.clone(),
            next_accepted: FIRST_ACCEPTED,
        };
        // If the server cannot be started, the drop of its handle ends the connector.
        let connector =
            ConnectorHandle::start(transport, listener).map_err(failed("start a thread"))?;
        let server_thread = std::thread::Builder::new()
            .name("fabric-server".into())
            .spawn(|| server.run())
            .map_err(failed("start a thread"))?;
        Ok(Self {
            address: format!("{SCHEME}{bound}"),
            description: describe(&bound, has_key),
            has_key,
            regions: Regions::default(),
            receive_room,
            next_endpoint: 0,
            next_accepted: FIRST_ACCEPTED,
            connecting: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            past: DeviceCounters::default(),
            stash: Vec::new(),
            inbox,
            epoll,
            armed: false,
            server: handle,
            connector,
            server_thread: Some(server_thread),
        })
    }
}

/// Creates the owner's epoll with the inbox; the posting channels are added later.
fn watch(inbox: &Inbox) -> rustix::io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(INBOX);
    epoll::add(&epoll, inbox.wake_fd(), data, epoll::EventFlags::IN)?;
    Ok(epoll)
}

fn check(options: &TcpOptions) -> Result<(), FabricStartError> {
    let TcpOptions { listen, key, dead_after, exports, .. } = options;
    if listen.ip().is_unspecified() {
        return Err(FabricStartError::Option {
            option: "listen",
            value: listen.to_string(),
            expected: "the address at which the other racks reach this one",
        });
    }
    if !key.is_used() && !is_this_host(listen) {
        return Err(FabricStartError::KeyNeeded { listen: listen.to_string() });
    }
    if !(SHORTEST_DEAD_AFTER..=LONGEST_DEAD_AFTER).contains(dead_after) {
        return Err(FabricStartError::Option {
            option: "dead_after",
            value: format!("{dead_after:?}"),
            expected: "1 s to 10 min",
        });
    }
    if exports.is_empty() || exports.len() > MAX_EXPORTS {
        return Err(FabricStartError::Option {
            option: "exports",
            value: format!("{} regions", exports.len()),
            expected: "1 to 16 regions",
        });
    }
    Ok(())
}

fn describe(bound: &SocketAddr, has_key: bool) -> String {
    let who = if has_key {
        "racks that prove that they have the pool's key"
    } else {
        "racks on this host, without a key"
    };
    format!("tcp: {bound}, {who}")
}
