//! The decisions of a resolution: which object is freed.

use std::time::Instant;

use rackpool_model::GlobalAddr;
use rackpool_ring::reservation::{Armed, ArmedMode, ReservationRecord};
use rackpool_sync::atomic::Ordering;

use super::{AGAIN, Place, Question, Seen, Step, Swap, Then, Waiting};
use crate::data_plane::DataPlane;
use crate::data_plane::clients::ClientThread;
use crate::data_plane::error::Result;

/// The swap that puts an object, or 0, back into the word from which one was borrowed.
pub(super) const fn back_to(place: u64, token: u64, back: u64) -> Swap {
    let addr = GlobalAddr::from_raw(place);
    Swap { addr, expected: token, new: back, then: Then::Clear }
}

/// The swap that settles a link whose word is `found`.
pub(super) fn settle(made: &Armed, found: u64) -> Swap {
    let new = made.settled(found).unwrap_or(found);
    Swap { addr: GlobalAddr::from_raw(made.link), expected: found, new, then: Then::TakeBack }
}

impl DataPlane {
    /// Continues a resolution with the word that was read.
    pub(super) fn seen(&mut self, id: u64, seen: Seen) -> Result<()> {
        let Some(Question { place, step, .. }) = self.reservations.questions.get(&id).copied()
        else {
            return Ok(());
        };
        if let Step::Swap(swap) = step {
            return self.swapped(id, place, swap, seen);
        }
        let Some(armed) = self.armed_at(place)? else { return self.forget_question(id, place) };
        let compares = matches!(armed.mode, ArmedMode::Compare(_));
        let is_token = seen == Seen::Word(armed.token);
        match (step, seen) {
            (_, Seen::Nowhere) => {
                tracing::warn!(
                    "client {} left a reservation of which nothing is known",
                    place.client.0
                );
                self.with_record(place, |_, record| record.clear())?;
                self.forget_question(id, place)
            }
            (Step::Link, seen) => {
                let linked = matches!(seen, Seen::Word(word) if armed.is_linked(word));
                if armed.object == 0 || (linked && !compares) {
                    return self.decided(id, place, &armed, linked);
                }
                self.go_on(id, Step::Owner { linked })
            }
            (Step::Owner { linked: true }, _) if compares && is_token => {
                self.go_on(id, Step::Stamp)
            }
            // The publication was aborted but the object is still linked: look again until another
            // client has changed the link.
            (Step::Owner { linked: true }, Seen::Word(owner))
                if compares && owner == !armed.token =>
            {
                if let Some(question) = self.reservations.questions.get_mut(&id) {
                    question.step = Step::Link;
                    question.waiting = Waiting::Until(Instant::now() + AGAIN);
                }
                Ok(())
            }
            (Step::Owner { linked }, seen) => {
                let aborted = compares && seen == Seen::Word(!armed.token);
                // A changed owner word means that the object was published: another client found it
                // by its link and cleared the owner word, or has freed the object since.
                self.decided(id, place, &armed, linked || !(is_token || aborted))
            }
            (Step::Stamp | Step::Swap(_), seen) => {
                let counts =
                    matches!(armed.mode, ArmedMode::Compare(stamp) if seen == Seen::Word(stamp));
                let new = if counts { 0 } else { !armed.token };
                let (addr, expected) = (GlobalAddr::from_raw(armed.object), armed.token);
                self.go_on(id, Step::Swap(Swap { addr, expected, new, then: Then::LookAgain }))
            }
        }
    }

    fn go_on(&mut self, id: u64, step: Step) -> Result<()> {
        if let Some(question) = self.reservations.questions.get_mut(&id) {
            question.step = step;
        }
        self.look_at(id)
    }

    /// It is known whether the publication happened (`made`). The object that is unreachable now is
    /// freed.
    fn decided(&mut self, id: u64, place: Place, armed: &Armed, made: bool) -> Result<()> {
        if let ArmedMode::Borrowed(word) = armed.mode {
            let back = if made { armed.replaced } else { armed.object };
            return self.go_on(id, Step::Swap(back_to(word, armed.token, back)));
        }
        self.with_record(place, |_, record| match (made, armed.object) {
            (true, _) => record.mark_replaced(),
            // The publication had only to unlink an object, and did not, as far as can be
            // determined.
            (false, 0) => record.clear(),
            (false, _) => record.disarm(),
        })?;
        if made && matches!(armed.mode, ArmedMode::Settle(_)) {
            let swap = settle(armed, armed.word);
            return self.go_on(id, Step::Swap(swap));
        }
        self.with_record(place, |plane, record| plane.take_back(place, record))?.transpose()?;
        self.forget_question(id, place)
    }

    /// A swap was executed, or can't succeed: the word had another value, or does not exist.
    fn swapped(&mut self, id: u64, place: Place, swap: Swap, seen: Seen) -> Result<()> {
        match swap.then {
            Then::LookAgain if seen != Seen::Nowhere => return self.go_on(id, Step::Link),
            Then::LookAgain | Then::Clear => {
                self.with_record(place, |_, record| record.clear())?;
            }
            Then::TakeBack => {
                let made = self.with_record(place, |_, record| record.to_settle())?.flatten();
                if let (Some(made), Seen::Word(found)) = (made, seen)
                    && found != swap.expected
                    && made.is_linked(found)
                {
                    return self.go_on(id, Step::Swap(settle(&made, found)));
                }
                self.with_record(place, |plane, record| plane.take_back(place, record))?
                    .transpose()?;
            }
        }
        self.forget_question(id, place)
    }

    fn forget_question(&mut self, id: u64, place: Place) -> Result<()> {
        if self.reservations.questions.remove(&id).is_some() {
            self.let_client_go(place.client);
        }
        Ok(())
    }

    /// Frees the object that a resolved record names, here or by an exchange with its home.
    pub(super) fn take_back(&mut self, place: Place, record: &ReservationRecord) -> Result<()> {
        let noted = record.noted().map_or(0, |cell| cell.load(Ordering::Relaxed));
        let addr = GlobalAddr::from_raw(noted);
        if addr.is_null() {
            return Ok(());
        }
        let owner = ClientThread { client: place.client, thread: place.thread };
        self.give_back(owner, vec![addr]);
        Ok(())
    }
}
