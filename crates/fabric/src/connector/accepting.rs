use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::source::give_way;
use super::{Connection, Connector, RETRY_AFTER, Source, Transport};
use crate::FabricError;

/// Limit of accepted connections in a handshake. A further one replaces another.
const MAX_HANDSHAKES: usize = 256;
/// The number of connections accepted at a time. It is below the limit, so that peers that answer
/// are served before others replace them.
const BATCH: usize = 64;

/// Connections that peers make.
impl<T: Transport> Connector<T> {
    pub(super) fn accept(&mut self) {
        for _ in 0..BATCH {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::acceptfrom_with(&self.listener, flags) {
                Ok((socket, from)) => {
                    self.meet(socket, from.and_then(|from| SocketAddr::try_from(from).ok()));
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    // Most likely out of descriptors: an unauthenticated peer has to give one up.
                    let error = FabricError::local("accept a connection", errno);
                    self.refusals.note(Source::Unknown, &error, Instant::now());
                    self.make_room();
                    self.accept_again_at = Some(Instant::now() + RETRY_AFTER);
                    return;
                }
            }
        }
    }

    fn meet(&mut self, socket: OwnedFd, from: Option<SocketAddr>) {
        let accepted = self.connections.iter().filter(|one| one.endpoint().is_none());
        if accepted.count() >= MAX_HANDSHAKES {
            self.make_room();
        }
        match Connection::accept(&self.transport, socket, from) {
            Ok(one) => self.connections.push(one),
            Err((source, error)) => self.refusals.note(source, &error, Instant::now()),
        }
    }

    /// Drops an accepted connection to make room for another one: an unauthenticated peer's, or
    /// else one that has proved itself.
    pub(super) fn make_room(&mut self) {
        let victim = |is_proven| {
            let all = self.connections.iter().enumerate();
            let may_go =
                all.filter(|(_, one)| one.endpoint().is_none() && one.is_proven() == is_proven);
            let (places, from): (Vec<_>, Vec<_>) =
                may_go.map(|(at, one)| (at, one.source())).unzip();
            give_way(from.into_iter()).and_then(|at| places.get(at).copied())
        };
        if let Some(at) = victim(false).or_else(|| victim(true)) {
            let one = self.connections.remove(at);
            let error = "it did not finish its handshake while many others connected";
            self.refusals.note(one.source(), &FabricError::misbehaved(error), Instant::now());
        }
    }
}
