use std::os::fd::AsFd;

use rustix::event::epoll;

use super::{Endpoint, State, TcpFabric};
use crate::tcp::inbox::Ending;
use crate::tcp::poster::Poster;
use crate::tcp::server::Command;
use crate::{DisconnectReason, EndpointId, Event};

/// The end of endpoints.
impl TcpFabric {
    /// Closes an endpoint, unless it is closing already.
    pub(super) fn end(
        &mut self,
        endpoint: EndpointId,
        reason: DisconnectReason,
        events: &mut Vec<Event>,
    ) {
        let Some(open) = self.endpoints.get_mut(&endpoint) else { return };
        let state = std::mem::replace(&mut open.state, State::Ending(reason.clone()));
        let (mut poster, is_open) = match state {
            State::Open(poster) => (poster, true),
            State::Asking(poster) => (poster, false),
            State::Ending(earlier) => {
                open.state = State::Ending(earlier);
                return;
            }
        };
        let bye = reason == DisconnectReason::Local;
        if bye {
            poster.say_bye(&self.regions);
        }
        let may_still_write = is_open && poster.has_writes();
        poster.fail(&reason.error(), &mut self.regions, events);
        self.past += poster.metrics;
        self.unwatch(&poster);
        let posting = may_still_write.then(|| poster.into_socket());
        if self.server.tell(Command::End { endpoint, bye, posting }).is_err() {
            // The server's thread has ended, so nothing can land.
            self.ended(endpoint, events);
        }
    }

    /// Handles the end of the posting channel.
    pub(super) fn posting_ended(
        &mut self,
        endpoint: EndpointId,
        ending: Ending,
        events: &mut Vec<Event>,
    ) {
        match ending {
            Ending::Bye => self.end(endpoint, DisconnectReason::Peer, events),
            Ending::Failed(error) => self.end(endpoint, DisconnectReason::Failed(error), events),
            Ending::Gone => {
                let Some(open) = self.endpoints.remove(&endpoint) else { return };
                let State::Open(poster) = open.state else { return };
                self.unwatch(&poster);
                let state = State::Asking(poster);
                self.endpoints.insert(endpoint, Endpoint { state, ..open });
                if self.server.tell(Command::Ask { endpoint }).is_err() {
                    self.end(endpoint, DisconnectReason::PeerGone, events);
                }
            }
        }
    }

    /// Handles the end of the serving channel that the peer caused.
    pub(super) fn channel_ended(
        &mut self,
        endpoint: EndpointId,
        ending: Ending,
        events: &mut Vec<Event>,
    ) {
        let Some(open) = self.endpoints.get_mut(&endpoint) else { return };
        if let State::Open(poster) = &mut open.state {
            // Requests that the peer answered before it ended the endpoint are done.
            poster.stirred = true;
            let _ = poster.poll(&mut self.regions, events);
        }
        let reason = match ending {
            Ending::Bye => DisconnectReason::Peer,
            Ending::Gone => DisconnectReason::PeerGone,
            Ending::Failed(error) => DisconnectReason::Failed(error),
        };
        self.end(endpoint, reason, events);
    }

    /// Reports the end of an endpoint: nothing of it can land any more, on either side.
    pub(super) fn ended(&mut self, endpoint: EndpointId, events: &mut Vec<Event>) {
        if let Some(Endpoint { state: State::Ending(reason), .. }) =
            self.endpoints.remove(&endpoint)
        {
            events.push(Event::Disconnected { endpoint, reason });
        }
    }

    /// Stops watching the posting channel, because the epoll would report its end repeatedly.
    fn unwatch(&self, poster: &Poster) {
        // Fails only if the channel could not be added to the epoll.
        let _ = epoll::delete(&self.epoll, poster.socket.as_fd());
    }
}
