use std::time::Instant;

use rackpool_model::{Incarnation, RackId};

use super::{Connection, Connector, Outcome, Transport};
use crate::FabricError;

/// Racks whose daemon was replaced by another incarnation. The peer that proved itself last is the
/// living one: what the others have of this side's memory ends before the peer gets an offer, so no
/// write of theirs lands after one of the peer.
impl<T: Transport> Connector<T> {
    /// Lets the connections go on whose peers have proved themselves, once nothing of other
    /// incarnations of their racks is left.
    pub(super) fn let_succeed(&mut self) {
        while let Some(at) = self.next_to_succeed() {
            let mut one = self.connections.remove(at);
            match (one.succeed(&self.transport), one.endpoint()) {
                (Ok(()), _) => self.connections.insert(at, one),
                (Err(error), Some(endpoint)) => self.fail(endpoint, error),
                (Err(error), None) => self.refusals.note(one.source(), &error, Instant::now()),
            }
        }
    }

    /// The next connection that may go on. Ends what other incarnations of the racks have.
    fn next_to_succeed(&mut self) -> Option<usize> {
        let waiting = self.connections.iter().filter(|one| one.is_succeeding());
        let living: Vec<_> = waiting.filter_map(|one| one.peer().ok()).collect();
        let living = living.into_iter().find(|living| {
            self.supersede_endpoints(*living);
            !self.watched.iter().any(|one| is_other(one.peer, *living))
        })?;
        self.supersede_handshakes(living);
        let is_next = |one: &Connection<T>| one.is_succeeding() && one.peer() == Ok(living);
        self.connections.iter().position(is_next)
    }

    /// Asks the owner to end the endpoints of the rack's other incarnations.
    fn supersede_endpoints(&mut self, living: (RackId, Incarnation)) {
        for one in &mut self.watched {
            if is_other(one.peer, living) && !std::mem::replace(&mut one.is_superseded, true) {
                self.transport.report(Outcome::Superseded { watch: one.watch });
            }
        }
    }

    /// Drops the handshakes in which another incarnation of the rack may have this side's offer.
    fn supersede_handshakes(&mut self, living: (RackId, Incarnation)) {
        let is_over = |one: &Connection<T>| {
            let is_offered = one.is_proven() && !one.is_succeeding();
            is_offered && one.peer().is_ok_and(|peer| is_other(peer, living))
        };
        while let Some(at) = self.connections.iter().position(is_over) {
            let one = self.connections.remove(at);
            let error = FabricError::PeerGone;
            match one.endpoint() {
                Some(endpoint) => self.fail(endpoint, error),
                None => self.refusals.note(one.source(), &error, Instant::now()),
            }
        }
    }
}

/// Returns true if a peer is another incarnation of the living one's rack.
fn is_other(peer: (RackId, Incarnation), living: (RackId, Incarnation)) -> bool {
    peer.0 == living.0 && peer.1 != living.1
}
