//! For `rackpool-fuzz`: the parsers of a peer's packets and frames, without sockets.

use std::net::TcpStream;
use std::sync::Arc;

use rackpool_model::{Incarnation, RackId};
use rustix::net::{AddressFamily, SocketType};

use super::buffer::Buffer;
use super::inbox::{Ending, Inbox, InboxEvent};
use super::offer::Offer;
use super::poster::Poster;
use super::server::{PeerIncarnation, ServedChannel};
use crate::regions::Regions;
use crate::{EndpointId, Event, FabricError, MemoryRegion, RegionId, WorkRequest};

const PEER: EndpointId = EndpointId(1);

/// Decodes the content of an offer and encodes it again.
///
/// # Errors
///
/// The fault of the content.
pub fn reencode_offer(content: &[u8]) -> Result<Vec<u8>, FabricError> {
    Ok(Offer::decode(content)?.encode())
}

/// How a channel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer sent a bye.
    Bye,
    /// The peer broke the protocol.
    Failed(FabricError),
}

/// The serving end of a channel.
pub struct Serving {
    channel: ServedChannel,
    inbox: Arc<Inbox>,
}

/// An event that a serving channel passes to its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A message arrived.
    Message(Vec<u8>),
    /// Total room of messages that the peer has taken, in bytes.
    Room(u64),
}

/// The posting end of a channel.
pub struct Posting {
    poster: Poster,
    regions: Regions,
}

/// A socket that is not connected.
fn nobody() -> rustix::io::Result<TcpStream> {
    Ok(rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?.into())
}

fn end(ending: Ending) -> End {
    match ending {
        Ending::Bye => End::Bye,
        Ending::Gone => End::Failed(FabricError::PeerGone),
        Ending::Failed(error) => End::Failed(error),
    }
}

impl Serving {
    /// A channel that serves `memory` as its only region.
    pub fn new(memory: Arc<dyn MemoryRegion>) -> std::io::Result<Self> {
        let inbox = Arc::new(Inbox::new()?);
        let peer = PeerIncarnation { rack: RackId(2), incarnation: Incarnation(1) };
        let exports = [memory].into();
        let channel =
            ServedChannel::new(PEER, peer, nobody()?, exports, Arc::clone(&inbox), Buffer::new());
        Ok(Self { channel, inbox })
    }

    /// Processes some KiB of requests; appends the answers to `answers`.
    pub fn feed(&mut self, bytes: &[u8], answers: &mut Vec<u8>) -> Result<(), End> {
        self.channel.feed(bytes, answers).map_err(end)
    }

    /// The events for the owner since the last call.
    pub fn told(&self) -> Vec<Told> {
        let told = self.inbox.take().into_iter().filter_map(|inbox_events| match inbox_events {
            InboxEvent::Message { bytes, .. } => Some(Told::Message(bytes)),
            InboxEvent::Room { taken, .. } => Some(Told::Room(taken)),
            _ => None,
        });
        told.collect()
    }
}

impl Posting {
    /// A channel whose peer exports one region of `remote_len` bytes.
    pub fn new(
        memory: Arc<dyn MemoryRegion>,
        remote_len: u64,
    ) -> rustix::io::Result<(Self, RegionId)> {
        let mut regions = Regions::default();
        let own = regions.register(memory);
        let poster = Poster::new(PEER, nobody()?, vec![remote_len], Buffer::new());
        Ok((Self { poster, regions }, own))
    }

    /// Posts a list and returns the bytes that would be sent to the peer.
    pub fn post(&mut self, list: &[WorkRequest]) -> Result<Vec<u8>, FabricError> {
        self.poster.post_dry(list, &mut self.regions)
    }

    /// Processes some KiB of answers.
    pub fn feed(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<(), End> {
        self.poster.feed(bytes, &mut self.regions, events).map_err(end)
    }
}
