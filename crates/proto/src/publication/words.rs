//! Where the word is that decides a step: it is accessed here, or in the rack that has its page.

use alloc::vec::Vec;

use rackpool_model::{GlobalAddr, PageId, RackId};

use super::resolve::{Seen, Step};
use super::{RecordPlace, Recovery, RecoveryAction, RecoveryView, Wait, WordAccess, WordAnswer};
use crate::exchange::Place;
use crate::planted_bugs::{Bug, Bugs};
use crate::{Located, Time};

impl<B: Bugs> Recovery<B> {
    /// Accesses the word of a record's step, or waits until that is possible.
    pub(super) fn look_at(&mut self, now: Time, view: &impl RecoveryView, place: RecordPlace) {
        let Some(one) = self.open.get(&place).copied() else { return };
        let Some(addr) = self.addr(view, place, one.step) else { return self.end(place) };
        let page = addr.page(self.rules.page_size);
        if let Some(one) = self.open.get_mut(&place) {
            (one.page, one.asked) = (page, None);
        }
        let Some(page) = page else { return self.seen(now, view, place, Seen::Unknown) };
        let reads = !matches!(one.step, Step::Swap(_));
        match view.place(page) {
            Place::Here => self.ask(place, self.own, false, addr),
            // A read does not end a sharing.
            Place::Moving if reads && view.is_readable(page) => {
                self.ask(place, self.own, false, addr);
            }
            Place::Moving => {
                self.act(RecoveryAction::NeedPage(page));
                self.wait(place, Wait::Until(now.after(self.rules.again)));
            }
            Place::Lost => self.seen(now, view, place, Seen::Unknown),
            Place::Elsewhere => match view.living_home_of(page) {
                Some(home) => self.ask(place, home, false, addr),
                None => self.locate(now, place, page),
            },
        }
    }

    fn locate(&mut self, now: Time, place: RecordPlace, page: PageId) {
        self.wait(place, Wait::Home(now.after(self.rules.again)));
        self.act(RecoveryAction::Locate(page));
    }

    fn ask(&mut self, place: RecordPlace, rack: RackId, is_named: bool, addr: GlobalAddr) {
        self.last += 1;
        let question = self.last;
        let Some(one) = self.open.get_mut(&place) else { return };
        (one.wait, one.asked) = (Wait::Answer(question), Some((rack, is_named)));
        let access = match one.step {
            Step::Swap(swap) => WordAccess::Swap { expected: swap.expected, new: swap.new },
            Step::Link | Step::Owner { .. } | Step::Stamp => WordAccess::Read,
        };
        self.act(RecoveryAction::AccessWord { question, rack, addr, access });
    }

    pub(super) fn wait(&mut self, place: RecordPlace, wait: Wait) {
        if let Some(one) = self.open.get_mut(&place) {
            (one.wait, one.asked) = (wait, None);
        }
    }

    pub(super) fn answered(
        &mut self,
        now: Time,
        view: &impl RecoveryView,
        question: u64,
        answer: WordAnswer,
    ) {
        let is_its = |wait: Wait| wait == Wait::Answer(question);
        let place = self.open.iter().find(|(_, one)| is_its(one.wait)).map(|(place, _)| *place);
        let Some(place) = place else { return };
        let Some(one) = self.open.get(&place).copied() else { return };
        let again = Wait::Until(now.after(self.rules.again));
        let is_guess = one.asked.is_some_and(|(rack, named)| !named && rack != self.own);
        match answer {
            WordAnswer::Value(word) => self.seen(now, view, place, Seen::Word(word)),
            WordAnswer::NotAllocated => self.seen(now, view, place, Seen::NoObject),
            WordAnswer::NotHere if self.bugs.has(Bug::TakeNotHereForNoObject) => {
                self.seen(now, view, place, Seen::NoObject);
            }
            WordAnswer::Unanswered if self.bugs.has(Bug::TakeSilenceForNoObject) => {
                self.seen(now, view, place, Seen::NoObject);
            }
            // The page has moved, or that rack has restarted without its memory.
            WordAnswer::NotHere if is_guess => match one.page {
                Some(page) => self.locate(now, place, page),
                None => self.wait(place, again),
            },
            WordAnswer::NotHere | WordAnswer::Busy | WordAnswer::Unanswered => {
                self.wait(place, again);
            }
            WordAnswer::Lost | WordAnswer::Invalid => {
                self.seen(now, view, place, Seen::Unknown);
            }
        }
    }

    /// Handles the metadata server's answer about a page.
    pub(crate) fn located(
        &mut self,
        now: Time,
        view: &impl RecoveryView,
        page: PageId,
        home: Located,
    ) {
        let again = Wait::Until(now.after(self.rules.again));
        let waits =
            |one: &super::Resolution| one.page == Some(page) && matches!(one.wait, Wait::Home(_));
        let asking = self.open.iter().filter(|(_, one)| waits(one));
        for (place, step) in asking.map(|(place, one)| (*place, one.step)).collect::<Vec<_>>() {
            match home {
                Located::Home(home) if home != self.own && !view.is_dead(home) => {
                    match self.addr(view, place, step) {
                        Some(addr) => self.ask(place, home, true, addr),
                        None => self.end(place),
                    }
                }
                // The home is dead; or the page is here, is coming, or the answer is old.
                Located::Home(_) => self.wait(place, again),
                Located::NoSuchPage => self.seen(now, view, place, Seen::NoObject),
                Located::Lost => self.seen(now, view, place, Seen::Unknown),
                // Asked again at the time that the resolution waits for.
                Located::Unreachable => {}
            }
        }
    }
}
