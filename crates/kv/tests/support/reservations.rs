//! The reservations of a heap's clients, and recovery from killed clients.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use rackpool_kv::{GlobalAddr, PublishCas, PublishMode, ReservedObject};

use super::heap::Heap;
use super::scheduler;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Held,
    Published,
    Undecided,
    Doubtful,
}

#[derive(Debug)]
pub struct HeapReservation {
    pub(super) addr: u64,
    pub(super) token: u64,
    pub(super) phase: Phase,
    /// The place from which the object was borrowed; 0 if it was not.
    pub(super) place: u64,
    pub(super) link: Option<PublishCas>,
}

impl ReservedObject for HeapReservation {
    fn addr(&self) -> GlobalAddr {
        GlobalAddr::from_raw(self.addr)
    }

    fn token(&self) -> u64 {
        self.token
    }
}

#[derive(Clone, Copy, Debug)]
struct Record {
    client: Option<usize>,
    object: u64,
    place: u64,
    armed: Option<PublishCas>,
    /// Whether the client has reported that its swap was made.
    made: bool,
}

/// The reservation records by their tokens.
#[derive(Debug, Default)]
pub struct Reservations {
    records: Mutex<BTreeMap<u64, Record>>,
    drawn: Mutex<u64>,
    /// The number of reservations that clients hold.
    pub(super) unfinished: AtomicI64,
}

impl Reservations {
    pub(super) fn hold(&self, object: u64, place: u64) -> HeapReservation {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        let mut drawn = self.drawn.lock().unwrap();
        *drawn += 1;
        // Different in both halves, not an address, and positive.
        let token = drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1 | 1 << 48;
        let record = Record { client: scheduler::me(), object, place, armed: None, made: false };
        self.records.lock().unwrap().insert(token, record);
        HeapReservation { addr: object, token, phase: Phase::Held, place, link: None }
    }

    pub(super) fn arm(&self, reservation: &HeapReservation, link: &PublishCas) {
        self.records.lock().unwrap().get_mut(&reservation.token).unwrap().armed = Some(*link);
    }

    pub(super) fn disarm(&self, reservation: &HeapReservation) {
        self.records.lock().unwrap().get_mut(&reservation.token).unwrap().armed = None;
    }

    pub(super) fn mark_made(&self, reservation: &HeapReservation) {
        self.records.lock().unwrap().get_mut(&reservation.token).unwrap().made = true;
    }

    /// Removes a reservation's record.
    pub(super) fn end(&self, reservation: &HeapReservation) {
        self.records.lock().unwrap().remove(&reservation.token).unwrap();
    }
}

/// The outcome of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Unpublished,
    Published,
    /// Aborted, and perhaps still linked: the record is kept until its link has changed.
    Aborted,
}

impl Heap {
    /// Resolves the reservations of the clients for which `is_gone` returns true, as the pool's
    /// daemon does. `between` is called between its reads and changes.
    pub fn recover(&self, is_gone: impl Fn(Option<usize>) -> bool, between: impl Fn()) {
        let all = self.reservations.records.lock().unwrap().clone();
        for (token, record) in all.into_iter().filter(|(_, record)| is_gone(record.client)) {
            let found = self.look_at(token, &record, &between);
            if found == Found::Aborted {
                continue;
            }
            self.reservations.records.lock().unwrap().remove(&token);
            let replaced = record.armed.and_then(|link| link.replaced).map_or(0, GlobalAddr::raw);
            let unwanted = if found == Found::Published { replaced } else { record.object };
            if record.place != 0 {
                self.poke(record.place, token, unwanted);
                continue;
            }
            if found == Found::Published
                && let Some(PublishCas { addr, mask, new, mode: PublishMode::Settle(word), .. }) =
                    record.armed
            {
                while let Some(now) = self.peek(addr.raw()).filter(|now| (now ^ new) & mask == 0) {
                    between();
                    self.poke(addr.raw(), now, (now & !mask) | (word & mask));
                }
            }
            if unwanted != 0 {
                self.release(unwanted);
            }
        }
    }

    fn look_at(&self, token: u64, record: &Record, between: &impl Fn()) -> Found {
        let Some(link) = record.armed else { return Found::Unpublished };
        if record.made {
            return Found::Published;
        }
        loop {
            let found = self.peek(link.addr.raw());
            let linked = found.is_some_and(|found| (found ^ link.new) & link.mask == 0);
            between();
            if record.object == 0 {
                return if linked { Found::Published } else { Found::Unpublished };
            }
            let owner = self.peek(record.object);
            match link.mode {
                PublishMode::Compare(stamp) if owner == Some(token) && linked => {
                    between();
                    let unlinked = link.replaced.unwrap().raw();
                    let counts = self.peek(unlinked + 8) == Some(stamp);
                    between();
                    self.poke(record.object, token, if counts { 0 } else { !token });
                }
                PublishMode::Compare(_) if owner == Some(!token) => {
                    return if linked { Found::Aborted } else { Found::Unpublished };
                }
                _ if linked || owner != Some(token) => return Found::Published,
                _ => return Found::Unpublished,
            }
        }
    }
}
