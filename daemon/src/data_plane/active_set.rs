//! The active set: the clients whose rings are polled in every look.

use std::sync::Arc;

use rackpool_model::ClientId;
use rackpool_ring::client_file::{ClientFile, RingKind};
use rackpool_ring::request::Request;

use super::DataPlane;
use super::command::count;
use super::poll_loop::ROUND;
use crate::data_plane::error::Result;

/// Looks at the rings, of all clients together, between two polls of the fabric. A look takes a
/// tenth of a microsecond.
const LOOKS: u32 = 16;
/// The same while a client waits for a transfer, whose completion the next poll of the fabric
/// reports. Polling the fabric and the rest of the round takes about as long as the omitted looks,
/// so those count as looks below.
const TRANSFER_LOOKS: u32 = 2;
/// Sweeps without a request after which a client leaves the active set.
const MAX_SILENT_SWEEPS: u8 = 4;
/// One look in `EVERY` times the number of clients is a sweep. Polling a silent client costs about
/// half a look, so sweeps take a sixtieth of the time with any number of clients.
const EVERY: u32 = 32;
/// Minimum number of looks between two regular sweeps. A client that was silent therefore waits 2
/// us longer on average while others send requests.
const LEAST: u32 = 128;
/// After this many looks without a request, about a microsecond, the next look is a sweep too. That
/// is longer than a busy client pauses between two requests. Where many clients share a core, the
/// sweep finds the request of the next client to run before that client stops spinning and gives up
/// the core.
const IDLE: u32 = 40;

/// Clients that sent a request lately are in the active set. Their rings are polled in every look,
/// the rings of all other clients only in a *sweep* now and then. Silent clients therefore do not
/// delay the active ones. While no client is active, every look is a sweep. `F` is what is needed
/// to poll a client's rings.
#[derive(Debug)]
pub(super) struct ActiveSet<F> {
    /// Looks since the last regular sweep.
    looks: u32,
    /// Looks since the last request.
    idle: u32,
    /// Set if this look is a regular sweep, which does not depend on requests.
    is_regular: bool,
    held: Vec<Held<F>>,
}

/// A client in the active set.
#[derive(Debug)]
struct Held<F> {
    client: ClientId,
    file: F,
    /// Regular sweeps since the client's last request.
    silent: u8,
}

impl<F> Default for ActiveSet<F> {
    fn default() -> Self {
        Self { looks: 0, idle: 0, is_regular: false, held: Vec::new() }
    }
}

impl<F> ActiveSet<F> {
    /// Begins the next look, with `clients` clients in total. Returns true if it is a sweep.
    pub(super) fn is_sweep(&mut self, clients: usize) -> bool {
        self.looks = self.looks.saturating_add(1);
        self.idle = self.idle.saturating_add(1);
        let clients = u32::try_from(clients).unwrap_or(u32::MAX);
        self.is_regular = self.looks >= EVERY.saturating_mul(clients).max(LEAST);
        if self.is_regular {
            self.looks = 0;
        }
        let is_idle = self.idle >= IDLE;
        if is_idle {
            self.idle = 0;
        }
        self.held.is_empty() || self.is_regular || is_idle
    }

    /// Begins a round. Returns the number of looks until the next poll of the fabric.
    pub(super) fn round(&mut self, waits_for_transfer: bool) -> u32 {
        let clients = u32::try_from(self.held.len()).unwrap_or(u32::MAX).max(1);
        let looks = (LOOKS / clients).max(1);
        if !waits_for_transfer {
            return looks;
        }
        let fewer = (TRANSFER_LOOKS / clients).max(1);
        self.looks = self.looks.saturating_add(looks - fewer);
        self.idle = self.idle.saturating_add(looks - fewer);
        fewer
    }

    /// Returns the clients in the active set.
    pub(super) fn held(&self) -> impl Iterator<Item = (ClientId, &F)> {
        self.held.iter().map(|held| (held.client, &held.file))
    }

    /// Records a request. Returns false if the client is not in the active set; the caller must
    /// then [`give`](Self::give) it a place.
    pub(super) fn asked(&mut self, client: ClientId) -> bool {
        self.idle = 0;
        let held = self.held.iter_mut().find(|held| held.client == client);
        held.is_some_and(|held| {
            held.silent = 0;
            true
        })
    }

    /// Adds a client to the active set.
    pub(super) fn give(&mut self, client: ClientId, file: F) {
        self.held.push(Held { client, file, silent: 0 });
    }

    /// Removes a client that is not served any more.
    pub(super) fn lose(&mut self, client: ClientId) {
        self.held.retain(|held| held.client != client);
    }

    /// Ends a sweep. After a regular sweep, clients that were silent for too long leave the active
    /// set. Other sweeps are not counted, because their number says nothing about the elapsed time.
    pub(super) fn swept(&mut self) {
        if self.is_regular {
            self.held.retain_mut(|held| {
                held.silent += 1;
                held.silent <= MAX_SILENT_SWEEPS
            });
        }
    }
}

/// What one call of [`DataPlane::poll_clients`] did.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollRound {
    /// The number of looks.
    pub(super) looks: u32,
    /// The number of requests served.
    pub(super) served: usize,
}

impl DataPlane {
    /// Polls the rings up to `looks` times, or until there is a request.
    pub(super) fn poll_clients(&mut self, looks: u32) -> Result<PollRound> {
        let mut requests = std::mem::take(&mut self.transfers.round);
        let mut made = 0;
        while made < looks && requests.is_empty() {
            made += 1;
            self.look(&mut requests);
        }
        let served = requests.len();
        // The time of this step may be old by now.
        self.cached_now = None;
        for (client, request) in requests.drain(..) {
            count(&self.metrics.requests);
            if !self.active_set.asked(client)
                && let Some(known) = self.clients.all.get(client).filter(|c| c.is_served())
            {
                self.active_set.give(client, Arc::clone(&known.file));
            }
            self.serve(client, &request)?;
        }
        self.transfers.round = requests;
        if served > 0 {
            self.cached_now = None;
            self.run_machine()?;
        }
        Ok(PollRound { looks: made, served })
    }

    /// Takes the requests from the rings of the active set, or in a sweep from all rings.
    fn look(&mut self, requests: &mut Vec<(ClientId, Request)>) {
        if self.active_set.is_sweep(self.clients.all.len()) {
            // A client whose requests were posted to an earlier daemon posts them again when it
            // reconnects.
            for (id, client) in self.clients.all.iter().filter(|(_, client)| client.is_served()) {
                take_requests(id, &client.file, requests);
            }
            self.active_set.swept();
        } else {
            self.active_set.held().for_each(|(id, file)| take_requests(id, file, requests));
        }
    }
}

/// Takes the requests of one client.
#[inline]
fn take_requests(id: ClientId, file: &ClientFile, requests: &mut Vec<(ClientId, Request)>) {
    for route in [RingKind::Rack, RingKind::Remote] {
        file.ring(route).pop(ROUND, |request| requests.push((id, request)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(7);
    const B: ClientId = ClientId(9);

    /// Sends a request.
    fn ask(active_set: &mut ActiveSet<()>, client: ClientId) {
        if !active_set.asked(client) {
            active_set.give(client, ());
        }
    }

    fn held(active_set: &ActiveSet<()>) -> Vec<ClientId> {
        active_set.held().map(|(client, ())| client).collect()
    }

    /// Looks until after the next regular sweep, with a request of `asks` in each look. Returns the
    /// number of looks.
    fn until_swept(active_set: &mut ActiveSet<()>, clients: usize, asks: ClientId) -> u32 {
        let mut looks = 0;
        loop {
            looks += 1;
            if active_set.is_sweep(clients) {
                active_set.swept();
            }
            ask(active_set, asks);
            if active_set.is_regular {
                return looks;
            }
        }
    }

    #[test]
    fn a_client_is_active_while_it_asks_and_idle_after_silence() {
        let mut active_set = ActiveSet::default();
        [A, B, A].into_iter().for_each(|client| ask(&mut active_set, client));
        assert_eq!(held(&active_set), [A, B]);
        (0..MAX_SILENT_SWEEPS).for_each(|_| _ = until_swept(&mut active_set, 2, B));
        assert_eq!(held(&active_set), [A, B]);
        until_swept(&mut active_set, 2, B);
        assert_eq!(held(&active_set), [B]);
    }

    #[test]
    fn who_is_not_served_any_more_is_not_looked_at() {
        let mut active_set = ActiveSet::default();
        [A, B].into_iter().for_each(|client| ask(&mut active_set, client));
        active_set.lose(A);
        active_set.lose(A);
        assert_eq!(held(&active_set), [B]);
    }

    #[test]
    fn looks_are_sweeps_until_somebody_asks_and_then_now_and_then() {
        let mut active_set = ActiveSet::<()>::default();
        assert!((0..LEAST).all(|_| active_set.is_sweep(1)));
        for (clients, looks) in [(1, LEAST), (4, LEAST), (10, 10 * EVERY), (100, 100 * EVERY)] {
            until_swept(&mut active_set, clients, A);
            assert_eq!(until_swept(&mut active_set, clients, A), looks, "{clients}");
        }
    }

    #[test]
    fn looks_that_a_round_leaves_out_count_as_time() {
        let mut active_set = ActiveSet::default();
        assert_eq!((active_set.round(false), active_set.looks), (LOOKS, 0));
        assert_eq!(active_set.round(true), TRANSFER_LOOKS);
        assert_eq!((active_set.looks, active_set.idle), (LOOKS - TRANSFER_LOOKS, active_set.looks));
        [A, B].into_iter().for_each(|client| ask(&mut active_set, client));
        assert_eq!((active_set.round(false), active_set.round(true)), (LOOKS / 2, 1));
        // A round of one look counts as eight looks.
        ask(&mut active_set, A);
        let rounds = (1..).find(|_| active_set.round(true) == 1 && active_set.is_sweep(1000));
        assert_eq!(rounds, Some(IDLE / (LOOKS / 2)));
    }

    #[test]
    fn when_who_asked_is_silent_the_others_are_looked_at_soon() {
        let mut active_set = ActiveSet::default();
        ask(&mut active_set, A);
        assert_eq!((1..).find(|_| active_set.is_sweep(1000)), Some(IDLE));
        active_set.swept();
        assert_eq!(held(&active_set), [A], "the silence was short");
    }
}
