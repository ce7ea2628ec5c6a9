use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_model::{Incarnation, RackId};
use rustix::event::PollFlags;

use super::stream::{Received, Stream};
use super::{Connector, Outcome, Transport};
use crate::FabricError;
use crate::handshake::{Packet, Protocol};

/// The socket of an endpoint, watched for a goodbye or the end of the peer.
pub(super) struct Watched {
    pub(super) watch: u64,
    /// The rack at the other end, and the incarnation of its daemon.
    pub(super) peer: (RackId, Incarnation),
    /// True once the owner was asked to end the endpoint for another incarnation of the rack.
    pub(super) is_superseded: bool,
    stream: Stream,
    /// True once the end of the socket, or a violation, was reported.
    reported: bool,
    said_goodbye: bool,
}

impl Watched {
    pub(super) const fn new(watch: u64, peer: (RackId, Incarnation), socket: Arc<OwnedFd>) -> Self {
        let stream = Stream::of(socket);
        Self { watch, peer, is_superseded: false, stream, reported: false, said_goodbye: false }
    }

    /// The socket to wait for.
    pub(super) fn socket(&self) -> Option<&Arc<OwnedFd>> {
        (!self.reported).then_some(&self.stream.socket)
    }

    /// Checks the socket. Returns `None` while the connection lasts; otherwise, whether the peer
    /// sent a goodbye.
    fn hear(&mut self, protocol: &Protocol) -> Result<Option<bool>, FabricError> {
        match self.stream.receive(protocol)? {
            Received::Packet(packet) if protocol.decode(&packet)? == Packet::Goodbye => {
                Ok(Some(true))
            }
            Received::Packet(_) => Err(FabricError::misbehaved("a packet out of turn")),
            Received::End => Ok(Some(false)),
            Received::Nothing => Ok(None),
        }
    }
}

/// The ends of peers.
impl<T: Transport> Connector<T> {
    pub(super) fn look_at_watched(&mut self, flags: &[PollFlags]) {
        for (one, flags) in self.watched.iter_mut().zip(flags) {
            if flags.is_empty() || one.reported {
                continue;
            }
            let watch = one.watch;
            match one.hear(T::PROTOCOL) {
                Ok(None) => {}
                Ok(Some(said_goodbye)) => {
                    (one.reported, one.said_goodbye) = (true, said_goodbye);
                    self.transport.report(Outcome::Gone { watch, said_goodbye });
                }
                Err(_) => {
                    one.reported = true;
                    self.transport.report(Outcome::Broken { watch });
                }
            }
        }
    }

    /// Stops watching a socket. Returns whether the peer said goodbye.
    pub(super) fn forget(&mut self, watch: u64) -> bool {
        let at = self.watched.iter().position(|one| one.watch == watch);
        at.is_some_and(|at| {
            let mut one = self.watched.swap_remove(at);
            // A goodbye may have arrived that was not read yet.
            one.said_goodbye || matches!(one.hear(T::PROTOCOL), Ok(Some(true)))
        })
    }
}
