use std::os::fd::AsFd;

use rustix::event::epoll;

use super::{Endpoint, State, TcpFabric};
use crate::tcp::inbox::Ending;
use crate::tcp::poster::Poster;
use crate::tcp::server::Command;
use crate::{DisconnectReason, EndpointId, Event};

/// How endpoints end.
impl TcpFabric {
    /// Tears an endpoint down, unless that has begun already.
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
            // Without its thread nothing lands.
            self.ended(endpoint, events);
        }
    }

    /// The posting channel has ended.
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

    /// The server serves the endpoint no more, for a reason of the peer.
    pub(super) fn channel_ended(
        &mut self,
        endpoint: EndpointId,
        ending: Ending,
        events: &mut Vec<Event>,
    ) {
        let Some(open) = self.endpoints.get_mut(&endpoint) else { return };
        if let State::Open(poster) = &mut open.state {
            // What the peer answered before it ended the endpoint is done.
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

    /// Nothing of the endpoint can land any more, on either side.
    pub(super) fn ended(&mut self, endpoint: EndpointId, events: &mut Vec<Event>) {
        if let Some(Endpoint { state: State::Ending(reason), .. }) =
            self.endpoints.remove(&endpoint)
        {
            events.push(Event::Disconnected { endpoint, reason });
        }
    }

    /// The epoll would report the end of a channel again and again.
    fn unwatch(&self, poster: &Poster) {
        // One that is not watched was reported when it was added.
        let _ = epoll::delete(&self.epoll, poster.socket.as_fd());
    }
}
