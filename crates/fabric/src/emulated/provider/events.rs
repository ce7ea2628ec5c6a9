use std::sync::mpsc::TryRecvError;

use super::{EmulatedFabric, Open};
use crate::emulated::connector::{Command, Outcome};
use crate::emulated::endpoint::Endpoint;
use crate::emulated::handshake::Established;
use crate::{DisconnectReason, EndpointId, Event, FabricError};

/// Reports of the connector.
impl EmulatedFabric {
    pub(super) fn next_outcome(&mut self) -> Option<Outcome> {
        if let Some(outcome) = self.found.take() {
            return Some(outcome);
        }
        match self.outcomes.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                // The connector's thread has ended; only a bug in the connector can cause that.
                let endpoint = self.connecting.first().copied()?;
                let error = FabricError::local("reach the connector", "its thread has ended");
                Some(Outcome::Failed { endpoint, error })
            }
        }
    }

    pub(super) fn learn(&mut self, outcome: Outcome, events: &mut Vec<Event>) {
        match outcome {
            Outcome::Ready { endpoint, watch, established } => {
                self.open(endpoint, watch, *established, events);
            }
            Outcome::Failed { endpoint, error } => {
                if self.connecting.remove(&endpoint) {
                    events.push(Event::ConnectFailed { endpoint, error });
                }
            }
            Outcome::Gone { watch } => {
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
            Some(_) => {
                // The owner gave the endpoint up meanwhile. Dropping the link informs the peer. The
                // command fails only if the connector has ended, which then watches nothing.
                let _ = self.command(Command::Forget { watch });
                return;
            }
            None => {
                let endpoint = self.new_endpoint();
                events.push(Event::Accepted { endpoint, peer, incarnation });
                endpoint
            }
        };
        let open = Open { endpoint: Endpoint::new(endpoint, self.speed, established), watch };
        self.endpoints.insert(endpoint, open);
    }
}
