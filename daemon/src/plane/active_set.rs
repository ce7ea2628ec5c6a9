//! Which clients' rings are looked at in every look, and looking at them.

use std::sync::Arc;

use rackpool_model::ClientId;
use rackpool_ring::client_file::{ClientFile, Route};
use rackpool_ring::request::Request;

use super::command::count;
use super::{DataPlane, ROUND};

/// Looks at rings, of all clients together, between two looks at the fabric: a tenth of a
/// microsecond.
const LOOKS: u32 = 16;
/// The same while somebody waits for a transfer, which the next look at the fabric tells of.
/// Looking there and at all else takes about as long as the looks that are left out, so those count
/// too in what follows.
const TRANSFER_LOOKS: u32 = 2;
/// Sweeps in which a client may be silent without losing it.
const MAX_SILENT_SWEEPS: u8 = 4;
/// One look of so many for each client there is, is a sweep: looking at one that is silent costs
/// about half a look, so sweeps take a sixtieth of the time however many there are.
const EVERY: u32 = 32;
/// With few clients a sweep comes no sooner than this: so a client that was silent waits 2 us
/// longer on average while others ask.
const LEAST: u32 = 128;
/// So is the look after so many in a row that found nothing, about a microsecond: more than
/// somebody needs between two requests who asks all the time. Where many clients share a core,
/// whoever of them runs next is found by it before it stops looking for its answer and gives the
/// core away.
const IDLE: u32 = 40;

/// Clients that have asked lately have the daemon's active set: their rings are looked at each
/// time, all others' in a *sweep* now and then. So who asks is not held up by many who do not.
/// While nobody asks every look is a sweep. `F` is what it takes to look at a client's rings.
#[derive(Debug)]
pub(super) struct ActiveSet<F> {
    /// Looks since the last regular sweep.
    looks: u32,
    /// Looks since somebody asked.
    idle: u32,
    /// Whether the sweep of this look comes whoever asks.
    is_regular: bool,
    held: Vec<Held<F>>,
}

/// A client that has it.
#[derive(Debug)]
struct Held<F> {
    client: ClientId,
    file: F,
    /// Regular sweeps since it last asked.
    silent: u8,
}

impl<F> Default for ActiveSet<F> {
    fn default() -> Self {
        Self { looks: 0, idle: 0, is_regular: false, held: Vec::new() }
    }
}

impl<F> ActiveSet<F> {
    /// The next look at one or all of so many clients begins: whether it is a sweep.
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

    /// A round begins: how many looks there are until the fabric is looked at again.
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

    /// The clients that have it.
    pub(super) fn held(&self) -> impl Iterator<Item = (ClientId, &F)> {
        self.held.iter().map(|held| (held.client, &held.file))
    }

    /// A client has asked. `false`: it does not have it yet, [`give`](Self::give) it.
    pub(super) fn asked(&mut self, client: ClientId) -> bool {
        self.idle = 0;
        let held = self.held.iter_mut().find(|held| held.client == client);
        held.is_some_and(|held| {
            held.silent = 0;
            true
        })
    }

    /// A client gets it.
    pub(super) fn give(&mut self, client: ClientId, file: F) {
        self.held.push(Held { client, file, silent: 0 });
    }

    /// A client is not served any more.
    pub(super) fn lose(&mut self, client: ClientId) {
        self.held.retain(|held| held.client != client);
    }

    /// A sweep is over: who has been silent for long loses it. Sweeps that come sooner because
    /// nobody asks say nothing about how long that is.
    pub(super) fn swept(&mut self) {
        if self.is_regular {
            self.held.retain_mut(|held| {
                held.silent += 1;
                held.silent <= MAX_SILENT_SWEEPS
            });
        }
    }
}

impl DataPlane {
    /// Looks at the rings so many times, or until there is a request; how many looks it made, and
    /// how many requests it served.
    pub(super) fn poll_clients(&mut self, looks: u32) -> anyhow::Result<(u32, usize)> {
        let mut requests = std::mem::take(&mut self.transfers.round);
        let mut made = 0;
        while made < looks && requests.is_empty() {
            made += 1;
            self.look(&mut requests);
        }
        let served = requests.len();
        // What others had to do meanwhile may have looked at the clock long ago.
        self.moment = None;
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
            self.moment = None;
            self.do_for_holder()?;
        }
        Ok((made, served))
    }

    /// Takes what is in the rings of the clients that have asked lately, or in all rings.
    fn look(&mut self, requests: &mut Vec<(ClientId, Request)>) {
        if self.active_set.is_sweep(self.clients.all.len()) {
            // What a client posted to an earlier daemon it posts again when it has come back.
            for (id, client) in self.clients.all.iter().filter(|(_, client)| client.is_served()) {
                take_requests(id, &client.file, requests);
            }
            self.active_set.swept();
        } else {
            self.active_set.held().for_each(|(id, file)| take_requests(id, file, requests));
        }
    }
}

/// Takes what a client asks.
#[inline]
fn take_requests(id: ClientId, file: &ClientFile, requests: &mut Vec<(ClientId, Request)>) {
    for route in [Route::Rack, Route::Remote] {
        file.ring(route).pop(ROUND, |request| requests.push((id, request)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(7);
    const B: ClientId = ClientId(9);

    /// A client asks.
    fn ask(active_set: &mut ActiveSet<()>, client: ClientId) {
        if !active_set.asked(client) {
            active_set.give(client, ());
        }
    }

    fn held(active_set: &ActiveSet<()>) -> Vec<ClientId> {
        active_set.held().map(|(client, ())| client).collect()
    }

    /// Looks at so many clients until after the next regular sweep, somebody asking in each; how
    /// many looks there were.
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
    fn attention_is_held_by_asking_and_lost_by_silence() {
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
        // A round of one look takes as long as one of eight.
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
