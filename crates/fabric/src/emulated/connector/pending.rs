use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use super::{
    Connector, HANDSHAKE_MS, HANDSHAKE_TIMEOUT, Incoming, MAX_UNAUTHENTICATED, Outcome, Outgoing,
    RETRY_AFTER,
};
use crate::FabricError;
use crate::emulated::handshake;
use crate::emulated::link::SharedLink;
use crate::emulated::socket::{self, Process, Received};

/// The number of connections accepted at a time. It is below the limit of unauthenticated peers, so
/// that peers that have sent their hello are served before others replace them.
const BATCH: usize = 64;

/// Connections whose handshake is not complete.
impl Connector {
    pub(super) fn go_on_connecting(&mut self, flags: PollFlags, mut one: Outgoing) {
        let endpoint = one.endpoint;
        let result = match one.offered.take() {
            None => self.reach(&one.path, &one.socket).map(|link| {
                one.offered = link;
                Some(one)
            }),
            Some(link) if flags.is_empty() => {
                one.offered = Some(link);
                Ok(Some(one))
            }
            Some(link) => match socket::receive(&one.socket) {
                Ok(Received::Packet(answer)) => {
                    handshake::finish(&self.local, one.socket, link, answer).map(|established| {
                        self.ready(Some(endpoint), established);
                        None
                    })
                }
                Ok(Received::Nothing) => {
                    one.offered = Some(link);
                    Ok(Some(one))
                }
                Ok(Received::End) => Err(hung_up(&one.path)),
                Err(error) => Err(error),
            },
        };
        match result {
            Ok(Some(one)) if one.give_up_at > Instant::now() => self.outgoing.push(one),
            Ok(Some(one)) => {
                let address = one.path.display().to_string();
                let error = FabricError::Silent { address, timeout_ms: HANDSHAKE_MS };
                self.report(Outcome::Failed { endpoint, error });
            }
            Ok(None) => {}
            Err(error) => self.report(Outcome::Failed { endpoint, error }),
        }
    }

    /// Connects and sends the hello. Returns `None` if the peer's backlog is full.
    fn reach(&self, path: &Path, socket: &OwnedFd) -> Result<Option<SharedLink>, FabricError> {
        let unreachable = |errno: Errno| FabricError::Unreachable {
            address: path.display().to_string(),
            cause: errno.to_string(),
        };
        let address = SocketAddrUnix::new(path).map_err(unreachable)?;
        match rustix::net::connect(socket, &address) {
            Ok(()) => match handshake::greet(&self.local, socket) {
                Err(FabricError::PeerGone) => Err(hung_up(path)),
                greeted => greeted.map(Some),
            },
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(unreachable(errno)),
        }
    }

    pub(super) fn accept(&mut self) {
        for _ in 0..BATCH {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener.socket, flags) {
                Ok(socket) => {
                    if self.incoming.len() >= MAX_UNAUTHENTICATED {
                        self.give_up_oldest();
                    }
                    let from = socket::process(&socket);
                    let give_up_at = Instant::now() + HANDSHAKE_TIMEOUT;
                    self.incoming.push(Incoming { socket, from, give_up_at });
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    // Most likely out of descriptors: an unauthenticated peer has to give one up.
                    let error = FabricError::local("accept a connection", errno);
                    self.refusals.note(None::<Process>, &error, Instant::now());
                    self.give_up_oldest();
                    self.accept_again_at = Some(Instant::now() + RETRY_AFTER);
                    return;
                }
            }
        }
    }

    /// Drops the oldest unauthenticated peer to make room for another connection.
    fn give_up_oldest(&mut self) {
        if !self.incoming.is_empty() {
            let one = self.incoming.remove(0);
            let error = FabricError::misbehaved("it said nothing while many others connected");
            self.refusals.note(one.from, &error, Instant::now());
        }
    }

    /// Continues the handshake of an unauthenticated peer that has sent something or has timed out.
    /// A fault of the peer ends its own connection only.
    pub(super) fn go_on_accepting(&mut self, flags: PollFlags, one: Incoming) {
        let (from, now) = (one.from, Instant::now());
        let heard =
            if flags.is_empty() { Ok(Received::Nothing) } else { socket::receive(&one.socket) };
        let refused = match heard {
            Ok(Received::Packet(greeting)) => {
                match handshake::answer(&self.local, one.socket, greeting) {
                    Ok(established) => return self.ready(None, established),
                    Err(error) => error,
                }
            }
            Ok(Received::Nothing) if now < one.give_up_at => return self.incoming.push(one),
            Ok(Received::Nothing) => {
                let silent = format!("it said nothing within {HANDSHAKE_MS} ms");
                FabricError::misbehaved(silent)
            }
            Ok(Received::End) => FabricError::misbehaved("it hung up"),
            Err(error) => error,
        };
        self.refusals.note(from, &refused, now);
    }
}

fn hung_up(path: &Path) -> FabricError {
    FabricError::Unreachable {
        address: path.display().to_string(),
        cause: "it closed the connection without an answer".into(),
    }
}
