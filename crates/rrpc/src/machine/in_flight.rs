use rackpool_fabric::EndpointId;

use super::RpcMachine;
use crate::InFlight;
use crate::message;

/// The bytes in flight: reads of this side, and windows for the writes of peers. See
/// docs/design/in-flight.md.
impl RpcMachine {
    /// Bytes in flight to this rack.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            requests: self.arena.in_flight(),
            reads: self.reads.bytes(),
            peer_writes: self.windows.bytes(),
        }
    }

    /// Returns true if nothing is in flight on an endpoint because the reads of others take all
    /// bytes: its peer is not to blame if nothing ends.
    #[must_use]
    pub fn is_held_up(&self, endpoint: EndpointId) -> bool {
        self.peers.get(&endpoint).is_some_and(|peer| peer.flow.is_held_up())
    }

    /// Tells peers their windows, where they have changed.
    pub(super) fn tell_windows(&mut self) {
        while let Some((endpoint, bytes)) = self.windows.next() {
            // A window is at most 1 GiB.
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.send(endpoint, message::window(bytes));
        }
    }

    /// A peer has said how much this side may write.
    pub(super) fn window_arrived(&mut self, endpoint: EndpointId, bytes: u32) {
        let Some(peer) = self.peers.get_mut(&endpoint) else { return };
        if !peer.flow.set_window(bytes.into()) {
            let why = "it changed its window again before the last one was confirmed";
            return self.cut_off(endpoint, why.into());
        }
        peer.confirm_window(endpoint, &mut self.ready);
        peer.queue(endpoint, &mut self.ready);
    }

    /// A peer has no more in flight than its window.
    pub(super) fn window_confirmed(&mut self, endpoint: EndpointId, bytes: u32) {
        if self.windows.confirmed(endpoint, bytes.into()) {
            self.tell_windows();
        } else {
            self.cut_off(endpoint, "it confirmed a window that it was not told".into());
        }
    }

    /// Looks again at the endpoint that has waited longest for reads to end.
    pub(super) fn queue_waiting(&mut self) {
        self.queue_endpoint(self.reads.first_waiting());
    }

    /// An endpoint does not wait for reads to end, or no longer.
    pub(super) fn stop_waiting(&mut self, endpoint: EndpointId) {
        let next = self.reads.stop_waiting(endpoint);
        self.queue_endpoint(next);
    }

    fn queue_endpoint(&mut self, endpoint: Option<EndpointId>) {
        if let Some(endpoint) = endpoint
            && let Some(peer) = self.peers.get_mut(&endpoint)
        {
            peer.queue(endpoint, &mut self.ready);
        }
    }
}
