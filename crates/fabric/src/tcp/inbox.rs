use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError, TryLockError};

use rackpool_model::{Incarnation, RackId};
use rustix::event::{EventfdFlags, eventfd};

use crate::{EndpointId, FabricError};

/// Room that a peer's messages may take until they are polled, in bytes.
pub(super) const WINDOW: u64 = 1 << 20;

/// Room that a message takes: its bytes, and what keeping it costs.
pub(super) const fn room_of(message: usize) -> u64 {
    message as u64 + 64
}

/// What the owner of a fabric has to learn.
pub(super) enum InboxEvent {
    /// A handshake succeeded and the server serves the peer.
    Ready(Box<Ready>),
    /// A peer could not be connected to.
    Failed { endpoint: EndpointId, error: FabricError },
    /// A connection that was given up before it was ready is gone.
    Abandoned { endpoint: EndpointId },
    /// The peer sent a message.
    Message { endpoint: EndpointId, bytes: Vec<u8> },
    /// So much room has the peer's owner taken from this side's messages.
    Room { endpoint: EndpointId, taken: u64 },
    /// The channel that the peer posts on has ended by itself: nothing of it lands any more.
    ChannelEnded { endpoint: EndpointId, ending: Ending },
    /// Of what the owner ended nothing of the peer lands any more; the other channel is still
    /// watched.
    Fenced { endpoint: EndpointId },
    /// What the owner ended has ended on both channels.
    Ended { endpoint: EndpointId },
}

/// An endpoint that has just been made.
pub(super) struct Ready {
    pub(super) endpoint: EndpointId,
    /// Whether the peer connected.
    pub(super) accepted: bool,
    pub(super) peer: RackId,
    pub(super) incarnation: Incarnation,
    /// Length of each region that the peer exports.
    pub(super) regions: Vec<u64>,
    /// The channel that this side posts on.
    pub(super) posting: TcpStream,
}

/// How a channel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The peer said that it ends the endpoint.
    Bye,
    /// The connection ended without a word.
    Gone,
    /// The peer broke the protocol.
    Failed(FabricError),
}

impl From<FabricError> for Ending {
    fn from(error: FabricError) -> Self {
        Self::Failed(error)
    }
}

impl From<std::io::Error> for Ending {
    fn from(_: std::io::Error) -> Self {
        Self::Gone
    }
}

/// Where the other threads leave what the owner has to learn, and wake it.
pub(super) struct Inbox {
    state: Mutex<State>,
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    inbox_events: Vec<InboxEvent>,
    /// Room that the messages among the events take, of each endpoint.
    room: BTreeMap<EndpointId, u64>,
    asleep: bool,
}

impl Inbox {
    pub(super) fn new() -> rustix::io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: Mutex::default(), wake })
    }

    pub(super) fn push(&self, inbox_events: InboxEvent) -> Result<(), FabricError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let InboxEvent::Message { endpoint, bytes } = &inbox_events {
            let room = state.room.entry(*endpoint).or_default();
            *room += room_of(bytes.len());
            if *room > WINDOW {
                return Err(FabricError::misbehaved(
                    "it sent more messages than this side has room for",
                ));
            }
        }
        state.inbox_events.push(inbox_events);
        if std::mem::take(&mut state.asleep) {
            signal(&self.wake);
        }
        Ok(())
    }

    /// Puts in what takes no room.
    pub(super) fn tell(&self, inbox_events: InboxEvent) {
        // Only messages are refused.
        let _ = self.push(inbox_events);
    }

    /// Takes what is there; nothing when somebody is just putting something in.
    pub(super) fn take(&self) -> Vec<InboxEvent> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Vec::new(),
        };
        state.room.clear();
        std::mem::take(&mut state.inbox_events)
    }

    /// The owner goes to sleep; false when there is something for it.
    pub(super) fn arm(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asleep = state.inbox_events.is_empty();
        state.asleep
    }

    /// The owner is awake.
    pub(super) fn disarm(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asleep = false;
        drain(&self.wake);
    }

    /// Readable when something was put in for a sleeping owner.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Makes an eventfd readable.
pub(super) fn signal(event: impl AsFd) {
    // A full counter is readable as well.
    let _ = rustix::io::write(event, &1_u64.to_le_bytes());
}

/// Makes an eventfd unreadable.
pub(super) fn drain(event: impl AsFd) {
    // Nothing to read means that nobody has signalled.
    let _ = rustix::io::read(event, &mut [0; 8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: EndpointId = EndpointId(1);

    fn readable(inbox: &Inbox) -> bool {
        rustix::io::read(inbox.wake_fd(), &mut [0; 8]).is_ok()
    }

    #[test]
    fn only_a_sleeper_is_woken_and_once() {
        let inbox = Inbox::new().unwrap();
        inbox.tell(InboxEvent::Ended { endpoint: PEER });
        assert!(!readable(&inbox) && !inbox.arm(), "it sleeps although there is something");
        assert_eq!(inbox.take().len(), 1);
        assert!(inbox.arm());
        inbox.tell(InboxEvent::Ended { endpoint: PEER });
        inbox.tell(InboxEvent::Ended { endpoint: PEER });
        assert!(readable(&inbox));
        inbox.disarm();
        assert!(!readable(&inbox));
    }

    #[test]
    fn messages_beyond_the_window_are_refused_until_the_others_are_taken() {
        let inbox = Inbox::new().unwrap();
        let message = || InboxEvent::Message { endpoint: PEER, bytes: vec![0; (1 << 19) - 64] };
        assert_eq!([inbox.push(message()), inbox.push(message())], [Ok(()), Ok(())]);
        let small = || InboxEvent::Message { endpoint: PEER, bytes: vec![0] };
        assert!(inbox.push(small()).is_err());
        let other = InboxEvent::Message { endpoint: EndpointId(2), bytes: vec![0] };
        assert_eq!(inbox.push(other), Ok(()));
        assert_eq!(inbox.take().len(), 3);
        assert_eq!(inbox.push(small()), Ok(()));
    }
}
