use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError, TryLockError};

use rackpool_model::{Incarnation, RackId};
use rackpool_sync::eventfd::{self, drain, signal};

use crate::{EndpointId, FabricError};

/// Window of messages that the peer's owner has not polled yet, in bytes.
pub(super) const WINDOW: u64 = 1 << 20;

/// Room that a message occupies in the window: its length plus the cost of storing it.
pub(super) const fn room_of(message: usize) -> u64 {
    message as u64 + 64
}

/// An event for the owner of a fabric.
pub(super) enum InboxEvent {
    /// A handshake succeeded and the server serves the peer.
    Ready(Box<Ready>),
    /// The connection to a peer failed.
    Failed { endpoint: EndpointId, error: FabricError },
    /// The owner gave up a connection before it was ready, and it is closed.
    Abandoned { endpoint: EndpointId },
    /// The peer sent a message.
    Message { endpoint: EndpointId, bytes: Vec<u8> },
    /// The peer's owner has taken messages of this side; `taken` is their total room, in bytes.
    Room { endpoint: EndpointId, taken: u64 },
    /// The channel on which the peer posts has ended without a request of this side. Nothing of the
    /// channel lands any more.
    ChannelEnded { endpoint: EndpointId, ending: Ending },
    /// The owner has ended the endpoint: nothing of the peer lands any more. The server still waits
    /// for the peer to close the posting channel.
    Fenced { endpoint: EndpointId },
    /// The endpoint that the owner has ended is gone: the server has dropped its serving channel
    /// and no longer waits for the peer to close the posting channel.
    Ended { endpoint: EndpointId },
}

/// An endpoint whose handshake has succeeded.
pub(super) struct Ready {
    pub(super) endpoint: EndpointId,
    /// True if the peer connected, false if this side did.
    pub(super) accepted: bool,
    pub(super) peer: RackId,
    pub(super) incarnation: Incarnation,
    /// Length of each region that the peer exports, in bytes.
    pub(super) regions: Vec<u64>,
    /// The channel on which this side posts.
    pub(super) posting: TcpStream,
}

/// How a channel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The peer sent a bye: it ends the endpoint.
    Bye,
    /// The connection ended without a bye.
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

/// The queue of events from the other threads to the owner, with the owner's wake-up.
pub(super) struct Inbox {
    state: Mutex<State>,
    wake: OwnedFd,
}

#[derive(Default)]
struct State {
    inbox_events: Vec<InboxEvent>,
    /// Room that the messages in `inbox_events` occupy, by endpoint.
    room: BTreeMap<EndpointId, u64>,
    asleep: bool,
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { state: Mutex::default(), wake: eventfd::new()? })
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

    /// Appends an event other than a message; this cannot fail.
    pub(super) fn tell(&self, inbox_events: InboxEvent) {
        // Only messages can be refused.
        let _ = self.push(inbox_events);
    }

    /// Takes all events. Returns none while another thread holds the lock; the next poll gets them.
    pub(super) fn take(&self) -> Vec<InboxEvent> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Vec::new(),
        };
        state.room.clear();
        std::mem::take(&mut state.inbox_events)
    }

    /// Marks the owner as asleep and returns true, unless there are events.
    pub(super) fn arm(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asleep = state.inbox_events.is_empty();
        state.asleep
    }

    /// Marks the owner as awake and empties the eventfd.
    pub(super) fn disarm(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asleep = false;
        drain(&self.wake);
    }

    /// The eventfd that becomes readable when an event arrives for a sleeping owner.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
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
