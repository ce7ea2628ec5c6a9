//! What a client's file says of the objects that `alloc` gets its next one from: how many of them
//! `alloc` has in hand.
//!
//! An object that the daemon has handed over stands in the file until the program has it. So at any
//! instant at which the client stands still, what was there at its mark and what was answered
//! since, less what is there, is in the program's hands. No other run is needed to tell, and no
//! count of instructions: a client that waits for longer says the same.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use rackpool_client::GlobalAddr;
use rackpool_model::SizeClass;
use rackpool_ring::client_file::MAGAZINE_CLASSES;
use rackpool_wire::rack::RackAnswer;

use super::autopsy::Body;

/// What a stopped client's file says of the objects of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// In the magazines.
    kept: BTreeSet<u64>,
    /// In the inboxes.
    arrived: BTreeSet<u64>,
    /// Of each call cell the call that was answered last, and how many objects it brought.
    answers: Vec<(u32, u64)>,
}

/// What `alloc` has taken out of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// Nothing.
    Empty,
    /// This object.
    Has(GlobalAddr),
    /// One that came from the daemon meanwhile: the file does not say which.
    HasOne,
    /// That can't be told: it has asked more than once.
    Unknown,
    /// So many objects, and no `alloc` has that many: a fault.
    Wrong(i64),
}

impl Body {
    /// What the file says of objects of `bytes` bytes. The client must not run.
    #[must_use]
    pub fn stock(&self, bytes: u64) -> Stock {
        let mut stock = Stock::default();
        // First: when an answer is there, so is what it brought, and the daemon is done.
        for cell in self.threads().flat_map(|thread| self.file().cells(thread).expect("cells")) {
            let call = cell.answered();
            let answer = cell.answer(call).filter(|_| call != 0);
            let answer = answer.and_then(|a| RackAnswer::from_words(a.status, a.values));
            let brought = if let Some(RackAnswer::Done(count)) = answer { count } else { 0 };
            stock.answers.push((call, brought));
        }
        let class = SizeClass::index_for(bytes);
        for thread in self.threads() {
            let slot = self.file().thread(thread).expect("a slot");
            let object =
                |cell: &_| match std::sync::atomic::AtomicU64::load(cell, Ordering::Relaxed) {
                    0 => None,
                    object => Some(object),
                };
            if class < MAGAZINE_CLASSES {
                stock.kept.extend(slot.magazines[class].iter().filter_map(object));
            }
            stock.arrived.extend(slot.inbox.iter().filter_map(object));
        }
        stock
    }
}

impl Stock {
    /// What the client has in hand by now, of what it had at its mark or was given since.
    #[must_use]
    pub fn hand(&self, mark: &Self) -> Hand {
        let mut given = 0;
        let mut is_answered = false;
        for ((call, brought), (before, _)) in self.answers.iter().zip(&mark.answers) {
            match call.wrapping_sub(*before) {
                0 => {}
                1 => {
                    is_answered = true;
                    given += brought;
                }
                _ => return Hand::Unknown,
            }
        }
        if !mark.arrived.is_empty() {
            return Hand::Unknown;
        }
        // What arrives before the answer is the daemon's.
        let noted =
            if is_answered { self.kept.union(&self.arrived).count() } else { self.kept.len() };
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let given = i64::try_from(given).unwrap_or(i64::MAX);
        match count(mark.kept.len()).saturating_add(given) - count(noted) {
            0 => Hand::Empty,
            1 => match mark.kept.difference(&self.kept).next() {
                Some(taken) if !is_answered => Hand::Has(GlobalAddr::from_raw(*taken)),
                _ => Hand::HasOne,
            },
            other => Hand::Wrong(other),
        }
    }
}

/// What an `alloc` had in hand from instant to instant. It has nothing, and from one of them on the
/// object that it returns: one that went back was nobody's in between.
#[derive(Debug, Default)]
pub struct Grasp {
    has: bool,
}

impl Grasp {
    /// The next instant; what is wrong with it.
    pub fn saw(&mut self, hand: Hand) -> Option<&'static str> {
        match hand {
            Hand::Wrong(_) => Some("more or fewer objects in hand than alloc returns"),
            Hand::Empty if self.has => Some("an object went back: it was nobody's for an instant"),
            Hand::Has(_) | Hand::HasOne => {
                self.has = true;
                None
            }
            Hand::Empty | Hand::Unknown => None,
        }
    }

    /// Whether it has had anything.
    #[must_use]
    pub const fn has(&self) -> bool {
        self.has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stock(kept: &[u64], arrived: &[u64], answer: (u32, u64)) -> Stock {
        Stock {
            kept: kept.iter().copied().collect(),
            arrived: arrived.iter().copied().collect(),
            answers: vec![(3, 1), answer],
        }
    }

    #[test]
    fn what_is_missing_from_the_magazine_is_in_hand() {
        let mark = stock(&[64, 128], &[], (7, 9));
        assert_eq!(mark.hand(&mark), Hand::Empty);
        let now = stock(&[64], &[], (7, 9));
        assert_eq!(now.hand(&mark), Hand::Has(GlobalAddr::from_raw(128)));
        assert_eq!(stock(&[], &[], (7, 9)).hand(&mark), Hand::Wrong(2));
        assert_eq!(stock(&[64, 128, 192], &[], (7, 9)).hand(&mark), Hand::Wrong(-1));
    }

    /// However long it waited, and wherever the objects stand when it goes on.
    #[test]
    fn what_was_answered_and_is_not_noted_is_in_hand() {
        let mark = stock(&[], &[], (7, 9));
        for instant in [
            stock(&[], &[], (7, 9)),
            stock(&[], &[64, 128], (7, 9)),
            stock(&[], &[64, 128], (8, 2)),
            stock(&[64], &[64, 128], (8, 2)),
            stock(&[64, 128], &[], (8, 2)),
        ] {
            assert_eq!(instant.hand(&mark), Hand::Empty, "{instant:?}");
        }
        assert_eq!(stock(&[64], &[], (8, 2)).hand(&mark), Hand::HasOne);
        assert_eq!(
            stock(&[], &[128], (8, 2)).hand(&mark),
            Hand::HasOne,
            "carried in a wrong order"
        );
        assert_eq!(stock(&[], &[], (8, 2)).hand(&mark), Hand::Wrong(2));
        assert_eq!(stock(&[64], &[], (9, 2)).hand(&mark), Hand::Unknown);
    }

    #[test]
    fn an_object_that_goes_back_was_nobodys() {
        let of = |hands: &[Hand]| {
            let mut grasp = Grasp::default();
            hands.iter().find_map(|hand| grasp.saw(*hand)).is_some()
        };
        assert!(!of(&[Hand::Empty, Hand::Empty, Hand::HasOne, Hand::HasOne]));
        assert!(!of(&[Hand::Empty, Hand::Unknown, Hand::HasOne]));
        assert!(of(&[Hand::Empty, Hand::HasOne, Hand::Empty]));
        assert!(of(&[Hand::HasOne, Hand::Unknown, Hand::Empty, Hand::HasOne]));
        assert!(of(&[Hand::Empty, Hand::Wrong(2)]));
    }
}
