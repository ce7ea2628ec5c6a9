//! How many objects a stopped client's `alloc` has in hand, computed from the client's file.
//!
//! An object that the daemon has handed over is noted in the file until the program takes it. In a
//! stopped client, the objects in hand are therefore those in the file at the mark, plus those that
//! answers brought since, minus those in the file now. This needs neither a second run nor a count
//! of instructions, and does not depend on how long the client waited.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use rackpool_client::GlobalAddr;
use rackpool_model::SizeClass;
use rackpool_ring::client_file::MAGAZINE_CLASSES;
use rackpool_wire::rack::RackAnswer;

use super::autopsy::Body;

/// The objects of one size in a stopped client's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stock {
    /// In the magazines.
    kept: BTreeSet<u64>,
    /// In the inboxes.
    arrived: BTreeSet<u64>,
    /// For each call cell, the call that was answered last and the number of objects that the
    /// answer brought.
    answers: Vec<(u32, u64)>,
}

/// The object that `alloc` has taken out of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// None.
    Empty,
    /// This object.
    Has(GlobalAddr),
    /// An object that the daemon handed over since the mark; the file does not tell which.
    HasOne,
    /// Unknown: the client sent more than one request.
    Unknown,
    /// This number of objects, which no `alloc` takes: a fault.
    Wrong(i64),
}

impl Body {
    /// The objects of `bytes` bytes in the file. The client must be stopped.
    #[must_use]
    pub fn stock(&self, bytes: u64) -> Stock {
        let mut stock = Stock::default();
        // Answers are read first: when an answer is present, so are the objects that it brought,
        // and the daemon has finished the call.
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
    /// The objects in hand now, of those in the file at the mark or handed over since.
    #[must_use]
    pub fn hand(&self, mark: &Self) -> Hand {
        let mut given = 0;
        for ((call, brought), (before, _)) in self.answers.iter().zip(&mark.answers) {
            match call.wrapping_sub(*before) {
                0 => {}
                1 => given += brought,
                _ => return Hand::Unknown,
            }
        }
        if !mark.arrived.is_empty() {
            return Hand::Unknown;
        }
        // Objects that arrive before the answer that brings them still belong to the daemon. An
        // answer that brings none, such as that no memory is left, is followed by another request.
        let has_come = given > 0;
        let noted = if has_come { self.kept.union(&self.arrived).count() } else { self.kept.len() };
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let given = i64::try_from(given).unwrap_or(i64::MAX);
        match count(mark.kept.len()).saturating_add(given) - count(noted) {
            0 => Hand::Empty,
            1 => match mark.kept.difference(&self.kept).next() {
                Some(taken) if !has_come => Hand::Has(GlobalAddr::from_raw(*taken)),
                _ => Hand::HasOne,
            },
            other => Hand::Wrong(other),
        }
    }
}

/// Follows the hand of one `alloc` through its instructions. The hand is empty up to some
/// instruction and has the returned object from then on; an object that leaves the hand again would
/// have no owner in between.
#[derive(Debug, Default)]
pub struct Grasp {
    has: bool,
}

impl Grasp {
    /// Takes the hand before the next instruction; returns a fault.
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

    /// Returns true once `alloc` has had an object in hand.
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

    /// Independent of the length of the wait, and of where the objects lie when the client goes on.
    #[test]
    fn what_was_answered_and_is_not_noted_is_in_hand() {
        let mark = stock(&[], &[], (7, 9));
        for instant in [
            stock(&[], &[], (7, 9)),
            stock(&[], &[64, 128], (7, 9)),
            stock(&[], &[64, 128], (8, 0)),
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
