use std::sync::Arc;

use super::{EmulatedFabric, Open};
use crate::connector::{Command, Outcome};
use crate::emulated::endpoint::Endpoint;
use crate::emulated::transport::{EmulatedTransport, Established};
use crate::{DisconnectReason, EndpointId, Event, FabricError};

/// Reports of the connector.
impl EmulatedFabric {
    pub(super) fn learn(&mut self, outcome: Outcome<EmulatedTransport>, events: &mut Vec<Event>) {
        match outcome {
            Outcome::Ready { endpoint, watch, link } => {
                self.open(endpoint, watch, *link, events);
            }
            Outcome::Failed { endpoint, error } => {
                if self.connecting.remove(&endpoint) {
                    events.push(Event::ConnectFailed { endpoint, error });
                }
            }
            Outcome::Gone { watch, .. } => {
                if let Some(open) = self.endpoints.values_mut().find(|open| open.watch == watch) {
                    open.endpoint.peer_gone(&mut self.regions, events);
                }
            }
            Outcome::Broken { watch } => {
                if let Some(open) = self.endpoints.values_mut().find(|open| open.watch == watch) {
                    let error = FabricError::misbehaved("it wrote to the socket of the link");
                    let reason = DisconnectReason::Failed(error);
                    open.endpoint.close(reason, &mut self.regions, events);
                }
            }
            Outcome::Superseded { watch } => {
                if let Some(open) = self.endpoints.values_mut().find(|open| open.watch == watch) {
                    let reason = DisconnectReason::PeerGone;
                    open.endpoint.close(reason, &mut self.regions, events);
                }
            }
            Outcome::Abandoned { .. } | Outcome::Forgotten { .. } => {}
        }
    }

    fn open(
        &mut self,
        connecting: Option<EndpointId>,
        watch: u64,
        established: Established,
        events: &mut Vec<Event>,
    ) {
        let (peer, incarnation) = (established.peer, established.incarnation);
        let endpoint = match connecting {
            Some(endpoint) if self.connecting.remove(&endpoint) => {
                events.push(Event::Connected { endpoint, peer, incarnation });
                endpoint
            }
            Some(endpoint) => {
                // The owner gave the endpoint up meanwhile. Dropping the link informs the peer. The
                // command fails only if the connector has ended, which then watches nothing.
                let forget = Command::Forget { endpoint, watch, remains: () };
                let _ = self.connector.command(forget);
                return;
            }
            None => {
                let endpoint = self.new_endpoint();
                events.push(Event::Accepted { endpoint, peer, incarnation });
                endpoint
            }
        };
        let own = (self.latency_ns, Arc::clone(&self.card));
        let open = Open { endpoint: Endpoint::new(endpoint, own, established), watch };
        self.endpoints.insert(endpoint, open);
    }
}
