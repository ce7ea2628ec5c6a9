//! The two ends of a connection: queue pair, message buffers, and the peer's exported memory.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_fabric::connector::Stream;
use rackpool_fabric::handshake::{Identity, Packet};
use rackpool_fabric::{FabricError, MAX_MESSAGE, Portion, ReceiveRoom, Transfer};
use rackpool_model::{Incarnation, RackId};
use rackpool_sync::random_bytes;

use crate::DeviceLimits;
use crate::error::{explain_memory, local, misbehaved};
use crate::intake::{Intake, MOST_MESSAGES, MOST_SLOTS, SMALL};
use crate::pair::{Pair, Window};
use crate::port::{Port, mtu_bytes, text_of};
use crate::split::Cut;
use crate::transport::VerbsTransport;
use crate::verbs::{
    Action, Buffers, Channel, CompletionQueue, Depth, Domain, Path, QueuePair, Registration,
    Remote, Request, Slice, Status,
};

/// Flag in the work request ids of receives.
pub(crate) const IS_RECEIVE: u64 = 1 << 63;

// Layout of the staging memory: small and large messages to be sent, as many as any peer may
// accept, then the receive buffers.
const LARGE_AT: usize = MOST_MESSAGES * SMALL;
const RECEIVES_AT: usize = LARGE_AT + MOST_SLOTS * MAX_MESSAGE;

/// What all links of a fabric share.
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) exports: Vec<Arc<Registration>>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) port: Port,
    pub(crate) limits: DeviceLimits,
    /// Room for the data of all peers.
    pub(crate) receive_room: ReceiveRoom,
    /// Wakes the thread that polls the fabric.
    pub(crate) wake: OwnedFd,
}

/// This side's end of a connection before it is joined to a peer. The queue pair is the first
/// field, so it is destroyed before its memory.
pub(crate) struct LocalEnd {
    pair: QueuePair,
    queue: Arc<CompletionQueue>,
    staging: Buffers,
    slots: Buffers,
    psn: u32,
    sends: usize,
    intake: Intake,
    _portion: Portion,
}

/// A connection with both ends.
pub(crate) struct VerbsLink {
    half: LocalEnd,
    pub(crate) peer: RackId,
    pub(crate) incarnation: Incarnation,
    pub(crate) offer: Offer,
    /// The receive capacity of the peer.
    pub(crate) peers_intake: Intake,
    /// Splits transfers into work requests.
    pub(crate) cut: Cut,
    path: String,
    probe_len: u32,
    socket: Arc<OwnedFd>,
}

/// Memory of the peer that this side may access.
pub(crate) struct Offer {
    exports: Vec<Window>,
    /// The slots that receive large messages.
    slots: Window,
}

/// A message in staging memory: waiting to be posted, or for its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    /// Index of its place among those for messages of its size.
    pub(crate) place: usize,
    pub(crate) len: usize,
}

impl Staged {
    pub(crate) const fn is_large(self) -> bool {
        self.len > SMALL
    }

    const fn offset(self) -> usize {
        if self.is_large() { LARGE_AT + self.place * MAX_MESSAGE } else { self.place * SMALL }
    }
}

impl LocalEnd {
    /// Creates a queue pair and posts its receives.
    pub(crate) fn new(shared: &Shared) -> Result<Self, FabricError> {
        let (intake, portion) = Intake::within(&shared.receive_room);
        let receives = u32::try_from(intake.receives()).unwrap_or(u32::MAX);
        let staged = RECEIVES_AT + intake.receives() * SMALL;
        let sends = shared.limits.sends(receives);
        let depth = Depth { send: sends, receive: receives };
        let make = || -> io::Result<Self> {
            let staging = Buffers::new(&shared.domain, staged, false)?;
            let slots = Buffers::new(&shared.domain, intake.slot_bytes(), true)?;
            let queue = Arc::new(CompletionQueue::new(&shared.channel, sends + receives)?);
            let pair = QueuePair::new(&shared.domain, &queue, depth)?;
            pair.initialize(shared.port.number)?;
            let sends = usize::try_from(sends).unwrap_or(usize::MAX);
            let psn = random_bytes()?;
            let psn = u32::from_le_bytes(psn) & 0xff_ffff;
            let mut half =
                Self { pair, queue, staging, slots, psn, sends, intake, _portion: portion };
            half.receive_again(0..intake.receives())?;
            Ok(half)
        };
        let bytes = (staged + intake.slot_bytes()) as u64;
        make().map_err(|error| local("make a queue pair", explain_memory(&error, bytes)))
    }

    /// The description of this end for the peer.
    pub(crate) fn describe(&self, shared: &Shared) -> Pair {
        let window = |address, len, key| Window { address, len, key };
        let export = |region: &Arc<Registration>| {
            window(region.address(), region.len(), region.remote_key())
        };
        let slots = self.intake.slot_bytes() as u64;
        Pair {
            number: self.pair.number(),
            psn: self.psn,
            lid: shared.port.state.lid,
            mtu: shared.port.state.mtu,
            reads_answered: shared.limits.reads_answered(),
            gid: shared.port.gid.gid,
            slots: window(self.slots.address(), slots, self.slots.remote_key()),
            exports: shared.exports.iter().map(export).collect(),
        }
    }

    /// Connects the queue pair to the peer's.
    pub(crate) fn join(
        self,
        shared: &Shared,
        (peer, incarnation): (RackId, Incarnation),
        theirs: Pair,
        socket: Arc<OwnedFd>,
    ) -> Result<VerbsLink, FabricError> {
        let Some(peers_intake) = Intake::of_slot_bytes(theirs.slots.len) else {
            return Err(misbehaved(format!("it has slots of {} B", theirs.slots.len)));
        };
        let port = &shared.port;
        let mtu = port.state.mtu.min(theirs.mtu);
        let path = Path {
            port: port.number,
            gid_index: port.gid.index,
            mtu,
            own_psn: self.psn,
            reads_answered: shared.limits.reads_answered(),
            reads_asked: shared.limits.reads_asked(theirs.reads_answered),
            peer_pair: theirs.number,
            peer_psn: theirs.psn,
            peer_gid: theirs.gid,
            peer_lid: theirs.lid,
        };
        let text = format!(
            "RDMA from {port} to GID {} (its MTU is {} B), in packets of {} B",
            text_of(&theirs.gid),
            mtu_bytes(theirs.mtu),
            mtu_bytes(mtu)
        );
        self.pair
            .connect(&path)
            .map_err(|error| local("connect a queue pair", format!("{error}; {text}")))?;
        Ok(VerbsLink {
            half: self,
            peer,
            incarnation,
            offer: Offer { exports: theirs.exports, slots: theirs.slots },
            peers_intake,
            cut: Cut { max: shared.limits.message, at_words: port.is_software },
            path: text,
            probe_len: mtu_bytes(mtu),
            socket,
        })
    }

    fn receive_again(&mut self, buffers: impl Iterator<Item = usize>) -> io::Result<()> {
        let Self { pair, staging, .. } = self;
        let len = u32::try_from(SMALL).unwrap_or(0);
        pair.receive(buffers.filter_map(|buffer| {
            let slice = staging.slice((RECEIVES_AT + buffer * SMALL) as u64, len)?;
            Some((IS_RECEIVE | buffer as u64, slice))
        }))
    }
}

impl VerbsLink {
    pub(crate) const fn pair(&self) -> &QueuePair {
        &self.half.pair
    }

    pub(crate) fn queue(&self) -> &CompletionQueue {
        &self.half.queue
    }

    /// The queue pair, the staging memory of messages, and the peer's memory.
    pub(crate) const fn posting(&mut self) -> (&mut QueuePair, &Buffers, &Offer) {
        (&mut self.half.pair, &self.half.staging, &self.offer)
    }

    /// The receive capacity of this side.
    pub(crate) const fn intake(&self) -> Intake {
        self.half.intake
    }

    /// Length of the send queue.
    pub(crate) const fn sends(&self) -> usize {
        self.half.sends
    }

    /// Copies a message into staging memory.
    pub(crate) fn stage(&self, staged: Staged, message: &[u8]) {
        self.half.staging.put(staged.offset(), message);
    }

    /// Copies a message out of a receive buffer.
    pub(crate) fn small(&self, buffer: usize, len: usize) -> Vec<u8> {
        self.half.staging.take(RECEIVES_AT + buffer * SMALL, len.min(SMALL))
    }

    /// Copies a message out of a slot.
    pub(crate) fn large(&self, slot: usize, len: usize) -> Vec<u8> {
        self.half.slots.take(slot * MAX_MESSAGE, len.min(MAX_MESSAGE))
    }

    /// Posts receives for emptied buffers again.
    pub(crate) fn receive_again(&mut self, buffers: &[usize]) -> io::Result<()> {
        self.half.receive_again(buffers.iter().copied())
    }

    /// Posts the probe: writes one MTU to the peer and reads it back.
    pub(crate) fn probe(&mut self) -> Result<(), FabricError> {
        let there = self.offer.slot(Staged { place: 0, len: MAX_MESSAGE });
        let len = self.probe_len;
        let LocalEnd { pair, staging, .. } = &mut self.half;
        let local_bytes = staging.slice(LARGE_AT as u64, len);
        let mut batch = pair.batch();
        for action in [Action::Write { to: there, after_reads: false }, Action::Read(there)] {
            batch.push(Request { id: 0, action, local: local_bytes, signaled: false });
        }
        batch.post().map_err(|error| local("post to a send queue", error))?;
        Ok(())
    }

    /// Returns true once the probe has completed. The error names the path that the probe took.
    pub(crate) fn is_probed(&self) -> Result<bool, String> {
        let mut ended = Vec::new();
        match self.half.queue.poll(&mut ended) {
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        match ended.first().map(|completion| completion.status) {
            None => Ok(false),
            Some(Status::Done) => Ok(true),
            Some(Status::NoAnswer) => Err(self.no_answer()),
            Some(status) => Err(format!("{status:?} over {}", self.path)),
        }
    }

    /// The explanation of a probe without an answer.
    pub(crate) fn no_answer(&self) -> String {
        format!(
            "no answer over {}. Look at the addresses (another GID: --gid-index), at the MTU of all \
             interfaces and switches on the way, and at firewalls (UDP port 4791)",
            self.path
        )
    }

    /// Tells the peer that this side ends the connection.
    pub(crate) fn say_goodbye(&self) {
        // Fails if the peer is gone, which then needs no goodbye.
        let goodbye = VerbsTransport::PROTOCOL.encode(&Packet::Goodbye);
        let _ = Stream::of(Arc::clone(&self.socket)).send(&goodbye, &[]);
    }
}

impl Offer {
    /// The slot for a large message.
    pub(crate) const fn slot(&self, staged: Staged) -> Remote {
        let address = self.slots.address + (staged.place * MAX_MESSAGE) as u64;
        Remote { address, key: self.slots.key }
    }

    /// The remote address of a transfer, checked against the peer's exports.
    pub(crate) fn at(&self, transfer: &Transfer) -> Result<Remote, FabricError> {
        let Some(window) = self.exports.get(usize::from(transfer.remote.0)) else {
            return Err(FabricError::UnknownRemoteRegion { region: transfer.remote.0 });
        };
        let (offset, len) = (transfer.remote_offset, u64::from(transfer.len));
        if offset.checked_add(len).is_none_or(|end| end > window.len) {
            let region_len = window.len;
            return Err(FabricError::OutOfRange { side: "remote", offset, len, region_len });
        }
        Ok(Remote { address: window.address + offset, key: window.key })
    }
}

impl Staged {
    /// The staged bytes, to be posted.
    pub(crate) fn slice(self, staging: &Buffers) -> Option<Slice<'_>> {
        staging.slice(self.offset() as u64, u32::try_from(self.len).ok()?)
    }
}
