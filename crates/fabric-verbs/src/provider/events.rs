use rackpool_fabric::connector::Outcome;
use rackpool_fabric::{DisconnectReason, EndpointId, Event};

use super::{ConnectAttempt, Open, VerbsFabric};
use crate::endpoint::Endpoint;
use crate::error::misbehaved;
use crate::link::VerbsLink;
use crate::transport::VerbsTransport;

/// Reports of the connector.
impl VerbsFabric {
    /// An endpoint that waits for the connector.
    pub(super) fn first_connecting(&self) -> Option<EndpointId> {
        self.connecting.keys().next().copied()
    }

    pub(super) fn learn(&mut self, outcome: Outcome<VerbsTransport>, events: &mut Vec<Event>) {
        match outcome {
            Outcome::Ready { endpoint, watch, link } => self.open(endpoint, watch, *link, events),
            Outcome::Failed { endpoint, error } => match self.connecting.remove(&endpoint) {
                Some(ConnectAttempt::Awaited) => {
                    events.push(Event::ConnectFailed { endpoint, error })
                }
                Some(ConnectAttempt::GivenUp) => given_up(endpoint, events),
                None => {}
            },
            Outcome::Abandoned { endpoint } => {
                if self.connecting.remove(&endpoint).is_some() {
                    given_up(endpoint, events);
                }
            }
            Outcome::Gone { watch, said_goodbye } => {
                let reason =
                    if said_goodbye { DisconnectReason::Peer } else { DisconnectReason::PeerGone };
                self.end(watch, reason, events);
            }
            Outcome::Broken { watch } => {
                let error = misbehaved("it wrote to the socket of the connection");
                self.end(watch, DisconnectReason::Failed(error), events);
            }
            Outcome::Superseded { watch } => self.end(watch, DisconnectReason::PeerGone, events),
            Outcome::Forgotten { endpoint, said_goodbye } => {
                if let Some(open) = self.endpoints.remove(&endpoint) {
                    self.past += open.endpoint.metrics();
                    open.endpoint.destroyed(said_goodbye, &mut self.regions, events);
                } else if self.connecting.remove(&endpoint).is_some() {
                    given_up(endpoint, events);
                }
            }
        }
    }

    fn end(&mut self, watch: u64, reason: DisconnectReason, events: &mut Vec<Event>) {
        let mut opens = self.endpoints.iter_mut();
        let Some((&endpoint, open)) = opens.find(|(_, open)| open.watch == watch) else { return };
        if let Some(link) = open.endpoint.end(reason, &mut self.regions, events) {
            self.bury(endpoint, watch, link);
        }
    }

    fn open(
        &mut self,
        connecting: Option<EndpointId>,
        watch: u64,
        link: VerbsLink,
        events: &mut Vec<Event>,
    ) {
        let (peer, incarnation) = (link.peer, link.incarnation);
        let endpoint = match connecting {
            Some(endpoint) => match self.connecting.get(&endpoint) {
                Some(ConnectAttempt::Awaited) => {
                    self.connecting.remove(&endpoint);
                    events.push(Event::Connected { endpoint, peer, incarnation });
                    endpoint
                }
                // The end is reported when the queue pair is destroyed.
                Some(ConnectAttempt::GivenUp) | None => {
                    link.say_goodbye();
                    self.bury(endpoint, watch, link);
                    return;
                }
            },
            None => {
                let endpoint = self.new_endpoint();
                events.push(Event::Accepted { endpoint, peer, incarnation });
                endpoint
            }
        };
        self.endpoints.insert(endpoint, Open { endpoint: Endpoint::new(endpoint, link), watch });
    }
}

fn given_up(endpoint: EndpointId, events: &mut Vec<Event>) {
    events.push(Event::Disconnected { endpoint, reason: DisconnectReason::Local });
}
