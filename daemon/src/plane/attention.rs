//! Which clients' rings are looked at in every look.

use rackpool_model::ClientId;

/// Looks at rings, of all clients together, between two looks at the fabric: a tenth of a
/// microsecond.
const LOOKS: u32 = 16;
/// The same while somebody waits for a transfer, which the next look at the fabric tells of. Looking
/// there and at all else takes about as long as the looks that are left out, so those count too in
/// what follows.
const TRANSFER_LOOKS: u32 = 2;
/// Sweeps in which a client may be silent without losing it.
const PATIENCE: u8 = 4;
/// One look of so many for each client there is, is a sweep: looking at one that is silent costs about half
/// a look, so sweeps take a sixtieth of the time however many there are.
const EVERY: u32 = 32;
/// With few clients a sweep comes no sooner than this: so a client that was silent waits 2 us longer on
/// average while others ask.
const LEAST: u32 = 128;
/// So is the look after so many in a row that found nothing, about a microsecond: more than somebody
/// needs between two requests who asks all the time. Where many clients share a core, whoever of them
/// runs next is found by it before it stops looking for its answer and gives the core away.
const IDLE: u32 = 40;

/// Clients that have asked lately have the daemon's attention: their rings are looked at each time,
/// all others' in a *sweep* now and then. So who asks is not held up by many who do not. While
/// nobody asks every look is a sweep.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// Looks since the last regular sweep.
    looks: u32,
    /// Looks since somebody asked.
    idle: u32,
    /// Whether the sweep of this look comes whoever asks.
    is_regular: bool,
    /// Who has it, and how many regular sweeps ago it last asked.
    held: Vec<(ClientId, u8)>,
}

impl Attention {
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
        let clients = u32::try_from(self.len()).unwrap_or(u32::MAX).max(1);
        let looks = (LOOKS / clients).max(1);
        if !waits_for_transfer {
            return looks;
        }
        let fewer = (TRANSFER_LOOKS / clients).max(1);
        self.looks = self.looks.saturating_add(looks - fewer);
        self.idle = self.idle.saturating_add(looks - fewer);
        fewer
    }

    /// How many clients have it.
    pub(super) const fn len(&self) -> usize {
        self.held.len()
    }

    /// The client that has it in this place.
    pub(super) fn get(&self, place: usize) -> Option<ClientId> {
        self.held.get(place).map(|(client, _)| *client)
    }

    /// A client has asked.
    pub(super) fn asked(&mut self, client: ClientId) {
        self.idle = 0;
        match self.held.iter_mut().find(|(held, _)| *held == client) {
            Some((_, silent)) => *silent = 0,
            None => self.held.push((client, 0)),
        }
    }

    /// A sweep is over: who has been silent for long loses it. Sweeps that come sooner because nobody
    /// asks say nothing about how long that is.
    pub(super) fn swept(&mut self) {
        if self.is_regular {
            self.held.retain_mut(|(_, silent)| {
                *silent += 1;
                *silent <= PATIENCE
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(7);
    const B: ClientId = ClientId(9);

    /// Looks at so many clients until after the next regular sweep, somebody asking in each; how many
    /// looks there were.
    fn until_swept(attention: &mut Attention, clients: usize, asks: ClientId) -> u32 {
        let mut looks = 0;
        loop {
            looks += 1;
            if attention.is_sweep(clients) {
                attention.swept();
            }
            attention.asked(asks);
            if attention.is_regular {
                return looks;
            }
        }
    }

    #[test]
    fn attention_is_held_by_asking_and_lost_by_silence() {
        let mut attention = Attention::default();
        attention.asked(A);
        attention.asked(B);
        attention.asked(A);
        assert_eq!((attention.len(), attention.get(0)), (2, Some(A)));
        (0..PATIENCE).for_each(|_| _ = until_swept(&mut attention, 2, B));
        assert_eq!(attention.len(), 2);
        until_swept(&mut attention, 2, B);
        assert_eq!((attention.get(0), attention.get(1)), (Some(B), None));
    }

    #[test]
    fn looks_are_sweeps_until_somebody_asks_and_then_now_and_then() {
        let mut attention = Attention::default();
        assert!((0..LEAST).all(|_| attention.is_sweep(1)));
        for (clients, looks) in [(1, LEAST), (4, LEAST), (10, 10 * EVERY), (100, 100 * EVERY)] {
            until_swept(&mut attention, clients, A);
            assert_eq!(until_swept(&mut attention, clients, A), looks, "{clients}");
        }
    }

    #[test]
    fn looks_that_a_round_leaves_out_count_as_time() {
        let mut attention = Attention::default();
        assert_eq!((attention.round(false), attention.looks), (LOOKS, 0));
        assert_eq!(attention.round(true), TRANSFER_LOOKS);
        assert_eq!((attention.looks, attention.idle), (LOOKS - TRANSFER_LOOKS, attention.looks));
        attention.asked(A);
        attention.asked(B);
        assert_eq!((attention.round(false), attention.round(true)), (LOOKS / 2, 1));
        // A round of one look takes as long as one of eight.
        attention.asked(A);
        let rounds = (1..).find(|_| attention.round(true) == 1 && attention.is_sweep(1000));
        assert_eq!(rounds, Some(IDLE / (LOOKS / 2)));
    }

    #[test]
    fn when_who_asked_is_silent_the_others_are_looked_at_soon() {
        let mut attention = Attention::default();
        attention.asked(A);
        assert_eq!((1..).find(|_| attention.is_sweep(1000)), Some(IDLE));
        attention.swept();
        assert_eq!(attention.len(), 1, "the silence was short");
    }
}
