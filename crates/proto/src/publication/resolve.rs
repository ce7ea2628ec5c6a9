//! The decisions of a resolution: which object is unreachable.

use rackpool_model::{Armed, ArmedMode, GlobalAddr, ReservationState};

use super::{Decision, RecordPlace, Recovery, RecoveryAction, RecoveryView, Resolution, Wait};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// The next word of a record's resolution. The link is read before the owner word: a client that
/// changes the link after that read has cleared the owner word before. After a crash the next
/// daemon starts with the link again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the link.
    Link,
    /// Read the owner word; `linked` is the result of reading the link.
    Owner { linked: bool },
    /// Read the stamp of the replaced object.
    Stamp,
    /// Execute a compare-and-swap, then continue with its `then`.
    Swap(Swap),
}

/// A compare-and-swap for the gone client. Repeating it has no further effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Swap {
    pub(super) addr: GlobalAddr,
    pub(super) expected: u64,
    pub(super) new: u64,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The swap has determined whether the publication counts: read the link again.
    ReadLink,
    /// Nothing is left to be done: clear the record.
    Clear,
    /// The link is settled, unless bits have changed that do not count: then settle it again. After
    /// that, free the replaced object.
    Return,
}

/// The result of accessing a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Word(u64),
    /// The memory holds no object.
    NoObject,
    /// The word can't be read, now or later.
    Unknown,
}

/// The swap that puts an object, or 0, back into the word from which one was borrowed.
const fn back_to(place: u64, token: u64, back: u64) -> Step {
    let addr = GlobalAddr::from_raw(place);
    Step::Swap(Swap { addr, expected: token, new: back, then: Then::Clear })
}

/// The swap that settles a link whose word is `found`.
fn settle(made: &Armed, found: u64) -> Step {
    let new = made.settled(found).unwrap_or(found);
    let addr = GlobalAddr::from_raw(made.link);
    Step::Swap(Swap { addr, expected: found, new, then: Then::Return })
}

impl<B: Bugs> Recovery<B> {
    /// Begins to resolve a record.
    pub(super) fn begin(&mut self, now: Time, view: &impl RecoveryView, place: RecordPlace) {
        let step = match view.reservation(place) {
            ReservationState::Free => return,
            ReservationState::Held(object) | ReservationState::Replaced(object) => {
                return self.return_object(place.owner, object);
            }
            ReservationState::Borrowed(_) if self.bugs.has(Bug::ForgetBorrowed) => {
                return self.act(RecoveryAction::Decide(place, Decision::Free));
            }
            ReservationState::Borrowed(borrowed) => {
                back_to(borrowed.place, borrowed.token, borrowed.object)
            }
            ReservationState::Settling(made) => settle(&made, made.word),
            ReservationState::Armed(armed)
                if self.bugs.has(Bug::ReadOwnerBeforeLink) && armed.object != 0 =>
            {
                Step::Owner { linked: false }
            }
            ReservationState::Armed(_) => Step::Link,
        };
        let wait = Wait::Until(now);
        self.open.insert(place, Resolution { step, wait, page: None, asked: None });
        self.look_at(now, view, place);
    }

    /// Returns the address of the word that decides a step; `None` if the record is not armed.
    pub(super) fn addr(
        &self,
        view: &impl RecoveryView,
        place: RecordPlace,
        step: Step,
    ) -> Option<GlobalAddr> {
        let armed = match (step, view.reservation(place)) {
            (Step::Swap(swap), _) => return Some(swap.addr),
            (_, ReservationState::Armed(armed)) => armed,
            _ => return None,
        };
        Some(GlobalAddr::from_raw(match step {
            Step::Link | Step::Swap(_) => armed.link,
            Step::Owner { .. } => armed.object,
            Step::Stamp => armed.replaced.wrapping_add(8),
        }))
    }

    /// Continues a resolution with the word that was read or swapped.
    pub(super) fn seen(
        &mut self,
        now: Time,
        view: &impl RecoveryView,
        place: RecordPlace,
        seen: Seen,
    ) {
        let Some(step) = self.open.get(&place).map(|one| one.step) else { return };
        let state = view.reservation(place);
        match (step, state) {
            (Step::Swap(swap), _) => self.swapped(now, view, place, swap, seen, state),
            (_, ReservationState::Armed(_)) if seen == Seen::Unknown => self.give_up(place),
            (_, ReservationState::Armed(armed)) => {
                self.read(now, view, place, &armed, (step, seen));
            }
            _ => self.end(place),
        }
    }

    fn read(
        &mut self,
        now: Time,
        view: &impl RecoveryView,
        place: RecordPlace,
        armed: &Armed,
        (step, seen): (Step, Seen),
    ) {
        let compares = matches!(armed.mode, ArmedMode::Compare(_));
        let is_token = seen == Seen::Word(armed.token);
        let is_aborted = compares && seen == Seen::Word(!armed.token);
        match step {
            Step::Link => {
                let linked = matches!(seen, Seen::Word(word) if armed.is_linked(word));
                if armed.object == 0 || (linked && !compares) {
                    return self.decided(now, view, place, armed, linked);
                }
                if self.bugs.has(Bug::ReadOwnerBeforeLink) {
                    return self.decided(now, view, place, armed, false);
                }
                self.go_on(now, view, place, Step::Owner { linked });
            }
            Step::Owner { linked: true } if compares && is_token => {
                self.go_on(now, view, place, Step::Stamp);
            }
            // The publication was aborted but the object is still linked: look again until another
            // client has changed the link.
            Step::Owner { linked: true } if is_aborted => {
                if let Some(one) = self.open.get_mut(&place) {
                    one.step = Step::Link;
                }
                self.wait(place, Wait::Until(now.after(self.rules.again)));
            }
            Step::Owner { linked: false }
                if self.bugs.has(Bug::ReadOwnerBeforeLink) && is_token =>
            {
                self.go_on(now, view, place, Step::Link);
            }
            // A changed owner word means that the object was published: another client found it by
            // its link and cleared the owner word, or has freed the object since.
            Step::Owner { linked } => {
                self.decided(now, view, place, armed, linked || !(is_token || is_aborted));
            }
            Step::Stamp | Step::Swap(_) => {
                let counts = matches!(armed.mode, ArmedMode::Compare(stamp)
                    if seen == Seen::Word(stamp));
                let new = if counts { 0 } else { !armed.token };
                let (addr, expected) = (GlobalAddr::from_raw(armed.object), armed.token);
                let swap = Swap { addr, expected, new, then: Then::ReadLink };
                self.go_on(now, view, place, Step::Swap(swap));
            }
        }
    }

    fn go_on(&mut self, now: Time, view: &impl RecoveryView, place: RecordPlace, step: Step) {
        if let Some(one) = self.open.get_mut(&place) {
            one.step = step;
        }
        self.look_at(now, view, place);
    }

    /// It is known whether the publication happened (`made`). The object that is unreachable now is
    /// freed, or put back.
    fn decided(
        &mut self,
        now: Time,
        view: &impl RecoveryView,
        place: RecordPlace,
        armed: &Armed,
        made: bool,
    ) {
        if let ArmedMode::Borrowed(word) = armed.mode {
            let made = made && !self.bugs.has(Bug::PutBackPublished);
            let back = if made { armed.replaced } else { armed.object };
            return self.go_on(now, view, place, back_to(word, armed.token, back));
        }
        let decision = match (made, armed.object) {
            _ if self.bugs.has(Bug::ClearUndecided) => Decision::Free,
            (true, _) => Decision::Replaced,
            // The publication had only to unlink an object, and did not, as far as can be
            // determined.
            (false, 0) => Decision::Free,
            (false, _) => Decision::Held,
        };
        self.act(RecoveryAction::Decide(place, decision));
        let settles = matches!(armed.mode, ArmedMode::Settle(_));
        if made && settles && !self.bugs.has(Bug::FreeBeforeSettled) {
            return self.go_on(now, view, place, settle(armed, armed.word));
        }
        self.return_object(place.owner, if made { armed.replaced } else { armed.object });
        self.end(place);
    }

    /// A swap was executed, or can't succeed: the word had another value, or does not exist.
    fn swapped(
        &mut self,
        now: Time,
        view: &impl RecoveryView,
        place: RecordPlace,
        swap: Swap,
        seen: Seen,
        state: ReservationState,
    ) {
        match swap.then {
            Then::ReadLink if seen == Seen::Unknown => self.give_up(place),
            Then::ReadLink => self.go_on(now, view, place, Step::Link),
            Then::Clear => {
                self.act(RecoveryAction::Decide(place, Decision::Free));
                self.end(place);
            }
            Then::Return => {
                if let (ReservationState::Settling(made), Seen::Word(found)) = (state, seen)
                    && found != swap.expected
                    && made.is_linked(found)
                {
                    return self.go_on(now, view, place, settle(&made, found));
                }
                // The decision may still wait for the shell.
                if let ReservationState::Settling(made) | ReservationState::Armed(made) = state {
                    self.return_object(place.owner, made.replaced);
                }
                self.end(place);
            }
        }
    }

    /// Nothing can be known about the record: nothing is freed on its evidence.
    fn give_up(&mut self, place: RecordPlace) {
        self.act(RecoveryAction::ReportUnknown(place.owner.client));
        self.act(RecoveryAction::Decide(place, Decision::Free));
        self.end(place);
    }
}
