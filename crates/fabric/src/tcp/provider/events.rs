use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use super::start::INBOX;
use super::{Endpoint, State, TcpFabric};
use crate::tcp::buffer::Buffer;
use crate::tcp::inbox::{InboxEvent, Ready, WINDOW, room_of};
use crate::tcp::poster::Poster;
use crate::{DisconnectReason, EndpointId, Event};

/// Events of the other threads and of the posting channels.
impl TcpFabric {
    pub(super) fn take_events(&mut self, events: &mut Vec<Event>) {
        for inbox_events in self.inbox.take() {
            self.learn(inbox_events, events);
        }
    }

    /// Processes the inbox before the next poll if the peer seems to lack room for a message: a
    /// report of room may have arrived.
    pub(super) fn look_for_room(&mut self, endpoint: EndpointId, len: usize) {
        let state = self.endpoints.get(&endpoint).map(|open| &open.state);
        if matches!(state, Some(State::Open(poster)) if !poster.has_room(len)) {
            let mut events = std::mem::take(&mut self.stash);
            self.take_events(&mut events);
            self.stash = events;
        }
    }

    fn learn(&mut self, inbox_events: InboxEvent, events: &mut Vec<Event>) {
        match inbox_events {
            InboxEvent::Ready(ready) => self.open(*ready, events),
            InboxEvent::Failed { endpoint, error } => match self.connecting.remove(&endpoint) {
                Some(true) => events.push(Event::ConnectFailed { endpoint, error }),
                Some(false) => events.push(given_up(endpoint)),
                None => {}
            },
            InboxEvent::Abandoned { endpoint } => {
                if self.connecting.remove(&endpoint).is_some() {
                    events.push(given_up(endpoint));
                }
            }
            InboxEvent::Message { endpoint, bytes } => self.message(endpoint, bytes, events),
            InboxEvent::Room { endpoint, taken } => {
                let state = self.endpoints.get_mut(&endpoint).map(|open| &mut open.state);
                if let Some(State::Open(poster)) = state
                    && let Err(error) = poster.peer_took(taken)
                {
                    self.end(endpoint, DisconnectReason::Failed(error), events);
                }
            }
            InboxEvent::ChannelEnded { endpoint, ending } => {
                self.channel_ended(endpoint, ending, events)
            }
            InboxEvent::Fenced { endpoint } => events.push(Event::Fenced { endpoint }),
            InboxEvent::Ended { endpoint } => self.ended(endpoint, events),
        }
    }

    fn open(&mut self, ready: Ready, events: &mut Vec<Event>) {
        let Ready { endpoint, accepted, peer, incarnation, regions, posting } = ready;
        let wanted = if accepted {
            self.next_accepted = endpoint.0 + 2;
            true
        } else {
            self.connecting.remove(&endpoint).unwrap_or(false)
        };
        let data = epoll::EventData::new_u64(endpoint.0);
        // If this fails, the endpoint still ends with its other channel, which the server watches.
        let _ = epoll::add(&self.epoll, posting.as_fd(), data, epoll::EventFlags::IN);
        let input = Buffer::within(&self.receive_room);
        let state = State::Open(Poster::new(endpoint, posting, regions, input));
        self.endpoints.insert(endpoint, Endpoint { state, taken: 0, told: 0 });
        if !wanted {
            self.end(endpoint, DisconnectReason::Local, events);
        } else if accepted {
            events.push(Event::Accepted { endpoint, peer, incarnation });
        } else {
            events.push(Event::Connected { endpoint, peer, incarnation });
        }
    }

    fn message(&mut self, endpoint: EndpointId, bytes: Vec<u8>, events: &mut Vec<Event>) {
        let Some(open) = self.endpoints.get_mut(&endpoint) else { return };
        if let State::Open(poster) = &mut open.state {
            open.taken += room_of(bytes.len());
            if open.taken - open.told >= WINDOW / 4 {
                open.told = open.taken;
                poster.tell_room(open.taken);
            }
            events.push(Event::Message { endpoint, bytes });
        }
    }

    pub(super) fn poll_channels(&mut self, events: &mut Vec<Event>) {
        let Self { endpoints, regions, .. } = self;
        let mut over = Vec::new();
        for (endpoint, open) in endpoints {
            if let State::Open(poster) = &mut open.state
                && let Err(ending) = poster.poll(regions, events)
            {
                over.push((*endpoint, ending));
            }
        }
        for (endpoint, ending) in over {
            self.posting_ended(endpoint, ending, events);
        }
    }

    /// Sends frames that the owner has not flushed.
    pub(super) fn flush_all(&mut self) {
        let Self { endpoints, regions, .. } = self;
        for open in endpoints.values_mut() {
            if let State::Open(poster) = &mut open.state {
                poster.try_flush(regions);
            }
        }
    }

    /// Returns true if a channel has something to report that the epoll does not show.
    pub(super) fn has_stirred(&self) -> bool {
        self.posters().any(Poster::has_ended_or_answered)
    }

    /// Marks the posting channels that the epoll reports as readable.
    pub(super) fn find_stirred(&mut self) {
        let mut found = Vec::with_capacity(64);
        let now = Timespec::try_from(Duration::ZERO).ok();
        // After an interrupt: channels with requests in flight are polled anyway, the others next
        // time.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut found), now.as_ref());
        for event in found {
            let tag = event.data.u64();
            let open = self.endpoints.get_mut(&EndpointId(tag)).filter(|_| tag != INBOX);
            if let Some(State::Open(poster)) = open.map(|open| &mut open.state) {
                poster.stirred = true;
            }
        }
    }

    /// While the owner sleeps, watches for room in the sockets for which frames wait.
    pub(super) fn watch_full_sockets(&self, asleep: bool) {
        for (endpoint, open) in &self.endpoints {
            if let State::Open(poster) = &open.state
                && poster.has_output()
            {
                let out = if asleep { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                let data = epoll::EventData::new_u64(endpoint.0);
                let flags = epoll::EventFlags::IN | out;
                // Fails only if the channel could not be added to the epoll.
                let _ = epoll::modify(&self.epoll, poster.socket.as_fd(), data, flags);
            }
        }
    }

    fn posters(&self) -> impl Iterator<Item = &Poster> {
        self.endpoints.values().filter_map(|open| match &open.state {
            State::Open(poster) => Some(poster),
            State::Asking(_) | State::Ending(_) => None,
        })
    }
}

const fn given_up(endpoint: EndpointId) -> Event {
    Event::Disconnected { endpoint, reason: DisconnectReason::Local }
}
