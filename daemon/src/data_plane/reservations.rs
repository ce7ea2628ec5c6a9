//! Resolves the reservation records of gone clients: was each object published, and so which object
//! is freed, the reservation or the object that it replaced, and in which rack. The rules are in
//! `docs/design/publication.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_model::{ClientId, GlobalAddr, PageId, PageState, RackId};
use rackpool_ring::reservation::{Armed, ReservationRecord};
use rackpool_shm::OutsideMapping;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::atomics::Atomic;
use super::peers::Purpose;
use super::{ControlNotification, DataPlane, Located};
use crate::data_plane::error::Result;
use crate::slab::LocalPage;
use recovery::{back_to, settle};

mod recovery;

/// Interval between two requests to a rack or metadata server that is away.
const AGAIN: Duration = Duration::from_millis(100);

/// The position of a record of a gone client.
#[derive(Clone, Copy, Debug)]
struct Place {
    client: ClientId,
    thread: u16,
    record: usize,
}

/// The next word of a record's resolution. The link is read before the owner word: a client that
/// changes the link after that read has cleared the owner word before. After a crash the next
/// daemon starts with the link again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Read the link.
    Link,
    /// Read the owner word; `linked` is the result of reading the link.
    Owner { linked: bool },
    /// Read the stamp of the replaced object.
    Stamp,
    /// Execute a compare-and-swap, then continue with its `then`.
    Swap(Swap),
}

/// A compare-and-swap on behalf of the gone client. Repeating it has no further effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Swap {
    addr: GlobalAddr,
    expected: u64,
    new: u64,
    then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The swap has determined whether the publication counts: read the link again.
    LookAgain,
    /// Nothing is left to be done: clear the record.
    Clear,
    /// The link is settled, unless bits have changed that do not count: then settle it again. After
    /// that, free the replaced object.
    TakeBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// For the answer of another rack.
    Answer,
    /// For the metadata server's answer about the page's home.
    Home(PageId),
    /// For this time; then the word is read or swapped again.
    Until(Instant),
}

#[derive(Clone, Copy, Debug)]
struct Question {
    place: Place,
    step: Step,
    waiting: Waiting,
}

/// The result of reading a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Word(u64),
    /// The memory holds no object.
    NoObject,
    /// The word can't be read, now or later.
    Nowhere,
}

/// The records that are not resolved yet.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// Gone clients of which operations may still be under way.
    unsettled: BTreeSet<ClientId>,
    questions: BTreeMap<u64, Question>,
    next: u64,
}

impl Reservations {
    pub(super) fn has_deadlines(&self) -> bool {
        let waits = |question: &Question| matches!(question.waiting, Waiting::Until(_));
        !self.unsettled.is_empty() || self.questions.values().any(waits)
    }
}

impl DataPlane {
    /// A client has gone: resolves its reservations as soon as none of its operations is under way.
    pub(super) fn resolve_reservations_of(&mut self, client: ClientId) -> Result<()> {
        self.hold_client(client);
        self.reservations.unsettled.insert(client);
        self.settle_client(client)
    }

    /// Continues resolutions that wait for a client's last operations or for another rack.
    pub(super) fn drive_reservations(&mut self, now: Instant) -> Result<()> {
        for client in self.reservations.unsettled.clone() {
            self.settle_client(client)?;
        }
        let due = |question: &Question| matches!(question.waiting, Waiting::Until(at) if now >= at);
        let due: Vec<u64> =
            self.reservations.questions.iter().filter(|(_, q)| due(q)).map(|(id, _)| *id).collect();
        due.into_iter().try_for_each(|id| self.look_at(id))
    }

    fn hold_client(&mut self, id: ClientId) {
        if let Some(client) = self.clients.all.get_mut(id) {
            client.returning += 1;
        }
    }

    fn let_client_go(&mut self, id: ClientId) {
        if let Some(client) = self.clients.all.get_mut(id) {
            client.returning = client.returning.saturating_sub(1);
        }
        self.forget_if_returned(id);
    }

    fn settle_client(&mut self, client: ClientId) -> Result<()> {
        if self.transfers.has_any_of(client) || self.peers.does_anything_for(client) {
            return Ok(());
        }
        self.reservations.unsettled.remove(&client);
        let Some(file) = self.clients.all.get(client).map(|client| Arc::clone(&client.file)) else {
            return Ok(());
        };
        for thread in 0..file.threads() {
            for (record, reservation) in file.thread(thread)?.reservations.iter().enumerate() {
                let place = Place { client, thread, record };
                let step =
                    match (reservation.armed(), reservation.borrowed(), reservation.to_settle()) {
                        (Some(_), _, _) => Step::Link,
                        (_, Some(borrowed), _) => {
                            Step::Swap(back_to(borrowed.place, borrowed.token, borrowed.object))
                        }
                        (_, _, Some(made)) => Step::Swap(settle(&made, made.word)),
                        _ => {
                            self.take_back(place, reservation)?;
                            continue;
                        }
                    };
                self.hold_client(client);
                self.reservations.next += 1;
                let (id, waiting) = (self.reservations.next, Waiting::Answer);
                self.reservations.questions.insert(id, Question { place, step, waiting });
                self.look_at(id)?;
            }
        }
        self.let_client_go(client);
        Ok(())
    }

    /// Runs `work` with the record at a place. The client's file is kept while there are questions.
    fn with_record<R>(
        &mut self,
        place: Place,
        work: impl FnOnce(&mut Self, &ReservationRecord) -> R,
    ) -> Result<Option<R>, OutsideMapping> {
        let Some(file) = self.clients.all.get(place.client).map(|c| Arc::clone(&c.file)) else {
            return Ok(None);
        };
        let record = file.thread(place.thread)?.reservations.get(place.record);
        Ok(record.map(|record| work(self, record)))
    }

    fn armed_at(&mut self, place: Place) -> Result<Option<Armed>, OutsideMapping> {
        Ok(self.with_record(place, |_, record| record.armed())?.flatten())
    }

    /// Returns the address of the word that the question is about.
    fn addr_asked(&mut self, id: u64) -> Result<Option<GlobalAddr>, OutsideMapping> {
        let Some(Question { place, step, .. }) = self.reservations.questions.get(&id).copied()
        else {
            return Ok(None);
        };
        if let Step::Swap(swap) = step {
            return Ok(Some(swap.addr));
        }
        let armed = self.armed_at(place)?;
        Ok(armed.map(|armed| {
            GlobalAddr::from_raw(match step {
                Step::Link => armed.link,
                Step::Owner { .. } | Step::Swap(_) => armed.object,
                Step::Stamp => armed.replaced.wrapping_add(8),
            })
        }))
    }

    fn swap_asked(&self, id: u64) -> Option<Swap> {
        match self.reservations.questions.get(&id)?.step {
            Step::Swap(swap) => Some(swap),
            _ => None,
        }
    }

    /// Reads or swaps the word of a question, here or by a request to its home.
    fn look_at(&mut self, id: u64) -> Result<()> {
        // A record that is not armed any more was changed by its own program before that ended.
        let Some(addr) = self.addr_asked(id)? else { return self.seen(id, Seen::Nowhere) };
        let Some(page) = addr.page(self.rack.geometry.page_size) else {
            return self.seen(id, Seen::Nowhere);
        };
        let here = self.slab.lookup(page);
        let is_shared = here.is_some_and(|here| here.word.state() == Some(PageState::Shared));
        // A read does not end a sharing.
        if !(is_shared && self.swap_asked(id).is_none()) && self.must_wait(page) {
            self.reservation_unanswered(id);
            return Ok(());
        }
        if here.is_some() {
            let Some(Swap { expected, new, .. }) = self.swap_asked(id) else {
                let seen = self.word_here(addr, page);
                return self.seen(id, seen);
            };
            let reply = self.atomic(addr, Atomic::CompareAndSwap { expected, new });
            return self.reservation_answered(id, &reply);
        }
        match self.home_of(page) {
            Some(home) => self.ask_for_word(id, home, addr),
            None => {
                self.wait(id, Waiting::Home(page));
                self.notify(ControlNotification::Locate(page));
                Ok(())
            }
        }
    }

    /// Reads a word of this rack.
    fn word_here(&self, addr: GlobalAddr, page: PageId) -> Seen {
        let Some(found) = self.slab.lookup(page) else { return Seen::NoObject };
        let LocalPage { frame, word, .. } = found;
        if !word.is_readable() {
            return Seen::NoObject;
        }
        let page_size = self.rack.geometry.page_size;
        let at = u64::from(frame.0) * page_size.bytes() + addr.offset(page_size);
        match self.rack.frames.view::<AtomicU64>(at) {
            // SYNC: pairs with the swaps in `Atomic::apply`. The owner word is read after the link.
            Ok(cell) => Seen::Word(cell.load(Ordering::SeqCst)),
            Err(_) => Seen::Nowhere,
        }
    }

    fn ask_for_word(&mut self, id: u64, home: RackId, addr: GlobalAddr) -> Result<()> {
        let now = Instant::now();
        // An earlier daemon may have sent a swap that the other rack has not executed yet.
        if now < self.earlier_requests_end {
            self.wait(id, Waiting::Until(self.earlier_requests_end));
            return Ok(());
        }
        if self.is_dead(home) {
            self.wait(id, Waiting::Until(now + AGAIN));
            return Ok(());
        }
        self.wait(id, Waiting::Answer);
        self.meet(home);
        let request = match self.swap_asked(id) {
            Some(Swap { expected, new, .. }) => PeerRequest::CompareAndSwap { addr, expected, new },
            None => PeerRequest::FetchAndAdd { addr, delta: 0 },
        };
        self.ask(home, request, Purpose::Reservation { question: id }, now + self.lease)
    }

    fn wait(&mut self, id: u64, waiting: Waiting) {
        if let Some(question) = self.reservations.questions.get_mut(&id) {
            question.waiting = waiting;
        }
    }

    /// Handles another rack's answer with the word.
    pub(super) fn reservation_answered(&mut self, id: u64, reply: &PeerReply) -> Result<()> {
        match reply {
            PeerReply::Value(word) => self.seen(id, Seen::Word(*word)),
            PeerReply::NotAllocated => self.seen(id, Seen::NoObject),
            // The rack has restarted without its memory, or the page has moved.
            PeerReply::NotHere => {
                let page_size = self.rack.geometry.page_size;
                match self.addr_asked(id)?.and_then(|addr| addr.page(page_size)) {
                    Some(page) => {
                        self.machine.forget(page);
                        self.wait(id, Waiting::Home(page));
                        self.notify(ControlNotification::Locate(page));
                        Ok(())
                    }
                    None => self.seen(id, Seen::Nowhere),
                }
            }
            PeerReply::Busy => {
                self.reservation_unanswered(id);
                Ok(())
            }
            other => {
                tracing::warn!("a word of a reservation can't be looked at: {other:?}");
                self.seen(id, Seen::Nowhere)
            }
        }
    }

    /// Another rack does not answer: the request is repeated later.
    pub(super) fn reservation_unanswered(&mut self, id: u64) {
        self.wait(id, Waiting::Until(Instant::now() + AGAIN));
    }

    /// Handles the metadata server's answer about a page.
    pub(super) fn reservation_page_located(&mut self, page: PageId, home: Located) -> Result<()> {
        let waits = |question: &Question| question.waiting == Waiting::Home(page);
        let asked: Vec<u64> = self
            .reservations
            .questions
            .iter()
            .filter(|(_, q)| waits(q))
            .map(|(id, _)| *id)
            .collect();
        for id in asked {
            match home {
                // That home has just been asked.
                Located::Home(home) if self.home_of(page) == Some(home) => {
                    self.reservation_unanswered(id);
                }
                Located::Home(home) if home != self.rack.geometry.rack => {
                    if let Some(addr) = self.addr_asked(id)? {
                        self.ask_for_word(id, home, addr)?;
                    }
                }
                // The page has arrived, is arriving, or the answer is old.
                Located::Home(_) if self.is_near(page) => self.reservation_unanswered(id),
                Located::Home(_) | Located::NoSuchPage => self.seen(id, Seen::NoObject)?,
                Located::Lost => self.seen(id, Seen::Nowhere)?,
                Located::Unreachable => self.reservation_unanswered(id),
            }
        }
        Ok(())
    }
}
